"""Projected gradient descent, Eq. (5) of the paper, on one member."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count, check_step_size, input_gradient, step_of
from recarc.attacks.problem import Problem
from recarc.attacks.registry import register
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import check_loss, loss_named


def ascend(
    objective: Callable[[Tensor], Tensor], x: Tensor, ball: Ball, delta: Tensor, steps: int, step: Tensor
) -> Tensor:
    """delta <- Pi(delta + eta mu_p(grad objective(x + delta))), `steps` times."""
    for _ in range(steps):
        g = input_gradient(objective, ball.move(x, delta))
        delta = ball.project(delta + per_sample(step, x) * ball.step_direction(g, x, delta), x)
    return delta


@dataclass(frozen=True)
class GradientAttack(Attack):
    """The knobs and the loop of PGD; subclasses define the objective to increase.

    Defaults are the paper's for CIFAR-10: 20 steps of eps/4 from zero. `random_init` is its "+R".
    """

    steps: int = 20
    step_size: float | None = None
    loss: str = "ce"
    random_init: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_step_size(self.step_size)
        loss_named(self.loss)

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        check_loss(self.loss, classes)

    def objective(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor) -> Tensor:
        """The quantity to increase, (B,)."""
        raise InputError(f"{type(self).__name__} has no objective of its own")

    def perturb(self, problem: Problem) -> Tensor:
        x, ball = problem.x, problem.ball
        zero = torch.zeros_like(x, dtype=working_dtype(x))
        delta = ball.random_start(x, self.seed) if self.random_init else zero
        step = step_of(self.step_size, 1 / 4, ball, x)
        delta = ascend(lambda u: self.objective(problem.ensemble, u, problem.y), x, ball, delta, self.steps, step)
        return ball.move(x, delta)


@register("pgd", label="PGD", help="PGD on a member drawn with alpha, in exact expectation", random_member=True)
@register("pgd1", label="PGD on member 0", help="PGD on the first member (the paper's PGD-1)", member=0)
@dataclass(frozen=True)
class PGD(GradientAttack):
    """PGD against one member; `PGD(member=0)` is the paper's PGD-1.

    The paper's randomized attacker "PGD" is `RandomAttacker(PGD())`.
    """

    member: int = 0

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        super().check_fit(members, classes, ball)
        check_member(self.member, members)

    def objective(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor) -> Tensor:
        return loss_named(self.loss)(ensemble.members[self.member](x), y)


def check_member(index: int, members: int) -> None:
    if not 0 <= index < members:
        raise InputError(f"member {index} does not exist; the ensemble has members 0..{members - 1}")
