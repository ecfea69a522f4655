"""Climb: grow the set of members that one perturbation fools at once, up the lattice of fooled subsets.

After Gnecco-Heredia, Negrevergne and Chevaleyre: an attack on a mixture should be effective and maximal, that is,
stop only where no single further member can be fooled as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_at_least, check_count, differentiate
from recarc.attacks.problem import Best, Problem
from recarc.attacks.registry import register
from recarc.combined import majority
from recarc.ensemble import RandomizedEnsemble, predictions_of, rounded
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import margin, margin_over
from recarc.randomness import sample_keys, uniform

MOMENTUM = 0.75
AT_A_TIME = 4  # common classes that a round tries in one batch, where images are small enough to leave a GPU idle
SMALL = 2**12  # numbers in an image
ROUND = 10_000  # between the seeds of two rounds: more than there are classes to try


class Attempt(NamedTuple):
    """Samples (n,), the members (M, n) to fool there at once, from where, and the class (n,) to lead them to."""

    samples: Tensor
    goal: Tensor
    delta: Tensor
    rival: Tensor


@dataclass(frozen=True)
class Search:
    """Improves `best` in place, from one perturbation to the next. Lengths are in units of eps."""

    problem: Problem
    best: Best
    steps: int
    kappa: float  # how deep beyond its plane a member is pushed
    first_step: float = 0.5  # falls to 0 along a cosine

    @property
    def ensemble(self) -> RandomizedEnsemble:
        return self.problem.ensemble

    def delta(self) -> Tensor:
        """The perturbations of the best points."""
        return self.best.x_adv.to(working_dtype(self.problem.x)) - self.problem.x

    def chase(self, index: Tensor, target: Tensor, delta: Tensor, rival: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Try to fool all members of `target` (M, n) at once on the samples `index` (n,), from `delta`.

        Projected steepest descent with momentum on sum_i relu(zeta_i + kappa eps)^2 / 2 over the targeted members,
        zeta_i their signed distance to the decision plane: a length, so that no member's logit scale dominates. The
        plane is the one towards the class `rival` (n,), the same for all members, or else each member's nearest.
        Every point visited is offered to `best`. Returns which of the n samples reached the target, and where.
        """
        goal = target & (self.ensemble.alpha.to(target.device) > 0)[:, None]  # the others are never asked
        reached = torch.zeros(len(index), dtype=torch.bool, device=index.device)
        if not len(index):
            return reached, delta
        where, left = delta.clone(), torch.arange(len(index), device=index.device)
        part, velocity, nobody = self.problem.take(index), torch.zeros_like(delta), [False] * len(goal)
        aimed_at = goal.any(1).tolist()
        for k in range(self.steps + 1):
            u = part.ball.move(part.x, delta)
            push, wrong = self._push(part, u, goal, nobody if k == self.steps else aimed_at, rival)
            self.best.offer(index[left], u, wrong, self.ensemble.score(~wrong))
            hit = (wrong | ~goal).all(0)
            if bool(hit.any()):  # rare: most steps need no look at which
                reached[left[hit]], where[left[hit]] = True, delta[hit]
                keep = (~hit).nonzero()[:, 0]
                left, part, goal = left[keep], part.take(keep), goal[:, keep]
                delta, velocity, push = delta[keep], velocity[keep], push[keep]
                rival, aimed_at = None if rival is None else rival[keep], goal.any(1).tolist()
            if k == self.steps or not len(left):
                break
            velocity = MOMENTUM * velocity + push
            eta = self.first_step * part.ball.radius(part.x) * (1 + math.cos(math.pi * k / self.steps)) / 2
            step = per_sample(eta, part.x) * part.ball.step_direction(-velocity, part.x, delta)
            delta = part.ball.project(delta + step, part.x)
        return reached, where

    def chase_apart(self, attempts: Sequence[Attempt]) -> None:
        """Several chases side by side, all from the best points as they are now; a sample may be in several."""
        index, goal, delta, rival = (torch.cat(parts, dim) for parts, dim in zip(zip(*attempts), (0, 1, 0, 0)))
        everyone = torch.arange(len(index), device=index.device)
        apart = replace(self, problem=self.problem.take(index), best=self.best.take(index))
        apart.chase(everyone, goal, delta, rival)
        for own in everyone.split([len(attempt.samples) for attempt in attempts]):
            self.best.merge(self.problem, index[own], apart.best.take(own))

    def _push(
        self, part: Problem, u: Tensor, goal: Tensor, aimed_at: list[bool], rival: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The gradient of the objective at u, scaled to dual norm 1, and the (M, n) members that are wrong at u.

        Members that are not `aimed_at` (M) are only asked for their answers.
        """
        norm, total = part.ball.norm, torch.zeros_like(u, dtype=working_dtype(u))
        answers = []
        for i in self.ensemble.order:
            with torch.set_grad_enabled(aimed_at[i]):
                leaf = u.detach().requires_grad_(torch.is_grad_enabled())
                logits = self.ensemble.members[i](leaf)
                answers.append(logits.detach())
                if not leaf.requires_grad:
                    continue
                h = margin(logits, part.y) if rival is None else margin_over(logits, part.y, rival)
                gradient = differentiate(h.sum(), leaf)
            w = gradient.to(total.dtype).nan_to_num(nan=0.0)
            length = norm.dual(w)
            zeta = norm.distance(w, h.detach())
            violation = (zeta + self.kappa * part.ball.radius(u)).clamp(min=0)
            weight = torch.where(goal[i] & (length > 0), violation / torch.where(length > 0, length, 1), 0)
            total += per_sample(weight, w) * w
        size = norm.dual(total)
        return total / per_sample(torch.where(size > 0, size, 1), total), self.fooled(answers, part.y)

    def fooled(self, answers: Sequence[Tensor], y: Tensor) -> Tensor:
        """(M, n) members that are wrong, by the logits of those that are ever drawn, in their order."""
        wrong = torch.zeros(len(self.ensemble), len(y), dtype=torch.bool, device=y.device)
        for i, logits in zip(self.ensemble.order, answers):
            wrong[i] = predictions_of(logits) != y
        return wrong

    def climb(self, hopeless: Tensor, order: Tensor, delta: Tensor, held: Tensor, among: Tensor) -> None:
        """Greedy growth on the samples `among` (B,): for each rank r add member order[r] to the set `held` at `delta`.

        Each attempt starts at the current perturbation, then from zero. A sample is left alone once even all
        members still to come could not beat the best point.
        """
        open_members = ~hopeless & ~held
        for i in order:
            add = torch.zeros_like(held).scatter_(0, i[None], True)
            promising = self.ensemble.score(~(held | open_members)) < self.best.v
            wanted = among & promising & (open_members & add).any(0)
            for start in (delta, torch.zeros_like(delta)):
                index = wanted.nonzero()[:, 0]
                if not len(index):
                    break
                reached, where = self.chase(index, (held | add)[:, index], start[index])
                hit = index[reached]
                delta[hit], held[:, hit] = where[reached], (held | add)[:, hit]
                moved = (delta != 0).flatten(1).any(1)  # otherwise zero was the start already
                wanted = wanted.index_fill(0, hit, False) & moved
            open_members &= ~add

    def climb_until_maximal(self, hopeless: Tensor, order: Tensor, among: Tensor) -> None:
        """Climb again wherever the last pass improved something, since the set it reached may be another one."""
        for _ in range(len(order)):
            if not bool(among.any()):
                return
            before = self.best.v.clone()
            self.climb(hopeless, order, self.delta(), self.best.wrong.clone(), among)
            among = self.best.v < before

    def needed(self, hopeless: Tensor, order: Tensor) -> Tensor:
        """(M, B): members in this order, as many as it takes to beat the best point; none where all are too few."""
        goal = torch.zeros_like(hopeless)
        for i in order:
            add = torch.zeros_like(goal).scatter_(0, i[None], True) & ~hopeless
            goal |= add & (self.ensemble.score(~goal) >= self.best.v)
        return goal & (self.ensemble.score(~goal) < self.best.v)

    def swap(self, hopeless: Tensor) -> None:
        """For each pair: drop a fooled member j for a heavier one i, keeping the rest."""
        alpha, best = self.ensemble.alpha.tolist(), self.best
        for i in self.ensemble.order:
            for j in reversed(self.ensemble.order):
                if alpha[i] <= alpha[j]:
                    continue
                index = (~best.wrong[i] & ~hopeless[i] & best.wrong[j] & (best.v > 0)).nonzero()[:, 0]
                if len(index):
                    goal = best.wrong[:, index].clone()
                    goal[i], goal[j] = True, False
                    self.chase(index, goal, self.delta()[index])


class VoteSearch(Search):
    """On the members of a vote, all of whom count as wrong where the vote is, and none elsewhere."""

    def fooled(self, answers: Sequence[Tensor], y: Tensor) -> Tensor:
        _, mean, winner = majority(torch.stack(list(answers)))
        lost = (winner[:, 0] != y) | mean.isnan().any(1)
        return lost.expand(len(self.ensemble), -1)


@register("climb", label="Climb", help="adds one fooled member after another")
@dataclass(frozen=True)
class Climb(Attack):
    """Starts where another attack ended, then adds members one by one; keeps whatever lowers the expected accuracy.

    First everything at once, then members by decreasing alpha until a whole pass adds none (so the result is maximal
    as far as the descent can tell), then swaps, then `orders - 1` fresh climbs from random points in random orders.
    Last come `rounds` of a longer search on what is left, see `search_in_rounds`.
    """

    start: Attack | None = None
    steps: int = 20
    orders: int = 2
    kappa: float = 0.02  # in units of eps: how deep beyond its plane a fooled member is pushed
    seed: int = 0
    rounds: int = 0
    round_steps: int = 50  # of each descent of a round
    targets: int = 8  # classes that a round tries as the common one

    def __post_init__(self) -> None:
        for name in ("steps", "orders", "round_steps"):
            check_count(name, getattr(self, name))
        for name in ("rounds", "targets"):
            check_at_least(name, getattr(self, name), 0)
        if not 0 <= self.kappa < math.inf:
            raise InputError(f"kappa is {self.kappa!r}; it must be a number >= 0, in units of eps")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.start is not None:
            self.start.check_fit(members, classes, ball)

    def perturb(self, problem: Problem) -> Tensor:
        best = Best.clean(problem)
        if self.start is not None:
            best.consider(problem, self.start.perturb(problem))
        nobody = torch.zeros_like(best.wrong)
        self.improve(problem, best, nobody)
        index = (best.v > 0).nonzero()[:, 0]
        if len(index) and self.rounds:
            for found in self.search_in_rounds(problem.take(index), best.take(index), nobody[:, index]):
                best.offer(index, found.x_adv, found.wrong, found.v)
        return best.x_adv

    def improve(self, problem: Problem, best: Best, hopeless: Tensor) -> None:
        """The climb itself; members marked in `hopeless` (M, B) are never targeted."""
        ensemble, x = problem.ensemble, problem.x
        search = Search(problem, best, self.steps, self.kappa)
        hopeless = hopeless | (ensemble.alpha.to(x.device) == 0)[:, None]
        index = ((~hopeless & ~best.wrong).any(0) & (best.v > 0)).nonzero()[:, 0]
        if len(index):
            search.chase(index, ~hopeless[:, index], search.delta()[index])
        by_alpha = torch.tensor(ensemble.order, device=x.device)[:, None].expand(-1, len(x))
        search.climb_until_maximal(hopeless, by_alpha, best.v > 0)
        before = best.v.clone()
        search.swap(hopeless)
        search.climb_until_maximal(hopeless, by_alpha, best.v < before)
        for r in range(1, self.orders):
            shuffled = uniform(sample_keys(x, self.seed + r), len(by_alpha), stream=4).argsort(1).T
            afresh = problem.ball.random_start(x, self.seed + r), torch.zeros_like(best.wrong)
            search.climb(hopeless, by_alpha.gather(0, shuffled), *afresh, among=best.v > 0)

    def search_in_rounds(
        self, problem: Problem, best: Best, hopeless: Tensor, kind: type[Search] = Search
    ) -> list[Best]:
        """What each of `rounds` finds by itself from `best`, which stays as it is: they differ in random numbers only.

        A round tries, on every sample, sets of members just large enough to beat the best point, each set from another
        random point: first towards each member's own nearest class, then towards each of the likeliest classes in
        common, a few of these at a time. All rounds run as one batch, as copies of the samples.
        """
        ensemble, ball, x = problem.ensemble, problem.ball, problem.x
        hopeless = hopeless | (ensemble.alpha.to(x.device) == 0)[:, None]
        copies = torch.arange(len(x), device=x.device).repeat(self.rounds)
        found, hopeless = best.take(copies), hopeless[:, copies]
        search = kind(problem.take(copies), found, self.round_steps, self.kappa)
        seeds = [ROUND * (1 + r + self.rounds * self.seed) for r in range(self.rounds)]
        order = torch.tensor(ensemble.order, device=x.device)[:, None].expand(-1, len(copies))

        def attempt(t: int, rival: Tensor) -> Attempt:
            keys = torch.cat([sample_keys(x, seed + t) for seed in seeds])
            draws = uniform(keys, len(order) + 1, stream=5).T
            keeps = draws[-1] < 0.5  # half of the sets contain the members that are fooled already
            ranks = (draws[:-1] - (found.wrong & keeps).gather(0, order).to(draws.dtype)).argsort(0)
            goal = search.needed(hopeless, order.gather(0, ranks))
            index = goal.any(0).nonzero()[:, 0]
            delta = torch.cat([ball.random_start(x, seed + t) for seed in seeds])[index]
            return Attempt(index, goal[:, index], delta, rival[copies[index]])

        rivals, width = problem.rivals(self.targets).T, AT_A_TIME if x.shape[1:].numel() <= SMALL else 1
        search.chase(*attempt(0, problem.y)[:3])
        for first in range(0, len(rivals), width):
            some = range(first, min(first + width, len(rivals)))
            search.chase_apart([attempt(1 + t, rivals[t]) for t in some])
        search.climb_until_maximal(hopeless, order, found.v < best.v[copies])
        return [found.take(own) for own in torch.arange(len(copies), device=x.device).chunk(self.rounds)]

    def against_vote(self, voters: Problem, best: Best) -> Iterator[Tensor]:
        """Points that may fool the vote of these members; `best` knows who was fooled alone: at least half of them.

        First the climb, as if one of them were drawn: often it fools them all. Two that it fools to different classes
        may leave the vote as it was, so then come rounds in which sets of members just large enough for a majority
        are led to a common class.
        """
        self.improve(voters, best, hopeless=~best.ever_wrong)
        yield best.x_adv
        if not self.rounds:
            return
        part, count = Best.clean(voters), len(voters.ensemble)
        enough = best.ever_wrong.sum(0).clamp(max=count // 2 + 1)
        part.v, part.wrong = rounded((count + 1 - enough).double() / count), torch.zeros_like(part.wrong)
        for found in self.search_in_rounds(voters, part, ~best.ever_wrong, VoteSearch):
            yield found.x_adv
