"""The precision of kernels inside a `with`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from recarc.errors import InputError, unknown

PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def check_precision(precision: str, device: torch.device) -> None:
    """Known, and possible on this device."""
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if precision == "float16" and device.type != "cuda":
        raise InputError(f"precision float16 needs a CUDA GPU, the device is {device}; use float32 or bfloat16")


@contextmanager
def running(precision: str, device: torch.device) -> Iterator[None]:
    """The precision of kernels inside; the settings are put back at the end."""
    with ExitStack() as stack:
        if precision in AUTOCAST:
            stack.enter_context(torch.autocast(device.type, AUTOCAST[precision]))
        if device.type == "cuda":
            stack.enter_context(_kernels(tf32=precision != "float32"))
        yield


@contextmanager
def _kernels(tf32: bool) -> Iterator[None]:
    """TF32 or not, and the fastest kernels by trial unless the caller wants deterministic ones."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, torch.get_float32_matmul_precision()
    cudnn.allow_tf32, cudnn.benchmark = tf32, not cudnn.deterministic
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark = before[:2]
        torch.set_float32_matmul_precision(before[2])
