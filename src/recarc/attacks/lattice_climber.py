"""The lattice climber attack on mixtures (Gnecco-Heredia, Negrevergne and Chevaleyre, arXiv 2307.10788 and 2506.10888).

Written from the idea of the papers alone. Our own choices: the schedule of the steps and the value of kappa.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count, differentiate
from recarc.attacks.problem import Problem
from recarc.attacks.registry import register
from recarc.ensemble import predictions_of
from recarc.errors import InputError
from recarc.geometry import per_sample, working_dtype
from recarc.losses import margin


@register("lattice_climber", label="Lattice climber", help="the lattice climber attack, one pass over the members")
@dataclass(frozen=True)
class LatticeClimber(Attack):
    """Goes up the lattice of subsets: the pool of fooled members grows by one member at a time, by decreasing alpha.

    A member joins if one perturbation is found that fools it and the whole pool; otherwise it is left out for good.
    On binary linear members the result is effective and maximal: what could not join a smaller pool cannot join a
    larger one. `Climb` goes on from this idea: distances for margins, several passes and starts, swaps.
    """

    steps: int = 20  # for each member that asks to join
    step_size: float = 0.5  # in units of eps; falls linearly to 0
    kappa: float = 0.01  # in logits: how far below zero a margin is pushed

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        if not 0 < self.step_size < math.inf:
            raise InputError(f"step_size is {self.step_size!r}; it must be > 0, in units of eps")
        if not 0 <= self.kappa < math.inf:
            raise InputError(f"kappa is {self.kappa!r}; it must be a number >= 0, in units of the logits")

    def perturb(self, problem: Problem) -> Tensor:
        x = problem.x
        delta = torch.zeros_like(x, dtype=working_dtype(x))
        pool = torch.zeros(len(problem.ensemble), len(x), dtype=torch.bool, device=x.device)
        for i in problem.ensemble.order:
            larger = pool.clone()
            larger[i] = True
            fooled, there = self.fool_together(problem, larger, delta)
            delta = torch.where(per_sample(fooled, x), there, delta)
            pool = torch.where(fooled, larger, pool)
        return problem.ball.move(x, delta)

    def fool_together(self, problem: Problem, pool: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Projected descent from `delta` on the reverse hinge sum_{i in pool} relu(margin_i + kappa), pool (M, B).

        Returns the samples on which it fools the whole pool, (B,), and where.
        """
        delta, fooled = delta.clone(), torch.zeros_like(problem.y, dtype=torch.bool)
        left = torch.arange(len(problem), device=delta.device)
        for k in range(self.steps + 1):
            part = problem.take(left)
            gradient, right = self._reverse_hinge(
                part, part.ball.move(part.x, delta[left]), pool[:, left], k < self.steps
            )
            fooled[left[~right]] = True
            left, x, ball = left[right], part.x[right], part.ball.take(right.nonzero()[:, 0])
            if k == self.steps or not len(left):
                break
            eta = self.step_size * (1 - k / self.steps) * ball.radius(x)
            step = per_sample(eta, x) * ball.step_direction(-gradient[right], x, delta[left])
            delta[left] = ball.project(delta[left] + step, x)
        return fooled, delta

    def _reverse_hinge(self, part: Problem, u: Tensor, pool: Tensor, more: bool) -> tuple[Tensor, Tensor]:
        """Its gradient at u if there are `more` steps to come, and whether some member of the pool is right, (n,)."""
        right = torch.zeros_like(part.y, dtype=torch.bool)
        with torch.set_grad_enabled(more):
            u = u.detach().requires_grad_(more)
            loss = u.new_zeros(())
            for i in part.ensemble.order:
                rows = pool[i].nonzero()[:, 0]  # a member is asked only where it matters
                if len(rows):
                    logits = part.ensemble.members[i](u[rows])
                    right[rows] |= predictions_of(logits.detach()) == part.y[rows]
                    loss = loss + (margin(logits, part.y[rows]) + self.kappa).clamp(min=0).sum()
            gradient = differentiate(loss, u) if more else torch.zeros_like(u)
        return gradient.to(working_dtype(u)).nan_to_num(nan=0.0), right
