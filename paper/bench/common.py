"""What the benchmarks share: images, counted passes, the clock, the machine's peak rates, judging, results."""

from __future__ import annotations

import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paper import results
from paper.results import Figure, ItemResult, RowResult, hardware_of
from recarc import Attack, Ball, RandomizedEnsemble, evaluate
from recarc.data import load
from recarc.errors import InputError
from recarc.provenance import commit
from recarc.runtime import kernel_settings

FOLDER = Path(__file__).parents[1] / "results" / "bench"
MADE_UP = "made-up"
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass
class Passes:
    """Images that went through members."""

    forward: int = 0
    backward: int = 0


class Counted(nn.Module):
    """A member that counts the images it is given."""

    def __init__(self, member: Callable[[Tensor], Tensor], passes: Passes) -> None:
        super().__init__()
        self.member, self.passes = member, passes

    def forward(self, x: Tensor) -> Tensor:
        self.passes.forward += len(x)
        logits = self.member(x)
        if logits.requires_grad:
            logits.register_hook(lambda _: self._count_backward(len(x)))
        return logits

    def _count_backward(self, count: int) -> None:
        self.passes.backward += count


def counted(ensemble: RandomizedEnsemble) -> tuple[RandomizedEnsemble, Passes]:
    passes = Passes()
    return RandomizedEnsemble([Counted(m, passes) for m in ensemble.members], ensemble.alpha), passes


def load_images(name: str, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first test images of a named set, or made-up ones."""
    x, y = made_up(count) if name == MADE_UP else load(name, "test", limit=count).tensors()
    if len(x) < count:
        raise InputError(f"{name} has {len(x)} images; {count} were requested")
    return x.float().to(device), y.to(device)


def made_up(count: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A smooth pattern per class, fainter on some images than on others: some yield to 8/255 and some do not."""
    generator = torch.Generator().manual_seed(1234)
    patterns = F.interpolate(torch.randn(classes, 3, 4, 4, generator=generator), size=32, mode="bilinear")
    generator.manual_seed(seed)
    y = torch.randint(classes, (count,), generator=generator)
    strength = 0.01 + 0.09 * torch.rand(count, 1, 1, 1, generator=generator)
    noise = 0.1 * torch.randn(count, 3, 32, 32, generator=generator)
    return (0.5 + strength * patterns[y] + noise).clamp(0, 1), y


def seconds(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """How long `work` takes, GPU kernels included, and its result."""
    _wait(device)
    start = time.perf_counter()
    result = work()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timing(column: str, times: list[float], unit: str = "s") -> Figure:
    """The median, with the fastest and the slowest."""
    return Figure(column, statistics.median(times), (min(times), max(times)), unit=unit)


@dataclass(frozen=True)
class Replay(Attack):
    """Returns adversarial inputs that were found before: (N, ...) points for (N, ...) inputs."""

    inputs: Tensor
    points: Tensor

    def perturb(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        rows = {_pixels(u): i for i, u in enumerate(self.inputs)}
        return self.points[[rows[_pixels(u)] for u in x]].to(x)


def _pixels(image: Tensor) -> bytes:
    return image.float().cpu().numpy().tobytes()


def accuracies(
    ensemble: RandomizedEnsemble, attack: Attack, x: Tensor, y: Tensor, ball: Ball, precision: str | None = None
) -> tuple[Figure, Figure]:
    """Clean and robust accuracy as `evaluate` judges them, in float32."""
    found = evaluate(ensemble, attack, (x, y), ball, precision=precision, progress=False)
    return _percent("Clean", found.clean), _percent("robust", found.robust)


def _percent(column: str, estimate: Any) -> Figure:
    low, high = round(100 * estimate.low, 4), round(100 * estimate.high, 4)
    return Figure(column, round(100 * estimate.value, 4), (low, high))


@dataclass
class PeakRates:
    """What the machine does at best, measured: FLOP/s of matrix products by precision, and bytes/s of a copy."""

    flops: dict[str, float]
    bytes: float


def peak_rates(device: torch.device) -> PeakRates:
    n, m = (8192, 2**30) if device.type == "cuda" else (1024, 2**25)
    flops = {}
    for precision in ("float32", "tf32", "float16", "bfloat16"):
        if device.type != "cuda" and (precision in ("tf32", "float16") or not _fast_on_cpu(precision)):
            continue
        a = torch.randn(n, n, device=device, dtype=HALVES.get(precision, torch.float32))
        with kernel_settings(device, tf32=precision == "tf32"):
            flops[precision] = 2 * n**3 / _best(partial(torch.matmul, a, a), device)
    source = torch.rand(m // 4, device=device)
    target = torch.empty_like(source)
    return PeakRates(flops, 2 * m / _best(lambda: target.copy_(source), device))


def _fast_on_cpu(precision: str) -> bool:
    return precision == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _best(work: Callable[[], Any], device: torch.device) -> float:
    work()
    return min(seconds(work, device)[0] for _ in range(5))


def flops_of(member: nn.Module, x: Tensor) -> float:
    """Floating-point operations of one forward pass of one image; an input gradient takes as many."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        member(x[:2])
    return counter.get_total_flops() / 2


def activations(member: nn.Module, x: Tensor) -> float:
    """Values that one pass of one image must write and read again: the outputs of convolutions and linear layers."""
    total = 0

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal total
        total += output.numel()

    hooks = [m.register_forward_hook(count) for m in member.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        member(x[:2])
    for hook in hooks:
        hook.remove()
    return total / 2


def measured_row(name: str, figures: list[Figure], images: int, device: torch.device, **known: Any) -> RowResult:
    """A row with the provenance of this process."""
    return RowResult(
        name,
        tuple(figures),
        images,
        command=_command(),
        commit=commit(),
        hardware=hardware_of(device),
        date=results.now(),
        **known,
    )


def write(name: str, title: str, rows: list[RowResult], folder: Path, **facts: Any) -> None:
    """The results file of a benchmark; a run under the same name replaces it."""
    results.write(folder, ItemResult(name, title, tuple(rows), facts))


def _command() -> str:
    """As typed, with absolute paths shortened to their last part: they mean nothing on another machine."""
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return shlex.join(["python", "-m", "paper", *words])
