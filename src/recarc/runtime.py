"""Where and how things run: devices, the precision of kernels, and the processes that torchrun started."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from recarc.errors import InputError, RunError, first_line, unknown

T = TypeVar("T")
DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = {
    "float32": torch.float32,
    "float64": torch.float64,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
TILE = {"cuda": 1024, "cpu": 256}  # images at once: fills an H200, and a layer's activations stay in its cache
COARSE = ("tf32", "float16", "bfloat16")  # round more than float32: for the search of an attack, not for judging it
AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}
TIMEOUT = timedelta(days=30)  # ranks finish hours apart; a dead one closes its connection and is noticed at once


def device_named(name: str | torch.device | None = "auto") -> torch.device:
    """The device of this name; "auto" is the best available. Under torchrun "cuda" is each process's own GPU."""
    kind, _, index = str(name or "auto").partition(":")
    if kind not in DEVICES or (kind == "auto" and index):
        raise unknown("device", str(name), DEVICES)
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if kind == "auto":
        kind = "cuda" if cuda else "mps" if mps else "cpu"
    if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
        raise InputError(f"device {str(name)!r} is not available here; use cpu or auto")
    if kind == "cuda" and not index:
        index = str(local_rank() % torch.cuda.device_count())
    try:
        device = torch.device(f"{kind}:{index}" if index else kind)
    except RuntimeError as error:
        raise InputError(f"device {str(name)!r} is not available here: {first_line(error)}") from None
    if kind == "cuda" and device.index >= torch.cuda.device_count():
        raise InputError(
            f"device {str(name)!r} is not available here; the GPUs are cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    return device


def use_device(name: str) -> torch.device:
    """The device of this name, made the current device of the process."""
    device = device_named(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def world_size() -> int:
    """How many processes torchrun started; 1 outside torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The number of this process on its machine, as torchrun gives it; 0 outside torchrun."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def first_process() -> bool:
    """Whether this is the process that prints and writes for all that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def check_precision(precision: str, device: torch.device, known: Collection[str] = tuple(PRECISIONS)) -> None:
    """Refuse a precision that is unknown or impossible on this device."""
    if precision not in known:
        raise unknown("precision", precision, known)
    if precision == "float16" and device.type != "cuda":
        raise InputError(f"precision float16 needs a CUDA GPU, the device is {device}; use float32 or bfloat16")


@contextmanager
def in_precision(precision: str, device: torch.device) -> Iterator[None]:
    """Run kernels in this precision, the fastest ones found by trial unless deterministic ones are switched on."""
    with ExitStack() as stack:
        if precision in AUTOCAST:
            stack.enter_context(torch.autocast(device.type, AUTOCAST[precision]))
        exact = precision not in COARSE
        stack.enter_context(kernel_settings(device, tf32=not exact, benchmark=not torch.backends.cudnn.deterministic))
        yield


@contextmanager
def kernel_settings(
    device: torch.device, *, tf32: bool | None = None, benchmark: bool | None = None, deterministic: bool | None = None
) -> Iterator[None]:
    """Set torch's global switches for CUDA kernels and restore them at the end; None leaves a switch alone."""
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, torch.get_float32_matmul_precision()
    try:
        if tf32 is not None:
            cudnn.allow_tf32 = tf32
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
        if benchmark is not None:
            cudnn.benchmark = benchmark
        if deterministic is not None:
            cudnn.deterministic = deterministic
        yield
    finally:
        cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before[:3]
        torch.set_float32_matmul_precision(before[3])


@dataclass(frozen=True)
class Ranks:
    """This process among those that `torchrun` started; alone by default."""

    rank: int = 0
    world: int = 1
    group: Any = None

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, decide: Callable[[], T]) -> T:
        """What rank 0 decides, on every rank; if it fails with a bad-input or run error, every rank raises it."""
        if self.world == 1:
            return decide()
        answer: list[Any] = [None, None]  # result, error
        if self.first:
            try:
                answer[0] = decide()
            except (InputError, RunError) as error:
                answer[1] = error
        dist.broadcast_object_list(answer, src=0, group=self.group)
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def together(self, work: Callable[[], T]) -> T:
        """Each rank's own result; if one fails with a bad-input or run error, every rank raises it."""
        if self.world == 1:
            return work()
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except (InputError, RunError) as error:
            failure = error
        failures: list[Any] = [None] * self.world
        dist.all_gather_object(failures, failure, group=self.group)
        if failure is not None:
            raise failure
        for rank, other in enumerate(failures):
            if other is not None:
                raise type(other)(f"rank {rank}: {other}")
        return result

    def wait(self) -> None:
        """Block until every rank arrives here."""
        if self.world > 1:
            dist.barrier(group=self.group)


_meetings = itertools.count()


def meet(backend: str, timeout: timedelta | None = None) -> None:
    """Form the process group of all that torchrun started.

    Each time under a new key of the store: torch's own key still holds the old addresses when processes meet again.
    """
    store, rank, world = next(iter(dist.rendezvous("env://")))
    fresh = dist.PrefixStore(f"recarc {next(_meetings)}", store)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=world, timeout=timeout)


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """All processes of this torchrun job, connected for control messages only (gloo, on any device)."""
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() == 1:
            yield Ranks()
            return
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size(), group)
        finally:
            dist.destroy_process_group(group)
        return
    if world_size() == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    meet("gloo", TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), None)
    finally:
        dist.destroy_process_group()
