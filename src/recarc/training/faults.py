"""What can go wrong after training has begun, each told in one line."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from recarc.errors import first_line


class TrainingError(RuntimeError):
    """Training stopped; the message says where, why, and what to do."""


class Interrupted(TrainingError):
    """Stopped from outside; the same command goes on."""


@contextmanager
def memory_advice(batch: int) -> Iterator[None]:
    """Out of memory as one line with a way out."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise TrainingError(
            f"out of device memory at batch {batch}: {first_line(error)}; lower the batch size, "
            "train fewer members at once (no side by side), or use a larger device"
        ) from None
    except MemoryError:
        raise TrainingError(f"out of memory at batch {batch}: lower the batch size") from None


def disk_message(error: OSError, path: object, kept: str) -> str:
    """A failed write as one line; `kept` says what is still there."""
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return f"cannot write {path}: {reason}; {kept}"
