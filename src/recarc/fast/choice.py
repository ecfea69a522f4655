"""How the convolutions of a member are run fastest, found by a stopwatch once per machine and kept on disk.

Only where the answer may depend on the clock: the searches of `evaluate` must give the same bits everywhere, so they
run in one fixed way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from recarc.atomic import read_plain, write_bytes
from recarc.data.cache import cache_root

TIMED = 3  # passes, after one that warms up


@dataclass(frozen=True)
class Way:
    """`channels_last`: the layout of images and weights; `tuned`: the library tries its kernels, size by size."""

    channels_last: bool = True
    tuned: bool = False


FIXED = Way()
WAYS = (FIXED, Way(False), Way(False, True), Way(True, True))


def fastest_way(net: nn.Module, x: Tensor, precision: str, run: Callable[[Way], None]) -> Way:
    """The way in which `run`, a forward and backward pass of images like x, takes the least time."""
    file = cache_root().parent / "fast" / f"{_key(net, x, precision)}.json"
    known = _read(file)
    if known is None:
        times = {way: _milliseconds(run, way) for way in WAYS}
        known = min(times, key=lambda way: times[way])
        _keep(file, known, times)
    return known


def _key(net: nn.Module, x: Tensor, precision: str) -> str:
    """Of everything but the values of the weights, on which the time does not depend."""
    modules = [(name, type(module).__name__) for name, module in net.named_modules()]
    shapes = [(name, tuple(p.shape), str(p.dtype)) for name, p in net.named_parameters()]
    device = torch.cuda.get_device_name(x.device) if x.is_cuda else "cpu"
    words = (modules, shapes, tuple(x.shape), precision, device, torch.__version__, [asdict(way) for way in WAYS])
    return hashlib.sha256(repr(words).encode()).hexdigest()


def _milliseconds(run: Callable[[Way], None], way: Way) -> float:
    """Infinite for a way that fails."""
    try:
        run(way)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(TIMED):
            run(way)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / TIMED
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
    except RuntimeError:  # a kernel that this library lacks
        pass
    return float("inf")


def _read(file: Path) -> Way | None:
    """What was found before; None if nothing was, or if the file is damaged."""
    try:
        saved = json.loads(read_plain(file))["fastest"]
        way = Way(bool(saved["channels_last"]), bool(saved["tuned"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return way if way in WAYS else None


def _keep(file: Path, way: Way, times: dict[Way, float]) -> None:
    """For the next process; a disk that cannot be written costs that process a moment, and nothing else."""
    measured = [{**asdict(each), "ms": round(took, 3)} for each, took in times.items() if took < float("inf")]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, json.dumps({"fastest": asdict(way), "measured": measured}).encode())
    except OSError:
        pass
