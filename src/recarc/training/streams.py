"""Work that does not depend on each other, on CUDA streams of its own, so that small kernels share the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def side_by_side(jobs: Sequence[Callable[[], T]], device: torch.device) -> list[T]:
    """What each job returns: a tensor, a tuple of them, or nothing. On a CPU they run one after the other.

    The n-th job always gets the same stream, so that what the n-th ones of two calls write to is written in order.
    """
    if device.type != "cuda" or len(jobs) < 2:
        return [job() for job in jobs]
    main, found = torch.cuda.current_stream(device), []
    streams = _streams(device, len(jobs))
    for job, stream in zip(jobs, streams):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            found.append(job())
    for result, stream in zip(found, streams):
        main.wait_stream(stream)
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                tensor.record_stream(main)  # its memory stays until the caller's stream has read it
    return found


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(count)]
