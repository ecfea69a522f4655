"""A new attack as CONTRIBUTING describes it: this class is all there is to write."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recarc.attacks import Attack, Best, Problem
from recarc.attacks.registry import register


@register("random_points", label="Random points", help="the best of a few random points of the ball")
@dataclass(frozen=True)
class RandomPoints(Attack):
    """No gradients: `tries` points drawn uniformly from the ball, the best is kept per sample."""

    tries: int = 5
    seed: int = 0

    def perturb(self, problem: Problem) -> Tensor:
        x, ball, best = problem.x, problem.ball, Best.clean(problem)
        for t in range(self.tries):
            x_adv = ball.move(x, ball.random_start(x, self.seed + t))
            best.consider(problem, x_adv)
        return best.x_adv
