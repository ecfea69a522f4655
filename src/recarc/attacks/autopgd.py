"""AutoPGD: PGD with momentum that halves its own step (Croce and Hein 2020), on one member or on the mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count, differentiate
from recarc.attacks.pgd import check_member, member_of
from recarc.attacks.registry import register
from recarc.ensemble import RandomizedEnsemble, predictions_of
from recarc.errors import InputError, unknown
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import cross_entropy, difference_of_logits_ratio, negative_margin, targeted_dlr

LOSSES = ("ce", "dlr", "dlr_targeted", "margin")
MOMENTUM = 0.75  # Croce and Hein's alpha
WORTH_COMPACTING = 0.8  # copying the state costs more than attacking a few finished samples
PROGRESS = 0.75  # their rho: the share of steps that must have increased the loss


def checkpoints(steps: int) -> set[int]:
    """Iterations at which the step may be halved: gaps start at 0.22 of the steps and shrink by 0.03 to 0.06."""
    last, here = 0.0, 0.22
    found = []
    while here <= 1:
        found.append(math.ceil(round(here * steps, 6)))
        last, here = here, here + max(here - last - 0.03, 0.06)
    return set(found)


@dataclass(frozen=True)
class _Task:
    """The problem, and the best point of every sample so far: x_adv and its accuracy are improved in place."""

    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    ball: Ball
    x_adv: Tensor
    lowest: Tensor

    def keep(self, index: Tensor, point: Tensor, accuracy: Tensor) -> None:
        better = accuracy < self.lowest[index]
        self.x_adv[index[better]], self.lowest[index[better]] = point[better], accuracy[better]


@dataclass
class _State:
    """Everything AutoPGD carries for the samples still under attack."""

    index: Tensor  # (n,) which sample of the batch
    point: Tensor
    previous: Tensor
    gradient: Tensor
    best: Tensor  # the point of highest loss, to which halving returns
    best_gradient: Tensor
    best_loss: Tensor
    last_loss: Tensor
    step: Tensor
    increases: Tensor
    best_at_check: Tensor
    halved_at_check: Tensor = field(repr=False)

    def take(self, keep: Tensor) -> _State:
        return _State(**{name: value[keep] for name, value in vars(self).items()})


@register("autopgd", label="AutoPGD", help="Croce and Hein's APGD on the expected loss")
@dataclass(frozen=True)
class AutoPGD(Attack):
    """Croce and Hein's APGD (the paper's "APGD" is `AdaptivePGD`): momentum 0.75, step 2 eps halved when it stalls.

    `member=i` attacks one member and stops on a sample as soon as it is fooled; `member=None` increases the expected
    loss and keeps the point of lowest expected accuracy. loss: "ce", "dlr", "dlr_targeted" (one run for each of the
    `targets` runners-up) or "margin". For p = 1 the step is the plain steepest one, not their sparse one.
    """

    member: int | None = None
    steps: int = 100  # AutoAttack's
    loss: str = "ce"
    targets: int = 9  # AutoAttack's; only for dlr_targeted
    random_init: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("targets", self.targets)
        if self.loss not in LOSSES:
            raise unknown("loss", self.loss, LOSSES)

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.member is not None:
            check_member(self.member, members)
        needed = {"dlr": 3, "dlr_targeted": 4}.get(self.loss, 2)
        if classes < needed:
            raise InputError(f"loss {self.loss!r} needs {needed} classes or more, the members have {classes}; use 'ce'")

    def perturb(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        task = _Task(ensemble, x, y, ball, x.clone(), self._accuracy(ensemble, self._logits(ensemble, x), y))
        if self.loss != "dlr_targeted":
            self._run(task, None)
            return task.x_adv
        ranking = ensemble.expected_logits(x) if self.member is None else member_of(ensemble, self.member)(x)
        rivals = ranking.scatter(1, y[:, None], -torch.inf).topk(min(self.targets, ranking.shape[1] - 1)).indices
        for target in rivals.unbind(1):
            self._run(task, target)
        return task.x_adv

    def _members(self, ensemble: RandomizedEnsemble) -> list[int]:
        return ensemble.order if self.member is None else [self.member]

    def _logits(self, ensemble: RandomizedEnsemble, x: Tensor) -> list[Tensor]:
        return [member_of(ensemble, i)(x) for i in self._members(ensemble)]

    def _accuracy(self, ensemble: RandomizedEnsemble, logits: list[Tensor], y: Tensor) -> Tensor:
        """What is driven to 0: the member's own correctness, or the expected accuracy."""
        right = torch.stack([predictions_of(f) == y for f in logits])
        if self.member is not None:
            return right[0].double()
        bits = torch.zeros(len(ensemble), len(y), dtype=torch.bool, device=y.device)
        bits[ensemble.order] = right
        return ensemble.score(bits)

    def _loss(self, logits: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
        if target is not None:
            return targeted_dlr(logits, y, target)
        return {"ce": cross_entropy, "dlr": difference_of_logits_ratio, "margin": negative_margin}[self.loss](logits, y)

    def _visit(self, task: _Task, index: Tensor, point: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor]:
        """(loss, gradient) at a point, which is kept where it is the best: one forward and backward pass a member."""
        ensemble, y = task.ensemble, task.y[index]
        weights = [1.0] if self.member is not None else [float(ensemble.alpha[i]) for i in ensemble.order]
        with torch.enable_grad():
            leaf = point.detach().requires_grad_()
            logits = self._logits(ensemble, leaf)
            aim = None if target is None else target[index]
            losses = [a * self._loss(f, y, aim) for a, f in zip(weights, logits, strict=True)]
            loss = torch.stack(losses).sum(0)
            gradient = differentiate(loss.sum(), leaf)
        task.keep(index, point, self._accuracy(ensemble, [f.detach() for f in logits], y))
        gradient = gradient.to(working_dtype(point)).nan_to_num(nan=0.0)
        return loss.detach().to(gradient.dtype).masked_fill(loss.isnan(), -math.inf), gradient

    def _run(self, task: _Task, target: Tensor | None) -> None:
        """One AutoPGD run, towards `target` classes where given; samples at 0 are dropped."""
        if not bool((task.lowest > 0).any()):
            return  # many models cannot take an empty batch
        x, ball, s = task.x, task.ball, self._begin(task, target)
        since, checks = 0, checkpoints(self.steps)
        for k in range(1, self.steps + 1):
            left = (task.lowest[s.index] > 0).nonzero()[:, 0]
            if not len(left):
                return
            if len(left) <= WORTH_COMPACTING * len(s.index):
                s = s.take(left)
            here, ball_here = x[s.index], ball.take(s.index)
            z = self._moved(here, s.point, per_sample(s.step, here) * ball.norm.steepest(s.gradient), ball_here)
            momentum = MOMENTUM if k > 1 else 1.0
            step = momentum * (z - s.point) + (1 - momentum) * (s.point - s.previous)
            s.previous, s.point = s.point, self._moved(here, s.point, step, ball_here)
            loss, s.gradient = self._visit(task, s.index, s.point, target)
            s.increases += loss > s.last_loss
            s.last_loss = loss
            higher = loss > s.best_loss
            s.best_loss = torch.where(higher, loss, s.best_loss)
            s.best = torch.where(per_sample(higher, s.best), s.point, s.best)
            s.best_gradient = torch.where(per_sample(higher, s.best), s.gradient, s.best_gradient)
            since += 1
            if k in checks:
                self._maybe_halve(s, since)
                since = 0

    def _begin(self, task: _Task, target: Tensor | None) -> _State:
        index = (task.lowest > 0).nonzero()[:, 0]
        point, ball = task.x[index], task.ball.take(index)
        if self.random_init:
            point = ball.move(point, ball.random_start(point, self.seed))
        loss, gradient = self._visit(task, index, point, target)
        zeros = torch.zeros(len(index), dtype=torch.long, device=index.device)
        return _State(
            index=index,
            point=point,
            previous=point,
            gradient=gradient,
            best=point,
            best_gradient=gradient,
            best_loss=loss,
            last_loss=loss,
            step=2 * ball.radius(point),
            increases=zeros,
            best_at_check=loss,
            halved_at_check=zeros.bool(),
        )

    @staticmethod
    def _moved(x: Tensor, point: Tensor, step: Tensor, ball: Ball) -> Tensor:
        """point + step, projected into ball and box around x."""
        return ball.move(x, ball.project(point.to(step.dtype) + step - x, x))

    @staticmethod
    def _maybe_halve(s: _State, since: int) -> None:
        """Halve the step and go back to the best point where progress stalled."""
        few = s.increases < PROGRESS * since
        stuck = ~s.halved_at_check & (s.best_loss <= s.best_at_check)
        halve = few | stuck
        s.step = torch.where(halve, s.step / 2, s.step)
        s.point = torch.where(per_sample(halve, s.point), s.best, s.point)
        s.previous = torch.where(per_sample(halve, s.point), s.best, s.previous)
        s.gradient = torch.where(per_sample(halve, s.gradient), s.best_gradient, s.gradient)
        s.last_loss = torch.where(halve, s.best_loss, s.last_loss)
        s.halved_at_check, s.best_at_check = halve, s.best_loss
        s.increases = torch.zeros_like(s.increases)
