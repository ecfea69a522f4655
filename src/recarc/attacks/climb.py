"""Climb: grow the set of members that one perturbation fools at once, up the lattice of fooled subsets.

After Gnecco-Heredia, Negrevergne and Chevaleyre: an attack on a mixture should be effective and maximal, that is,
stop only where no single further member can be fooled as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count, differentiate
from recarc.attacks.registry import register
from recarc.ensemble import RandomizedEnsemble, predictions_of
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import margin
from recarc.randomness import sample_keys, uniform

MOMENTUM = 0.75
FIRST_STEP = 0.5  # in units of eps; falls to 0 along a cosine


@dataclass
class Found:
    """The best point of each sample so far, and who it fools; improved in place."""

    x_adv: Tensor
    wrong: Tensor  # (M, B) members fooled at x_adv
    v: Tensor  # (B,) expected accuracy at x_adv
    ever_wrong: Tensor  # (M, B) members fooled at any point seen: foolable alone

    @classmethod
    def clean(cls, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor) -> Found:
        wrong = ~ensemble.correct(x, y)
        return cls(x.clone(), wrong, ensemble.score(~wrong), wrong.clone())

    def offer(self, index: Tensor, x_adv: Tensor, wrong: Tensor, v: Tensor) -> None:
        """Points (n, ...) for the samples `index`: keep those that lower the expected accuracy."""
        self.ever_wrong[:, index] |= wrong
        better = v < self.v[index]
        where = index[better]
        self.x_adv[where], self.v[where], self.wrong[:, where] = x_adv[better], v[better], wrong[:, better]

    def try_out(self, ensemble: RandomizedEnsemble, y: Tensor, index: Tensor, x_adv: Tensor) -> Tensor:
        """Offer what another attack found; returns the (M, n) predictions there."""
        predictions = ensemble.predictions(x_adv)
        wrong = predictions != y[index]
        self.offer(index, x_adv, wrong, ensemble.score(~wrong))
        return predictions


@dataclass(frozen=True)
class Problem:
    """What stays fixed while climbing."""

    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    ball: Ball
    steps: int
    kappa: float
    first_step: float = FIRST_STEP

    def delta(self, found: Found) -> Tensor:
        return found.x_adv.to(working_dtype(self.x)) - self.x


def chase(problem: Problem, found: Found, index: Tensor, target: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Try to fool all members of `target` (M, n) at once on the samples `index` (n,), from `delta`.

    Projected steepest descent with momentum on sum_i relu(zeta_i + kappa eps)^2 / 2 over the targeted members,
    zeta_i their signed distance to the decision plane: in units of length, so that no member's logit scale dominates.
    Every point seen is offered to `found`. Returns who of the n reached the target, and where.
    """
    target = target & (problem.ensemble.alpha.to(target.device) > 0)[:, None]  # the others are never asked
    reached = torch.zeros(len(index), dtype=torch.bool, device=index.device)
    where = delta.clone()
    left = torch.arange(len(index), device=index.device)
    velocity = torch.zeros_like(delta)
    for k in range(problem.steps + 1):
        here = index[left]
        x, y, ball, goal = problem.x[here], problem.y[here], problem.ball.take(here), target[:, left]
        u = ball.move(x, delta)
        push, wrong = _push(problem, u, y, ball, goal, last=k == problem.steps)
        found.offer(here, u, wrong, problem.ensemble.score(~wrong))
        hit = (wrong | ~goal).all(0)
        reached[left[hit]], where[left[hit]] = True, delta[hit]
        keep = (~hit).nonzero()[:, 0]
        if k == problem.steps or not len(keep):
            break
        left, x, delta, ball = left[keep], x[keep], delta[keep], ball.take(keep)
        velocity = MOMENTUM * velocity[keep] + push[keep]
        eta = problem.first_step * ball.radius(x) * (1 + math.cos(math.pi * k / problem.steps)) / 2
        delta = ball.project(delta - per_sample(eta, x) * ball.norm.steepest(velocity), x)
    return reached, where


def _push(problem: Problem, u: Tensor, y: Tensor, ball: Ball, goal: Tensor, last: bool) -> tuple[Tensor, Tensor]:
    """The gradient of the objective at u, scaled to dual norm 1, and the (M, n) members that are wrong at u."""
    total = torch.zeros_like(u, dtype=working_dtype(u))
    wrong = torch.zeros_like(goal)
    for i in problem.ensemble.order:
        with torch.set_grad_enabled(not last and bool(goal[i].any())):
            leaf = u.detach().requires_grad_(torch.is_grad_enabled())
            logits = problem.ensemble.members[i](leaf)
            wrong[i] = predictions_of(logits.detach()) != y
            if not leaf.requires_grad:
                continue
            h = margin(logits, y)
            gradient = differentiate(h.sum(), leaf)
        w = gradient.to(total.dtype).nan_to_num(nan=0.0)
        length = ball.norm.dual(w)
        zeta = ball.norm.distance(w, h.detach())
        violation = (zeta + problem.kappa * ball.radius(u)).clamp(min=0)
        weight = torch.where(goal[i] & (length > 0), violation / torch.where(length > 0, length, 1), 0)
        total += per_sample(weight, w) * w
    size = ball.norm.dual(total)
    return total / per_sample(torch.where(size > 0, size, 1), total), wrong


def climb(
    problem: Problem, found: Found, hopeless: Tensor, order: Tensor, delta: Tensor, held: Tensor, among: Tensor
) -> None:
    """Greedy growth on the samples `among` (B,): for each rank r add member order[r] to the set `held` at `delta`.

    Each attempt starts at the current perturbation, then from zero. A sample is left alone once even all
    members still to come could not beat what was found.
    """
    open_members = ~hopeless & ~held
    for i in order:
        add = torch.zeros_like(held).scatter_(0, i[None], True)
        promising = problem.ensemble.score(~(held | open_members)) < found.v
        wanted = among & promising & (open_members & add).any(0)
        for start in (delta, torch.zeros_like(delta)):
            index = wanted.nonzero()[:, 0]
            if not len(index):
                break
            reached, where = chase(problem, found, index, (held | add)[:, index], start[index])
            hit = index[reached]
            delta[hit], held[:, hit] = where[reached], (held | add)[:, hit]
            moved = (delta != 0).flatten(1).any(1)  # where it did not, zero was the start already
            wanted = wanted.index_fill(0, hit, False) & moved
        open_members &= ~add


def swap(problem: Problem, found: Found, hopeless: Tensor) -> None:
    """For each pair: drop a fooled member j for a heavier one i, keeping the rest."""
    alpha = problem.ensemble.alpha.tolist()
    for i in problem.ensemble.order:
        for j in reversed(problem.ensemble.order):
            if alpha[i] <= alpha[j]:
                continue
            index = (~found.wrong[i] & ~hopeless[i] & found.wrong[j] & (found.v > 0)).nonzero()[:, 0]
            if len(index):
                goal = found.wrong[:, index].clone()
                goal[i], goal[j] = True, False
                chase(problem, found, index, goal, problem.delta(found)[index])


def _until_maximal(problem: Problem, found: Found, hopeless: Tensor, order: Tensor, among: Tensor) -> None:
    """Climb again wherever the last pass found something, since the set it found may be another one."""
    for _ in range(len(order)):
        if not bool(among.any()):
            return
        before = found.v.clone()
        climb(problem, found, hopeless, order, problem.delta(found), found.wrong.clone(), among)
        among = found.v < before


@register("climb", label="Climb", help="adds one fooled member after another")
@dataclass(frozen=True)
class Climb(Attack):
    """Starts where another attack ended, then adds members one by one; keeps whatever lowers the expected accuracy.

    First everything at once, then members by decreasing alpha until a whole pass adds none (so the result is maximal
    as far as the descent can tell), then swaps, then `orders - 1` fresh climbs from random points in random orders.
    """

    start: Attack | None = None
    steps: int = 20
    orders: int = 2
    kappa: float = 0.02  # in units of eps: how deep beyond its plane a fooled member is pushed
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("orders", self.orders)
        if not 0 <= self.kappa < math.inf:
            raise InputError(f"kappa is {self.kappa!r}; it must be a number >= 0, in units of eps")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.start is not None:
            self.start.check_fit(members, classes, ball)

    def perturb(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        found = Found.clean(ensemble, x, y)
        if self.start is not None:
            everyone = torch.arange(len(x), device=x.device)
            found.try_out(ensemble, y, everyone, self.start.perturb(ensemble, x, y, ball))
        self.improve(ensemble, x, y, ball, found, torch.zeros_like(found.wrong))
        return found.x_adv

    def improve(
        self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, found: Found, hopeless: Tensor
    ) -> None:
        """The search itself; members marked in `hopeless` (M, B) are never targeted."""
        problem = Problem(ensemble, x, y, ball, self.steps, self.kappa)
        hopeless = hopeless | (ensemble.alpha.to(x.device) == 0)[:, None]
        index = ((~hopeless & ~found.wrong).any(0) & (found.v > 0)).nonzero()[:, 0]
        if len(index):
            chase(problem, found, index, ~hopeless[:, index], problem.delta(found)[index])
        by_alpha = torch.tensor(ensemble.order, device=x.device)[:, None].expand(-1, len(x))
        _until_maximal(problem, found, hopeless, by_alpha, found.v > 0)
        before = found.v.clone()
        swap(problem, found, hopeless)
        _until_maximal(problem, found, hopeless, by_alpha, found.v < before)
        for r in range(1, self.orders):
            shuffled = uniform(sample_keys(x, self.seed + r), len(by_alpha), stream=4).argsort(1).T
            afresh = ball.random_start(x, self.seed + r), torch.zeros_like(found.wrong)
            climb(problem, found, hopeless, by_alpha.gather(0, shuffled), *afresh, among=found.v > 0)
