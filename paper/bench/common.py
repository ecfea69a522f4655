"""What the benchmarks share: the clock, counted passes, judging, the machine's peak rates, provenance."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paper import results
from paper.results import Figure, RowResult, hardware_of
from paper.setup import Setup
from recarc import Attack, Ball, RandomizedEnsemble, evaluate
from recarc.evaluation.tiling import Passes, TiledMember
from recarc.runtime import kernel_settings

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


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
    """The median, with the fastest and the slowest if there are several."""
    return Figure(column, statistics.median(times), (min(times), max(times)) if times[1:] else None, unit=unit)


def measured_row(setup: Setup, item: str, part: str, name: str, figures: list[Figure], **known: Any) -> RowResult:
    """A row with the provenance of this process."""
    words = ["python -m paper", item, *(["--only", f"'{part}'" if " " in part else part] if part else [])]
    words += ["--limit", str(setup.limit)] if setup.limit else []
    words += [f"--ensemble {name}={Path(place).name}" for name, place in setup.given.items()]
    return RowResult(
        name,
        tuple(figures),
        command=" ".join([*words, "--device", setup.device.type]),
        commit=results.commit(),
        hardware=hardware_of(setup.device),
        date=results.now(),
        **known,
    )


def counted(ensemble: RandomizedEnsemble) -> tuple[RandomizedEnsemble, Passes]:
    """The same ensemble, counting the images that go through its members."""
    passes = Passes()
    return ensemble.with_members([TiledMember(m, None, passes) for m in ensemble.members]), passes


@dataclass(frozen=True)
class Replay:
    """An attack that returns what another one found before: (N, ...) points for (N, ...) inputs."""

    inputs: Tensor
    points: Tensor

    def __call__(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        rows = {_pixels(u): i for i, u in enumerate(self.inputs)}
        return self.points[[rows[_pixels(u)] for u in x]].to(x)


def _pixels(image: Tensor) -> bytes:
    return image.float().cpu().numpy().tobytes()


def robust_accuracy(
    ensemble: RandomizedEnsemble, attack: Attack | Replay, x: Tensor, y: Tensor, ball: Ball, precision: str | None
) -> Figure:
    """As `evaluate` judges it, in float32, whatever the search ran in."""
    found = evaluate(ensemble, attack, (x, y), ball, precision=precision, progress=False).robust
    return Figure("robust", round(100 * found.value, 4), (round(100 * found.low, 4), round(100 * found.high, 4)))


@dataclass(frozen=True)
class PeakRates:
    """What the machine does at best, measured, and what one image through one member takes of it."""

    flops: dict[str, float]  # per second, of a large matrix product, by precision
    bytes: float  # per second, of a large copy
    flops_of_a_pass: float
    values_of_a_pass: float

    def shares(self, passes_per_second: float, precision: str) -> list[Figure]:
        """In percent."""
        flops, width = self.flops.get(precision), 2 if precision in HALVES else 4
        moved = passes_per_second * self.values_of_a_pass * width
        figures = [Figure("share of bytes/s", 100 * moved / self.bytes, unit="share")]
        if flops:
            used = 100 * passes_per_second * self.flops_of_a_pass / flops
            figures.insert(0, Figure("share of FLOP/s", used, unit="share"))
        return figures


def peak_rates(member: nn.Module, x: Tensor, tiny: bool) -> PeakRates:
    from torch.utils.flop_counter import FlopCounterMode

    device = x.device
    n, m = (64, 2**16) if tiny else (8192, 2**30) if device.type == "cuda" else (1024, 2**25)
    flops = {}
    for precision in ("float32", "tf32", "float16", "bfloat16") if device.type == "cuda" else ("float32",):
        a = torch.randn(n, n, device=device, dtype=HALVES.get(precision, torch.float32))
        with kernel_settings(device, tf32=precision == "tf32"):
            flops[precision] = 2 * n**3 / _best(partial(torch.matmul, a, a), device)
    source = torch.rand(m // 4, device=device)
    copied = 2 * m / _best(partial(torch.empty_like(source).copy_, source), device)
    values: list[int] = []  # a pass writes and reads again the outputs of convolutions and linear layers

    def count(module: nn.Module, inputs: Any, output: Tensor) -> None:
        values.append(output.numel())

    hooks = [p.register_forward_hook(count) for p in member.modules() if isinstance(p, nn.Conv2d | nn.Linear)]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        member(x[:2])
    for hook in hooks:
        hook.remove()
    return PeakRates(flops, copied, counter.get_total_flops() / 2, sum(values))


def _best(work: Callable[[], Any], device: torch.device) -> float:
    work()
    return min(seconds(work, device)[0] for _ in range(5))
