"""Where and how things run: devices, the precision of kernels, and the processes that torchrun started."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from recarc.errors import InputError, Interrupted, RunError, first_line, unknown

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
TIMEOUT = timedelta(days=30)  # ranks finish hours apart; `Heartbeat` notices one that is stopped or lost
SILENT = 300.0  # seconds without a sign of life after which a rank is given up; RECARC_RANK_TIMEOUT sets another limit
GONE = "gone"
ARRIVED = 600.0  # seconds within which all ranks must meet
FULL = ("out of memory", "can't allocate memory", "ALLOC_FAILED")  # what CUDA and Triton, CPUs, and cuBLAS say


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
def in_precision(precision: str, device: torch.device, tuned: bool = False) -> Iterator[None]:
    """Run kernels in this precision; `tuned`: try them out first, which takes seconds and rarely gains a tenth."""
    with ExitStack() as stack:
        if precision in AUTOCAST:
            stack.enter_context(torch.autocast(device.type, AUTOCAST[precision]))
        exact = precision not in COARSE
        stack.enter_context(kernel_settings(device, tf32=not exact, benchmark=tuned))
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


def out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, also if a later error, such as that of ending a capture, hides it."""
    if error is None:
        return False
    full = isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in FULL)
    return full or out_of_memory(error.__context__)


class Heartbeat:
    """Each rank gives a sign of life every few seconds and, while it waits for the others, looks for theirs.

    A rank that is stopped or unreachable would be waited for in vain, deep inside a collective operation that nothing
    can interrupt: so this process says which rank it is and exits with 3. Files are written whole, so a rerun resumes.
    The signs lie in a store that rank 0, or its torchrun, holds: if that one is stopped, the store does not answer.
    """

    def __init__(self, store: Any, rank: int, world: int) -> None:
        self.store, self.rank, self.world = store, rank, world
        self.limit = float(os.environ.get("RECARC_RANK_TIMEOUT", SILENT))
        self.every = min(5.0, self.limit / 10)
        self._told, self._heard = "", dict[int, list[float]]()  # this rank's progress, and that of the others
        self._answered = time.monotonic()  # when the store last did
        self._waits, self._ended = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=task, daemon=True) for task in (self._beat, self._watch_store)]

    def __enter__(self) -> Heartbeat:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * self.every)  # longer only if the store does not answer

    def tell(self, *numbers: float) -> None:
        """The other ranks, with the next sign of life."""
        self._told = " ".join(map(repr, numbers))

    def heard(self) -> list[list[float]]:
        """What each of the other ranks that have said something told last."""
        return [numbers for numbers in list(self._heard.values()) if numbers]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For the others; without this, one that is silent does not matter yet."""
        self._waits.set()
        try:
            yield
        finally:
            self._waits.clear()

    def _beat(self) -> None:
        seen = {r: (b"", time.monotonic()) for r in range(self.world) if r != self.rank}  # last sign, and when
        for count in itertools.count():
            ended = self._ended.wait(self.every)
            try:
                self.store.set(f"alive {self.rank}", f"{GONE if ended else count} {self._told}")
                for r in seen:
                    sign = self.store.get(f"alive {r}") if self.store.check([f"alive {r}"]) else b""
                    word, *told = sign.decode().split()[:4] or [""]
                    if sign != seen[r][0] or word == GONE:
                        seen[r] = sign, time.monotonic()
                        self._heard[r] = [float(number) for number in told]
            except RuntimeError:  # the store is closed: the job is ending, or whoever holds the store was killed
                if ended:
                    return
                continue
            self._answered = time.monotonic()
            silent = [r for r, (_, when) in seen.items() if self._answered - when > self.limit]
            if ended:
                return
            if silent and self._waits.is_set():
                self._give_up(silent[0])

    def _watch_store(self) -> None:
        """In a thread of its own: whoever asks a store that is stopped waits for ever."""
        while not self._ended.wait(self.every):
            if self._waits.is_set() and time.monotonic() - self._answered > self.limit:
                self._give_up(0)

    def _give_up(self, silent: int) -> None:
        _leave(
            f"[rank {self.rank}] interrupted: rank {silent} gave no sign of life for {self.limit:g} s: it is stopped, "
            "hung or unreachable; end it, and rerun the command to resume"
        )


def _leave(line: str) -> None:
    """End this process, whatever its other threads are waiting for."""
    print(line, file=sys.stderr, flush=True)
    os._exit(3)


@dataclass(frozen=True)
class Ranks:
    """This process among those that `torchrun` started; alone by default."""

    rank: int = 0
    world: int = 1
    group: Any = None
    heart: Heartbeat | None = None

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
        with self._waiting():
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
        with self._waiting():
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
            with self._waiting():
                dist.barrier(group=self.group)

    def _waiting(self) -> AbstractContextManager[None]:
        return nullcontext() if self.heart is None else self.heart.waiting()


def meet(backend: str, timeout: timedelta | None = None) -> Heartbeat:
    """Form the process group of all that torchrun started.

    Each time under a new key of the store: torch's own key still holds the old addresses when processes meet again,
    for another evaluation or because torchrun has restarted them.
    """
    late = f"[rank {os.environ.get('RANK')}] interrupted: the ranks did not meet within {ARRIVED:g} s: one is stopped, "
    timer = threading.Timer(ARRIVED + 30, _leave, [late + "hung or unreachable; rerun the command to resume"])
    timer.daemon = True
    timer.start()
    try:
        store, rank, world = next(iter(dist.rendezvous("env://")))
        store = without_prefix(store)
        fresh = dist.PrefixStore(common_key(store, rank, world), store)
        dist.init_process_group(backend, store=fresh, rank=rank, world_size=world, timeout=timeout)
    finally:
        timer.cancel()
    return Heartbeat(fresh, rank, world)


def without_prefix(store: Any) -> Any:
    """torch puts the number of restarts before every key: on two nodes of which one was started again, two numbers."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def common_key(store: Any, rank: int, world: int) -> str:
    """A key that all ranks of this meeting share, and no earlier process of theirs.

    Every rank says hello with a word of its own; rank 0 chooses the key and lists whose hello it heard. What earlier
    processes left in the store is of no use: a rank takes the key only from a list that holds its present word. What
    they still write before they end is written over.
    """
    word, others = secrets.token_hex(8), range(1, world)
    deadline = time.monotonic() + ARRIVED

    def read(name: str) -> str:
        return store.get(f"recarc {name}").decode() if store.check([f"recarc {name}"]) else "-"

    while time.monotonic() < deadline:
        if rank:
            if read(f"hello {rank}") != word:
                store.set(f"recarc hello {rank}", word)
            key, *heard = read("key").split()
            if len(heard) == world - 1 and heard[rank - 1] == word:
                store.set(f"recarc agreed {rank}", key)
                return f"recarc {key}"
        else:
            told = " ".join([word, *(read(f"hello {r}") for r in others)])
            if read("key") != told:
                store.set("recarc key", told)
            if all(read(f"agreed {r}") == word for r in others):
                return f"recarc {word}"
        time.sleep(0.02)
    missing = [str(r) for r in others if read(f"agreed {r}") != word] if rank == 0 else ["0"]
    raise Interrupted(f"rank {', '.join(missing)} did not arrive within {ARRIVED:g} s; rerun the command to resume")


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
    with meet("gloo", TIMEOUT) as heart:
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size(), None, heart)
        finally:
            dist.destroy_process_group()
