"""Attacks on randomized ensembles side by side: expected accuracy against the number of gradients.

Not in the paper. A gradient is one image through one member and back; `recarc.evaluate` counts them, after the samples
that cannot fall any further have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from paper.recipe import EnsembleRecipe, Measurement, Reading, Row, item
from paper.results import Figure, RowResult
from paper.settings import DVERGE, LINF, bat
from paper.tables import against_gradients
from recarc.adapters import autoattack
from recarc.attacks import (
    ARC,
    MORA,
    AdaptivePGD,
    Attack,
    AutoPGD,
    Climb,
    LatticeClimber,
    Problem,
    Tight,
    WorstOf,
)
from recarc.ensemble import RandomizedEnsemble
from recarc.geometry import Ball

STEPS = (10, 20, 50, 100)
PLANES = 4  # of ARC: as strong as all 9 on CIFAR-10 (table5-cifar10), at less than half the gradients
RADII = (2, 4, 6, 8)  # in 255ths
CLIMB = "Climb"
RIVALS = ("APGD", "AutoAttack", "pyautoattack", "ARC", "corrected ARC", "lattice climber", "MORA")
ENSEMBLES = {
    "dverge": DVERGE,
    "bat": bat("cifar10", "linf"),
    "iat2": EnsembleRecipe("iat", "cifar10", "resnet20", "linf", LINF, members=2),
}
IAT4 = EnsembleRecipe("iat", "cifar10", "resnet20", "linf", LINF, members=4)  # at the largest radius alone
NOTE = (
    "Not in the paper. One member is drawn with equal probabilities. In each cell: expected accuracy (gradients per "
    "image); a gradient is one image through one member and back. All attacks see the same images, those that can "
    "stop early do, and `recarc.evaluate` judges and counts. K is an attack's number of steps; `no budget` is for "
    "attacks without such a knob. AutoAttack: its gradient attacks, APGD-CE and then APGD-T with 9 targets, both of K "
    "steps, on the mean softmax of the members, which is what one attacks who takes the ensemble for one classifier; "
    f"`pyautoattack`: the same two in that package, where it is installed. ARC with G = {PLANES}. Lattice climber and "
    "MORA are written anew from the idea of their papers, without their code; the schedule of steps and, for MORA, the "
    "formula of the weights are ours, so their authors' versions may do better or worse."
)


class MeanSoftmax(nn.Module):
    """log sum_i alpha_i softmax(f_i(x)): the ensemble as one deterministic classifier."""

    def __init__(self, ensemble: RandomizedEnsemble) -> None:
        super().__init__()
        self.ensemble = ensemble

    def forward(self, x: Tensor) -> Tensor:
        each = [self.ensemble.members[i](x).log_softmax(1) + self.ensemble.alpha[i].log() for i in self.ensemble.order]
        return torch.stack(each).logsumexp(0).to(each[0].dtype)


@dataclass(frozen=True)
class OnMeanSoftmax(Attack):
    """An attack on one classifier, aimed at the mean softmax of the members."""

    attack: Attack

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        self.attack.check_fit(1, classes, ball)

    def perturb(self, problem: Problem) -> Tensor:
        single = RandomizedEnsemble([MeanSoftmax(problem.ensemble)])
        return self.attack.perturb(Problem(single, problem.x, problem.y, problem.ball))


@dataclass(frozen=True)
class PyAutoAttack(Attack):
    """These attacks of the package pyautoattack (none: its standard version), on one model; imported on first use."""

    parts: tuple[str, ...] = ("apgd-ce", "apgd-t")
    queries: int = 5000  # of its Square, its own

    def perturb(self, problem: Problem) -> Tensor:
        return autoattack.stage(attacks=self.parts, member=0, queries=self.queries).perturb(problem)


def _attacks(steps: int) -> Iterator[tuple[str, Attack]]:
    """Every attack that has a number of steps."""
    yield "APGD", AdaptivePGD(steps=steps)
    if steps in (STEPS[0], STEPS[-1]):  # ten times the gradients of the others
        targeted = AutoPGD(steps=steps, loss="dlr_targeted")
        yield "AutoAttack", OnMeanSoftmax(WorstOf([AutoPGD(steps=steps), targeted]))
    yield "ARC", ARC(steps=steps, planes=PLANES)
    yield "corrected ARC", ARC(steps=steps, planes=PLANES, variant="corrected")
    yield "lattice climber", LatticeClimber(steps=steps)
    yield "MORA", MORA(steps=steps)
    yield CLIMB, Climb(steps=steps)


def _measurements(radius: int) -> Iterator[Measurement]:
    def measured(
        column: str, attack: Attack, *more: Reading, x: float | None = None, extra: bool = False
    ) -> Measurement:
        return Measurement(attack, (Reading(column), Reading(column, "gradients"), *more), x=x, extra=extra)

    for steps in STEPS:
        for column, attack in _attacks(steps):
            yield measured(column, attack, x=steps)
    if radius == RADII[-1] and find_spec("pyautoattack") is not None:
        yield measured("pyautoattack", OnMeanSoftmax(PyAutoAttack()), x=100)  # its own number of steps
    yield measured("tight quick", Tight("quick"), extra=True)
    yield measured("tight standard", Tight(), Reading("floor", "floor"), extra=True)


def _row(name: str, ensemble: EnsembleRecipe, radius: int) -> Row:
    return Row(f"{name}-{radius}", ensemble, "linf", f"{radius}/255", tuple(_measurements(radius)), "equal", axis="K")


def ahead_of_climb(row: RowResult) -> Iterator[tuple[Figure, Figure, str]]:
    """Where a rival ends lower than Climb did with no more gradients: Climb's figure, the rival's, and both in words.

    A rival that is cheaper than Climb at its smallest budget is compared with that one.
    """
    climb = against_gradients(row, CLIMB)
    for column in RIVALS if climb else ():
        for cost, figure in against_gradients(row, column):
            within = max(cost, climb[0][0])
            used, own = min((pair for pair in climb if pair[0] <= within), key=lambda pair: pair[1].measured)
            if figure.measured < own.measured:
                where = f"{row.row}: {column} {figure.measured:.2f} with {cost:.0f} gradients"
                yield own, figure, f"{where}, Climb {own.measured:.2f} with {used:.0f} (n = {row.images})"


@item(
    "head-to-head",
    "Expected accuracy against gradients: Climb and tight beside the attacks of others, linf on CIFAR-10",
    drawing="gradients",
    note=NOTE,
)
def head_to_head() -> tuple[Row, ...]:
    rows = tuple(_row(name, ensemble, radius) for name, ensemble in ENSEMBLES.items() for radius in RADII)
    return (*rows, _row("iat4", IAT4, RADII[-1]))
