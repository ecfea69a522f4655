"""Attacks side by side: one process, one run, the same weights and images.

Claim: ARC on 10,000 images and two ResNet-20s takes at most a twentieth of the time of the batch-vectorised Algorithm 2
at its batch size of 256, at the same robust accuracy; PGD on one model takes at most two thirds of the time of other
libraries. Medians over repeats with their spread, after a warm-up. Other people's code runs with PyTorch's defaults: on
a GPU with convolutions in TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper.bench import baseline, peers
from paper.bench.common import (
    PeakRates,
    Replay,
    counted,
    measured_row,
    peak_rates,
    robust_accuracy,
    seconds,
    timing,
)
from paper.recipe import measured_item, radius
from paper.results import Figure, RowResult
from paper.settings import LINF, bat, budget
from paper.setup import Setup
from recarc import ARC, Attack, AutoPGD, Ball, RandomizedEnsemble, Tight
from recarc.errors import first_line
from recarc.fast import accelerate
from recarc.runtime import kernel_settings

BATCH = 256  # of the baselines
CHUNK = 10_000  # images that our attacks and other libraries get at once
REPEATS = 3


@dataclass
class Bench:
    """The problem that every row attacks. `single`: only the first member, as a model by itself."""

    setup: Setup
    item: str
    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    peak: PeakRates
    steps: int
    single: bool
    ball: Ball = field(default_factory=lambda: Ball("linf", radius(LINF)))
    accelerated: dict[str, RandomizedEnsemble] = field(default_factory=dict)
    references: dict[str, float] = field(default_factory=dict)  # seconds of the first row of a group

    @classmethod
    def of(cls, setup: Setup, item: str, single: bool) -> Bench:
        ensemble, device = setup.ensemble(bat("cifar10", "linf")).ensemble, setup.device
        x, y = (t.to(device) for t in setup.images("cifar10").tensors())
        peak = peak_rates(ensemble.modules_of_members[0], x, setup.scale.name == "toy")
        steps = setup.scale.steps or budget("cifar10").steps
        return cls(
            setup, item, RandomizedEnsemble(ensemble.members[:1]) if single else ensemble, x, y, peak, steps, single
        )

    @property
    def precisions(self) -> list[str]:
        return ["tf32", "float16"] if self.x.is_cuda else ["float32"]

    def row(
        self,
        group: str,
        name: str,
        attack: Callable[[RandomizedEnsemble, Tensor, Tensor], Tensor],
        batch: int = CHUNK,
        precision: str | None = None,
        ours: Attack | None = None,
        repeats: int = REPEATS,
    ) -> Iterator[RowResult]:
        """Time an attack on all images; one that fails on this machine costs its row, not the run.

        With `precision`, on accelerated members. The accuracy is what `evaluate` finds with `ours`; without it, that of
        the points that were returned.
        """
        searched, passes = counted(self._fast(precision) if precision else self.ensemble)

        def work() -> Tensor:
            parts = zip(self.x.split(batch), self.y.split(batch))
            return torch.cat([attack(searched, u, v) for u, v in parts])

        try:
            before = self._reset_memory()
            attack(searched, self.x[:batch], self.y[:batch])  # warm-up
            times, points = [], self.x
            for _ in range(1 if self.setup.scale.name == "toy" else repeats):
                passes.forward = passes.backward = 0
                took, points = seconds(work, self.x.device)
                times.append(took)
            figure = timing("seconds", times)
            self.references.setdefault(group, figure.measured)
            used = precision or ("tf32" if self.x.is_cuda and torch.backends.cudnn.allow_tf32 else "float32")
            memory = self._gib_since(before)
            robust = robust_accuracy(
                self.ensemble, ours or Replay(self.x, points), self.x, self.y, self.ball, precision if ours else None
            )
        except Exception as error:
            self.setup.say(f"{group}: {name} failed: {type(error).__name__}: {first_line(error)}")
            return
        figures = [
            figure,
            Figure("ratio", self.references[group] / figure.measured, unit="x"),
            robust,
            Figure("forward", passes.forward, unit="passes"),
            Figure("backward", passes.backward, unit="passes"),
            *self.peak.shares((passes.forward + passes.backward) / figure.measured, used),
            *memory,
        ]
        self.setup.say(f"{group}: {name} {figure.measured:.3g} s")
        yield self._result(group, f"{group}: {name}", figures)

    def ours(self, group: str, attack: Attack, precision: str, suffix: str = "") -> Iterator[RowResult]:
        def search(e: RandomizedEnsemble, u: Tensor, v: Tensor) -> Tensor:
            return attack(e, u, v, self.ball)

        name = f"{type(attack).__name__} {precision}{suffix}"
        yield from self.row(group, name, search, precision=precision, ours=attack)

    def one_pass(self) -> Iterator[RowResult]:
        """Peak memory of one forward and backward pass of a plain member on a chunk."""
        before = self._reset_memory()
        u = self.x[:CHUNK].clone().requires_grad_()
        torch.autograd.grad(self.ensemble.members[0](u).sum(), u)
        memory = self._gib_since(before)
        if memory:
            yield self._result("", "one forward and backward pass of a plain member", memory)

    def _result(self, part: str, name: str, figures: list[Figure]) -> RowResult:
        known: dict[str, Any] = {"norm": "linf", "eps": LINF, "data": "cifar10", "split": "test", "images": len(self.x)}
        source = self.setup.ensemble(bat("cifar10", "linf")).source
        known["ensemble"] = f"the first member of {source}" if self.single else source
        known["note"] = f"K = {self.steps}"
        return measured_row(self.setup, self.item, part, name, figures, **known)

    def _fast(self, precision: str) -> RandomizedEnsemble:
        """Made once, so that compiling and capturing happen once."""
        if precision not in self.accelerated:
            self.accelerated[precision] = accelerate(self.ensemble, precision)
        return self.accelerated[precision]

    def _reset_memory(self) -> int:
        if not self.x.is_cuda:
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def _gib_since(self, before: int) -> list[Figure]:
        if not self.x.is_cuda:
            return []
        return [Figure("GiB", (torch.cuda.max_memory_allocated() - before) / 2**30, unit="GiB")]


def arc(b: Bench) -> Iterator[RowResult]:
    p, eps = b.ball.norm.p, float(b.ball.eps)

    def literal(e: RandomizedEnsemble, u: Tensor, v: Tensor) -> Tensor:
        return baseline.arc(e.members, e.alpha, u, v, p, eps, b.steps)

    yield from b.row("arc", f"Algorithm 2, batch {BATCH}", literal, BATCH, repeats=1)
    for precision in b.precisions:
        yield from b.ours("arc", ARC(steps=b.steps), precision)
    yield from b.ours("arc", ARC(steps=b.steps, planes=4), b.precisions[-1], ", 4 planes")

    def readable(e: RandomizedEnsemble, u: Tensor, v: Tensor) -> Tensor:
        with kernel_settings(b.x.device, tf32=False):
            return ARC(steps=b.steps)(e, u, v, b.ball)

    yield from b.row("arc", "ARC, members as given", readable, ours=ARC(steps=b.steps), repeats=1)


def tight(b: Bench) -> Iterator[RowResult]:
    yield from b.ours("tight", Tight(steps=b.steps), b.precisions[-1], ", standard")


def adaptive_pgd(b: Bench) -> Iterator[RowResult]:
    p, eps = b.ball.norm.p, float(b.ball.eps)

    def plain(e: RandomizedEnsemble, u: Tensor, v: Tensor) -> Tensor:
        return baseline.adaptive_pgd(e.members, e.alpha, u, v, p, eps, b.steps)

    for size in sorted({BATCH, min(CHUNK, len(b.x))}):
        yield from b.row("adaptive_pgd", f"plain loop, batch {size}", plain, size, repeats=1)
    for precision in b.precisions:
        yield from b.ours("adaptive_pgd", budget("cifar10").apgd(), precision)


def on_one_model(b: Bench, group: str, attack: Attack, others: Iterator[tuple[str, peers.Peer]]) -> Iterator[RowResult]:
    for name, other in others:

        def attack_first(e: RandomizedEnsemble, u: Tensor, v: Tensor, other: peers.Peer = other) -> Tensor:
            return other(e.members[0], u, v)

        yield from b.row(group, f"{name}, batch {min(CHUNK, len(b.x))}", attack_first)
    for precision in b.precisions:
        yield from b.ours(group, attack, precision)


def pgd(b: Bench) -> Iterator[RowResult]:
    eps = float(b.ball.eps)
    yield from on_one_model(b, "pgd", budget("cifar10").pgd(), peers.pgd(eps, eps / 4, b.steps))


def autopgd(b: Bench) -> Iterator[RowResult]:
    others = peers.autopgd(float(b.ball.eps), b.steps)
    yield from on_one_model(b, "autopgd", AutoPGD(member=0, steps=b.steps), others)


GROUPS = {"arc": arc, "tight": tight, "adaptive_pgd": adaptive_pgd}
ON_ONE_MODEL = {"pgd": pgd, "autopgd": autopgd}
HOW = (
    "Ratio: to the first row of the group. Forward and backward: images through a member. Share of FLOP/s: of a large "
    "matrix product in the precision of the row; of bytes/s: of a large copy; in percent, both measured in the same "
    "run. GiB: beyond what the rows above left allocated (rows of one precision share captured graphs)."
)
as_benchmark = partial(measured_item, page="performance", note=HOW)


@as_benchmark("bench-attacks", "Attacks on the BAT pair, side by side", parts=tuple(GROUPS), cost="5 min on one H200")
def attacks(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    b = Bench.of(setup, "bench-attacks", single=False)
    yield from b.one_pass()
    for part in parts:
        yield from GROUPS[part](b)


@as_benchmark("bench-one-model", "Attacks on one model beside other libraries", parts=tuple(ON_ONE_MODEL))
def one_model(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    b = Bench.of(setup, "bench-one-model", single=True)
    yield from b.one_pass()
    for part in parts:
        yield from ON_ONE_MODEL[part](b)
