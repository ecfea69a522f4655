"""AutoPGD: PGD with momentum that halves its own step (Croce and Hein 2020), on one member or on the mixture.

For p = 1 their sparse version (2021): no momentum, steps over about as many values as the best point changes, and
balls that shrink to the size asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_at_least, check_count, differentiate
from recarc.attacks.pgd import check_member
from recarc.attacks.problem import Best, Problem
from recarc.attacks.registry import register
from recarc.ensemble import predictions_of
from recarc.errors import unknown
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import LOSSES, check_loss, targeted_dlr

MOMENTUM = 0.75  # Croce and Hein's alpha
WORTH_COMPACTING = 0.8  # copying the state costs more than attacking a few finished samples
PROGRESS = 0.75  # their rho: the share of steps that must have increased the loss
# For p = 1, all theirs:
FIRST_SUPPORT = 0.2  # the share of all values that the first steps change
SPARSER = 1.5  # how many times fewer values a later step changes than the best point; the step shrinks as fast
SMALLEST_STEP = 0.1  # as a share of the first step
LARGER, EARLY = (3.0, 2.0), 0.3  # radii in units of eps of the first phases, and the share of steps of each


def checkpoints(steps: int) -> set[int]:
    """Iterations at which the step may be halved: gaps start at 0.22 of the steps and shrink by 0.03 to 0.06."""
    last, share = 0.0, 0.22
    iterations = set()
    while share <= 1:
        iterations.add(math.ceil(round(share * steps, 6)))
        last, share = share, share + max(share - last - 0.03, 0.06)
    return iterations


def sparse_checkpoints(steps: int) -> set[int]:
    """Iterations at which p = 1 adapts its sparsity: every 4 % of the steps."""
    gap = max(int(0.04 * steps), 1)
    return set(range(gap, steps + 1, gap))


def phases(steps: int) -> list[tuple[int, float]]:
    """For p = 1: steps and radius, in units of eps, of each phase. Larger balls come first."""
    early = int(EARLY * steps)
    return [(early, radius) for radius in LARGER if early] + [(steps - len(LARGER) * early, 1.0)]


@dataclass
class _State:
    """Everything AutoPGD carries for the samples still under attack."""

    index: Tensor  # (n,) which sample of the batch
    point: Tensor
    previous: Tensor
    gradient: Tensor
    peak: Tensor  # the point of highest loss, to which halving returns
    peak_gradient: Tensor
    peak_loss: Tensor
    last_loss: Tensor
    step: Tensor
    increases: Tensor
    peak_at_check: Tensor
    halved_at_check: Tensor
    support: Tensor  # how many values differ from x at the peak; only p = 1 asks

    def take(self, keep: Tensor) -> _State:
        return _State(**{name: value[keep] for name, value in vars(self).items()})


@register("autopgd", label="AutoPGD", help="Croce and Hein's APGD on the expected loss")
@dataclass(frozen=True)
class AutoPGD(Attack):
    """Croce and Hein's APGD (the paper's "APGD" is `AdaptivePGD`): momentum 0.75, step 2 eps halved when it stalls.

    `member=i` attacks one member and stops on a sample as soon as it is fooled; `member=None` increases the expected
    loss and keeps the point of lowest expected accuracy. loss: "ce", "dlr", "dlr_targeted" (one run towards each of
    the `targets` runners-up) or "margin". For p = 1 it is their sparse version of 2021.

    `scout` > 0, for dlr_targeted: that many steps towards each target first, then all steps from there, but only
    towards the `finalists` whose loss got highest.
    """

    member: int | None = None
    steps: int = 100  # AutoAttack's
    loss: str = "ce"
    targets: int = 9  # AutoAttack's; only for dlr_targeted
    scout: int = 0
    finalists: int = 2
    random_init: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("targets", self.targets)
        check_count("finalists", self.finalists)
        check_at_least("scout", self.scout, 0)
        if self.loss not in (*LOSSES, "dlr_targeted"):
            raise unknown("loss", self.loss, (*LOSSES, "dlr_targeted"))

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.member is not None:
            check_member(self.member, members)
        check_loss(self.loss, classes)

    def perturb(self, problem: Problem) -> Tensor:
        if self.member is not None:
            problem = problem.on_member(self.member)
        best = Best.clean(problem)
        if self.loss != "dlr_targeted":
            self._run(problem, best, None)
            return best.x_adv
        rivals = problem.rivals(self.targets)
        runs = self._finals(problem, best, rivals) if self.scout else [(target, None) for target in rivals.unbind(1)]
        for target, start in runs:
            self._run(problem, best, target, start)
        return best.x_adv

    def _finals(self, problem: Problem, best: Best, rivals: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The most promising of the `rivals` (B, T), and where a short run towards each of them ended."""
        start = self._start(problem)
        ends = [self._ascend(problem, best, target, start, self.scout, inside=True) for target in rivals.unbind(1)]
        points = torch.stack([point for point, _ in ends], 1)
        losses = torch.stack([loss for _, loss in ends], 1)
        for place in losses.topk(min(self.finalists, rivals.shape[1])).indices.unbind(1):
            yield rivals.gather(1, place[:, None])[:, 0], points[torch.arange(len(place), device=place.device), place]

    def _loss(self, logits: Tensor, y: Tensor, target: Tensor | None) -> Tensor:
        if target is not None:
            return targeted_dlr(logits, y, target)
        return LOSSES[self.loss](logits, y)

    def _visit(
        self, problem: Problem, best: Best | None, index: Tensor, point: Tensor, target: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(loss, gradient) at a point, which is offered to `best`: one forward and backward pass per member."""
        ensemble, y, aim = problem.ensemble, problem.y[index], None if target is None else target[index]
        with torch.enable_grad():
            leaf = point.detach().requires_grad_()
            logits = {i: ensemble.members[i](leaf) for i in ensemble.order}
            loss = torch.stack([float(ensemble.alpha[i]) * self._loss(f, y, aim) for i, f in logits.items()]).sum(0)
            gradient = differentiate(loss.sum(), leaf)
        if best is not None:
            wrong = torch.zeros(len(ensemble), len(y), dtype=torch.bool, device=y.device)
            for i, f in logits.items():
                wrong[i] = predictions_of(f.detach()) != y
            best.offer(index, point, wrong, ensemble.score(~wrong))
        gradient = gradient.to(working_dtype(point)).nan_to_num(nan=0.0)
        return loss.detach().to(gradient.dtype).masked_fill(loss.isnan(), -math.inf), gradient

    def _start(self, problem: Problem) -> Tensor:
        """x, or a random point of the ball; for p = 1 one that changes few values: noise as wide as the box, projected.

        A uniform point of an l1 ball changes every value a little, from where runs with different seeds end alike.
        """
        x, ball = problem.x, problem.ball
        if not self.random_init:
            return x
        noise = ball.random_start(x, self.seed)
        if ball.norm.sparse:
            noise = ball.project(noise * per_sample(x[0].numel() / ball.fewest_values(x), x), x)
        return ball.move(x, noise)

    def _run(self, problem: Problem, best: Best, target: Tensor | None, start: Tensor | None = None) -> None:
        """One AutoPGD run, towards `target` classes where given; for p = 1 through balls that shrink to eps."""
        x, ball, point = problem.x, problem.ball, start
        for steps, growth in phases(self.steps) if ball.norm.sparse else [(self.steps, 1.0)]:
            wide = replace(problem, ball=replace(ball, eps=growth * ball.eps))
            if point is None:
                point = self._start(wide)
            elif ball.norm.sparse:
                point = self._moved(x, point, torch.zeros_like(x, dtype=working_dtype(x)), wide.ball)
            point, _ = self._ascend(wide, best, target, point, steps, inside=growth == 1)

    def _ascend(
        self, problem: Problem, best: Best, target: Tensor | None, start: Tensor, steps: int, inside: bool
    ) -> tuple[Tensor, Tensor]:
        """The points of highest loss after `steps` steps from `start`, and it; if `inside`, samples at 0 are dropped.

        Points outside the ball asked for are not offered to `best`.
        """
        x, ball, offered = problem.x, problem.ball, best if inside else None
        losses = torch.full((len(x),), -math.inf, dtype=working_dtype(x), device=x.device)
        if not bool((best.v > 0).any()):
            return start, losses  # many models cannot take an empty batch
        s = self._begin(problem, (best.v > 0).nonzero()[:, 0], offered, target, start)
        since, sparse = 0, ball.norm.sparse
        checks = sparse_checkpoints(steps) if sparse else checkpoints(steps)
        for k in range(1, steps + 1):
            left = (best.v[s.index] > 0).nonzero()[:, 0]
            if not len(left):
                break
            if len(left) <= WORTH_COMPACTING * len(s.index):
                s = s.take(left)
            centre, own_ball = x[s.index], ball.take(s.index)
            direction = own_ball.step_direction(s.gradient, centre, s.point - centre, s.support / SPARSER)
            z = self._moved(centre, s.point, per_sample(s.step, centre) * direction, own_ball)
            if not sparse:  # momentum would fill the zeros of a sparse perturbation again
                momentum = MOMENTUM if k > 1 else 1.0
                step = momentum * (z - s.point) + (1 - momentum) * (s.point - s.previous)
                z = self._moved(centre, s.point, step, own_ball)
            s.previous, s.point = s.point, z
            loss, s.gradient = self._visit(problem, offered, s.index, s.point, target)
            s.increases += loss > s.last_loss
            s.last_loss = loss
            higher = loss > s.peak_loss
            s.peak_loss = torch.where(higher, loss, s.peak_loss)
            s.peak = torch.where(per_sample(higher, s.peak), s.point, s.peak)
            s.peak_gradient = torch.where(per_sample(higher, s.peak), s.gradient, s.peak_gradient)
            since += 1
            if k in checks and sparse:
                self._adapt_support(s, centre, own_ball.radius(centre))
            elif k in checks:
                self._maybe_halve(s, since)
                since = 0
        return start.index_copy(0, s.index, s.peak), losses.index_copy(0, s.index, s.peak_loss)

    def _begin(
        self, problem: Problem, index: Tensor, offered: Best | None, target: Tensor | None, start: Tensor
    ) -> _State:
        point, ball = start[index], problem.ball.take(index)
        loss, gradient = self._visit(problem, offered, index, point, target)
        zeros = torch.zeros(len(index), dtype=torch.long, device=index.device)
        return _State(
            index=index,
            point=point,
            previous=point,
            gradient=gradient,
            peak=point,
            peak_gradient=gradient,
            peak_loss=loss,
            last_loss=loss,
            step=(1 if ball.norm.sparse else 2) * ball.radius(point),
            increases=zeros,
            peak_at_check=loss,
            halved_at_check=zeros.bool(),
            support=self._first_support(problem.x[index], point),
        )

    @staticmethod
    def _moved(x: Tensor, point: Tensor, step: Tensor, ball: Ball) -> Tensor:
        """point + step, projected into ball and box around x."""
        return ball.move(x, ball.project(point.to(step.dtype) + step - x, x))

    @staticmethod
    def _maybe_halve(s: _State, since: int) -> None:
        """Halve the step and return to the point of highest loss where progress stalled."""
        few = s.increases < PROGRESS * since
        stuck = ~s.halved_at_check & (s.peak_loss <= s.peak_at_check)
        halve = few | stuck
        s.step = torch.where(halve, s.step / 2, s.step)
        s.point = torch.where(per_sample(halve, s.point), s.peak, s.point)
        s.previous = torch.where(per_sample(halve, s.point), s.peak, s.previous)
        s.gradient = torch.where(per_sample(halve, s.gradient), s.peak_gradient, s.gradient)
        s.last_loss = torch.where(halve, s.peak_loss, s.last_loss)
        s.halved_at_check, s.peak_at_check = halve, s.peak_loss
        s.increases = torch.zeros_like(s.increases)

    @staticmethod
    def _first_support(x: Tensor, point: Tensor) -> Tensor:
        """For p = 1: as many values as the start changes, or a fifth of all where it changes nearly all or none."""
        changed = (point != x).flatten(1).sum(1).to(working_dtype(x))
        few = SPARSER * FIRST_SUPPORT * x[0].numel()
        return torch.where((changed > 0) & (changed < few), changed, few)

    @staticmethod
    def _adapt_support(s: _State, x: Tensor, first_step: Tensor) -> None:
        """For p = 1: follow the support of the best point.

        Where it shrank, return to that point and to the first step; elsewhere shorten the step.
        """
        support = (s.peak != x).flatten(1).sum(1).to(s.support.dtype)
        shrank = support < 0.95 * s.support
        s.support = support
        s.step = torch.where(shrank, first_step, torch.maximum(s.step / SPARSER, SMALLEST_STEP * first_step))
        s.point = torch.where(per_sample(shrank, s.point), s.peak, s.point)
        s.gradient = torch.where(per_sample(shrank, s.gradient), s.peak_gradient, s.gradient)
