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
COARSE = ("tf32", "float16", "bfloat16")  # rounds more than float32: to search with, not to judge
AUTOCAST = {"float16": torch.float16, "bfloat16": torch.bfloat16}
PATIENCE = timedelta(days=30)  # ranks finish hours apart; a dead one closes its connection and is noticed at once


def device_named(name: str | torch.device | None = "auto") -> torch.device:
    """The device of this name; "auto" is the best there is. Under torchrun "cuda" is each process's own GPU."""
    kind, _, index = str(name or "auto").partition(":")
    if kind not in DEVICES:
        raise unknown("device", str(name), DEVICES)
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if kind == "auto":
        kind, index = ("cuda" if cuda else "mps" if mps else "cpu"), ""
    if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
        raise InputError(f"device {str(name)!r} is not available here; use cpu or auto")
    if kind == "cuda" and not index:
        index = str(local_rank() % torch.cuda.device_count())
    try:
        device = torch.device(f"{kind}:{index}" if index else kind)
        if kind == "cuda" and device.index >= torch.cuda.device_count():
            raise RuntimeError(f"there are {torch.cuda.device_count()} GPUs")
    except RuntimeError as error:
        raise InputError(f"device {str(name)!r} is not available here: {first_line(error)}") from None
    return device


def use_device(name: str) -> torch.device:
    """The device of this name, made the current one of the process."""
    device = device_named(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def world_size() -> int:
    """How many processes torchrun started; 1 outside torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def first_process() -> bool:
    """Of the processes that torchrun started, the one that speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def check_precision(precision: str, device: torch.device, known: Collection[str] = tuple(PRECISIONS)) -> None:
    """Known, and possible on this device."""
    if precision not in known:
        raise unknown("precision", precision, known)
    if precision == "float16" and device.type != "cuda":
        raise InputError(f"precision float16 needs a CUDA GPU, the device is {device}; use float32 or bfloat16")


@contextmanager
def in_precision(precision: str, device: torch.device) -> Iterator[None]:
    """The precision of kernels inside; the fastest kernels by trial unless the caller wants deterministic ones."""
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
    """torch's global switches for CUDA kernels, put back at the end; None leaves one as it is."""
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, torch.get_float32_matmul_precision()
    if tf32 is not None:
        cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if benchmark is not None:
        cudnn.benchmark = benchmark
    if deterministic is not None:
        cudnn.deterministic = deterministic
    try:
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
        """What rank 0 decides, on every rank; its bad-input and run errors too."""
        if self.world == 1:
            return decide()
        message: list[Any] = [None, None]
        failure: Exception | None = None
        if self.first:
            try:
                message = ["ok", decide()]
            except (InputError, RunError) as error:
                failure = error
                message = [type(error).__name__, str(error)]
        dist.broadcast_object_list(message, src=0, group=self.group)
        if failure is not None:
            raise failure
        if message[0] != "ok":
            raise (InputError if message[0] == "InputError" else RunError)(message[1])
        return message[1]

    def together(self, work: Callable[[], T]) -> T:
        """What each rank gets for itself; where one fails on bad input or a run error, all of them do."""
        if self.world == 1:
            return work()
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except (InputError, RunError) as error:
            failure = error
        told: list[Any] = [None] * self.world
        dist.all_gather_object(told, failure and (type(failure).__name__, str(failure)), group=self.group)
        if failure is not None:
            raise failure
        for rank, other in enumerate(told):
            if other is not None:
                raise (InputError if other[0] == "InputError" else RunError)(f"rank {rank}: {other[1]}")
        return result

    def wait(self) -> None:
        """Until every rank is here."""
        if self.world > 1:
            dist.barrier(group=self.group)


_meetings = itertools.count()


def meet(backend: str, timeout: timedelta | None = None) -> None:
    """A process group of all that torchrun started, at a place of its own: torch's place still has the old addresses
    when processes meet a second time."""
    store, rank, world = next(iter(dist.rendezvous("env://")))
    place = dist.PrefixStore(f"recarc {next(_meetings)}", store)
    dist.init_process_group(backend, store=place, rank=rank, world_size=world, timeout=timeout)


@contextmanager
def joined_ranks() -> Iterator[Ranks]:
    """The processes that torchrun's environment names, connected for control messages only (gloo, on any device)."""
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() == 1:
            yield Ranks()
            return
        group = dist.new_group(backend="gloo", timeout=PATIENCE)
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size(), group)
        finally:
            dist.destroy_process_group(group)
        return
    if world_size() == 1 or "RANK" not in os.environ:
        yield Ranks()
        return
    meet("gloo", PATIENCE)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), None)
    finally:
        dist.destroy_process_group()
