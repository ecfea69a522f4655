"""The challenge: attack a random few of the pairs that make the floor again, much harder and in other ways.

Figure and floor come from the same attacks, so the weaker these are, the better the two agree. A pair of a member and a
sample that withstood them all is drawn with a known probability; how many of those drawn fall now tells how many of the
others would (see `recarc.evaluation.floor_error`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recarc.attacks.autopgd import AutoPGD
from recarc.attacks.problem import Best, Problem
from recarc.attacks.square import Square
from recarc.attacks.unmasking import smoothed
from recarc.attacks.value_search import ValueSearch
from recarc.ensemble import RandomizedEnsemble
from recarc.randomness import sample_keys, uniform

STREAM = 5  # of a sample's random numbers
FRESH = 104_729  # added to the seed: other starts than those of the stages
TARGETS, CHOICES = 9, 4
WIDE_STEPS = 5  # times `smooth_steps`
FELL, SPARED, CHALLENGED = 0, 1, 2  # a pair: fooled before the challenge, not drawn, drawn


@dataclass(frozen=True)
class Challenge:
    """How hard, and how many: just enough pairs that, if none falls, the floor is too high by `allowed` at most."""

    steps: int  # of AutoPGD towards each of the nine likeliest classes
    queries: int  # of Square
    smooth_steps: int  # of AutoPGD along the mean gradient of a few random neighbours; five times as many of wide ones
    most: float  # the largest share of the pairs that is drawn; they are dear
    allowed: float
    values: int = 128  # of ValueSearch in each round, for p = 1

    def longer(self, times: int) -> Challenge:
        return replace(self, steps=times * self.steps, smooth_steps=times * self.smooth_steps)

    def share(self, samples: int, heaviest: float) -> float:
        """The probability with which a pair of the heaviest member is drawn in a run on this many samples."""
        needed = math.log(20) * heaviest / (self.allowed * max(samples, 1))  # (1 - share)^(allowed n / alpha) = 5 %
        return round(min(-math.expm1(-needed), self.most), 6)

    def run(self, problem: Problem, best: Best, share: float, seed: int) -> Tensor:
        """Challenge pairs, improving `best`; returns (M, B) int8 what happened to each: FELL, SPARED or CHALLENGED."""
        standing = ~best.ever_wrong & (problem.ensemble.alpha.to(problem.x.device) > 0)[:, None]
        drawn = standing & draw(problem.ensemble, problem.x, share, seed)
        for i in problem.ensemble.order:
            index = drawn[i].nonzero()[:, 0]
            for x_adv in self._attacks(problem.take(index).on_member(i), seed + FRESH) if len(index) else ():
                best.consider(problem, x_adv, index)
        return standing.to(torch.int8) + drawn.to(torch.int8)

    def _attacks(self, problem: Problem, seed: int) -> Iterator[Tensor]:
        """Points against a single member, from one attack after another; each starts where all before it failed."""
        x_adv = towards_all(AutoPGD(steps=self.steps, loss="dlr_targeted", seed=seed), problem)
        yield x_adv
        near, wide = (
            replace(problem, ensemble=smoothed(problem.ensemble, problem.ball, wide)) for wide in (False, True)
        )
        margin = AutoPGD(steps=self.smooth_steps, loss="margin", seed=seed)
        search = ValueSearch(values=self.values, seed=seed)
        by_value = [(replace(search, choice=c), problem) for c in range(CHOICES)] if problem.ball.norm.sparse else []
        for attack, seen in (
            (Square(queries=self.queries, seed=seed), problem),
            *by_value,
            (margin, near),
            (replace(margin, steps=WIDE_STEPS * margin.steps), wide),
        ):
            left = problem.ensemble.correct(x_adv, problem.y)[0].nonzero()[:, 0]
            if not len(left):
                return
            x_adv = x_adv.index_copy(0, left, attack.perturb(seen.take(left)))
            yield x_adv


def draw(ensemble: RandomizedEnsemble, x: Tensor, share: float, seed: int) -> Tensor:
    """(M, B): each pair is drawn with probability 1 - (1 - share)^(alpha_i / max alpha), independently.

    So what a pair weighs in the floor is what it weighs in the draw. The numbers are the sample's own: the same pairs
    are drawn in any batch.
    """
    alpha = ensemble.alpha.to(x.device)
    chances = 1 - (1 - share) ** (alpha / alpha.max())
    return (uniform(sample_keys(x, seed), len(alpha), stream=STREAM) < chances).T


def towards_all(attack: AutoPGD, problem: Problem) -> Tensor:
    """AutoPGD towards each of the likeliest other classes, all at once: so few pairs would leave a device idle.

    The targeted loss needs four classes; with fewer there is the margin.
    """
    if problem.classes < 4:
        return replace(attack, loss="margin").perturb(problem)
    count = min(TARGETS, problem.classes - 1)
    rivals = problem.clean_logits[0].scatter(1, problem.y[:, None], -torch.inf).topk(count).indices
    rows = torch.arange(len(problem), device=rivals.device).repeat_interleave(count)
    copies = problem.take(rows)
    best = Best.clean(copies)
    attack._run(copies, best, rivals.flatten())
    first = best.v.reshape(-1, count).argmin(1)  # 0 where one of them succeeded
    return best.x_adv.unflatten(0, (-1, count))[torch.arange(len(problem), device=first.device), first]
