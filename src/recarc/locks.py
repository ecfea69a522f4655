"""Locks between processes; the system frees those of a killed one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import IO


def hold(path: Path, wait: bool = False) -> IO[bytes]:
    """Holds the lock file until what is returned is closed; BlockingIOError where another process has it, or waits.

    A system or file system without such locks lets everybody in.
    """
    handle = path.open("wb")
    with contextlib.suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            handle.close()
            raise
        except OSError:
            pass
    return handle
