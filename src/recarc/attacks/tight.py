"""Tight: a staged attack that spends its effort where a sample still is above its own floor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recarc.attacks.adaptive_pgd import AdaptivePGD
from recarc.attacks.arc import ARC
from recarc.attacks.autopgd import AutoPGD
from recarc.attacks.base import Attack, Outcome, check_count, check_problem
from recarc.attacks.climb import Climb, Found
from recarc.attacks.registry import register
from recarc.ensemble import RandomizedEnsemble, as_ensemble, frozen
from recarc.errors import unknown
from recarc.geometry import Ball

STAGES = ("clean", "adaptive_pgd", "arc", "members", "corrected_arc", "climb", "restarts")


@dataclass(frozen=True)
class Effort:
    """How much each stage of `Tight` does."""

    planes: int  # ARC's G (never more than there are)
    members: tuple[AutoPGD, ...]  # against each member alone
    corrected_steps: int
    climb: Climb
    restarts: int


PRESETS = {
    "quick": Effort(4, (AutoPGD(steps=20),), 3, Climb(steps=20, orders=1), 0),
    "standard": Effort(
        4,
        (AutoPGD(steps=40), AutoPGD(steps=20, loss="dlr_targeted", targets=3)),
        5,
        Climb(steps=20, orders=2),
        1,
    ),
    "thorough": Effort(
        9,
        (AutoPGD(steps=100), AutoPGD(steps=100, loss="dlr_targeted", targets=9)),
        20,
        Climb(steps=50, orders=4),
        3,
    ),
}


@register("tight", label="Tight", help="staged, down to the floor (presets quick, standard, thorough)")
@dataclass(frozen=True)
class Tight(Attack):
    """clean -> AdaptivePGD and ARC as in the paper -> AutoPGD on each member -> corrected ARC -> Climb -> restarts.

    A sample leaves as soon as it is at its floor: the alpha of the members nobody fooled, not even alone. `outcome`
    records every stage: what AdaptivePGD and ARC say by themselves, and the best so far after each later stage.
    """

    preset: str = "standard"
    steps: int = 20  # K of AdaptivePGD and ARC, the paper's for CIFAR-10
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        if self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)

    def plain_stages(self, classes: int | None = None) -> dict[str, Attack]:
        """The stages that are attacks by themselves; with few classes ARC has fewer planes."""
        planes = PRESETS[self.preset].planes
        arc = ARC(steps=self.steps, planes=planes if classes is None else min(planes, classes - 1))
        return {"adaptive_pgd": AdaptivePGD(steps=self.steps, seed=self.seed), "arc": arc}

    def perturb(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        found = Found.clean(ensemble, x, y)
        for _ in self._stages(ensemble, x, y, ball, found):
            pass
        return found.x_adv

    def outcome(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Outcome:
        ensemble = as_ensemble(ensemble)
        with frozen(ensemble), torch.no_grad():
            y = check_problem(ensemble, x, y, ball, self)
            found = Found.clean(ensemble, x, y)
            stages = {"clean": ensemble.predictions(x)}
            values = [found.v.clone()]
            for name, predictions in self._stages(ensemble, x, y, ball, found):
                stages[name] = predictions
                values.append(found.v.clone())
            history = torch.stack(values)
            decided_by = (history == history[-1]).int().argmax(0)
        return Outcome([(1.0, found.x_adv)], stages, ~found.ever_wrong, decided_by)

    def _stages(
        self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, found: Found
    ) -> Iterator[tuple[str, Tensor]]:
        """Runs the stages one by one on `found`; yields each one's name and predictions."""
        effort, classes = PRESETS[self.preset], ensemble.members[0](x[:1]).shape[1]
        planes = min(effort.planes, classes - 1)
        everyone = torch.arange(len(x), device=x.device)
        for name, plain in self.plain_stages(classes).items():
            yield name, found.try_out(ensemble, y, everyone, plain.perturb(ensemble, x, y, ball))

        for i in ensemble.order:
            for attack in effort.members:
                standing = (~found.ever_wrong[i]).nonzero()[:, 0]
                attack = replace(attack, member=i, seed=self.seed, loss=_loss_for(attack.loss, classes))
                _run(attack, ensemble, x, y, ball, found, standing)
        yield "members", ensemble.predictions(found.x_adv)

        corrected = ARC(steps=effort.corrected_steps, planes=planes, variant="corrected")
        _run(corrected, ensemble, x, y, ball, found, _above_floor(ensemble, found))
        yield "corrected_arc", ensemble.predictions(found.x_adv)

        for restart in range(1 + effort.restarts):
            # A fresh climb may fool a member that had withstood so far; its sample's floor falls, so look again.
            fresh = replace(effort.climb, seed=self.seed + 1000 * restart)
            _improve(fresh, ensemble, x, y, ball, found, _above_floor(ensemble, found))
            if restart in (0, effort.restarts):
                yield ("restarts" if restart else "climb"), ensemble.predictions(found.x_adv)


def _loss_for(loss: str, classes: int) -> str:
    """The targeted DLR loss needs four classes; with fewer the margin has no scale to lose."""
    return "margin" if loss == "dlr_targeted" and classes < 4 else loss


def _above_floor(ensemble: RandomizedEnsemble, found: Found) -> Tensor:
    return (found.v > ensemble.score(~found.ever_wrong)).nonzero()[:, 0]


def _run(
    attack: Attack, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, found: Found, index: Tensor
) -> None:
    if len(index):
        x_adv = attack.perturb(ensemble, x[index], y[index], ball.take(index))
        found.try_out(ensemble, y, index, x_adv)


def _improve(
    attack: Climb, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, found: Found, index: Tensor
) -> None:
    """Climb on a subset of the samples, targeting only members that were fooled at some point."""
    if not len(index):
        return
    part = Found(found.x_adv[index], found.wrong[:, index], found.v[index], found.ever_wrong[:, index])
    attack.improve(ensemble, x[index], y[index], ball.take(index), part, ~part.ever_wrong)
    found.x_adv[index], found.wrong[:, index] = part.x_adv, part.wrong
    found.v[index], found.ever_wrong[:, index] = part.v, part.ever_wrong
