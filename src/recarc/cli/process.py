"""Start and end of the process of a command: what takes a second or more beside torch's own import is done sooner."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


@contextmanager
def importing() -> Iterator[None]:
    """Import large packages within: nothing is collected meanwhile, nor later among what they made.

    The garbage collector would look through all of torch several times, 0.1 s each.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def gpu_starting(device: str) -> Iterator[None]:
    """Start the GPU of this process in a thread; at the end of the block it is ready, or there is none.

    `device` as in `runtime.device_named`. Whatever fails here fails again, with its message, where it is needed.
    """
    if device in ("cpu", "mps"):
        yield
        return
    index = device.partition(":")[2] or os.environ.get("LOCAL_RANK", "0")
    thread = threading.Thread(target=_start, args=(index,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _start(index: str) -> None:
    with suppress(Exception):  # no driver, no such GPU, no Triton
        _make_context(int(index))
        _load_libraries(int(index))


def _make_context(index: int) -> None:
    """What torch would do when the GPU is first used. The driver's own calls do not hold Python up."""
    with suppress(OSError):
        ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2()  # with which torch counts GPUs
    driver, gpu, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(gpu), index):
        raise OSError(f"no GPU {index}")
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), gpu)


def _load_libraries(index: int) -> None:
    """Triton hashes itself before its first kernel; cuDNN and cuBLAS are loaded by their first call."""
    with suppress(ImportError):
        from triton.runtime.cache import triton_key

        triton_key()
    import torch

    x = torch.zeros(1, 16, 8, 8, device=f"cuda:{index}")
    torch.conv2d(x, x.new_zeros(16, 16, 3, 3)).flatten(1) @ x.new_zeros(576, 10)


def leave(code: int) -> NoReturn:
    """End the process with this exit code, without taking all of torch apart again, which takes up to 0.4 s.

    Whatever was registered for the end is run, and what was printed is written. Other threads are waited for as usual.
    """
    if threading.active_count() > 1:
        sys.exit(code)
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # whoever read it is gone
        sys.exit(code)
    os._exit(code)
