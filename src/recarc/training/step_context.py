"""What a method sees of a training step: the members in their roles, the ball, and this step's random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.attacks.pgd import ascend
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample
from recarc.losses import cross_entropy
from recarc.training.recipes import Recipe
from recarc.training.shadow_models import without_weight_gradients


@dataclass
class Team:
    """`trained` members get this step's update; `victims` are the same members as the attack sees them.

    `fixed` are earlier members in evaluation mode, `alpha` the mixture's probabilities (fixed first, then trained).
    `start` is a uniform number in [0, 1) for every pixel and one more a sample; None: attacks start at x.
    """

    trained: Sequence[nn.Module]
    victims: Sequence[nn.Module]
    fixed: Sequence[nn.Module]
    recipe: Recipe
    ball: Ball | None
    alpha: Tensor
    start: Tensor | None = None
    memory: dict[str, Tensor] = field(default_factory=dict)
    host: torch.Generator | None = None  # draws that steer Python, for methods that cannot be captured

    @property
    def mixture(self) -> list[nn.Module]:
        """Every member so far as the attack sees it."""
        return [*self.fixed, *self.victims]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy with the recipe's label smoothing."""
        return F.cross_entropy(logits.float(), y, label_smoothing=self.recipe.label_smoothing)

    def pgd(self, objective: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """x + delta from the recipe's PGD on `objective` (B,), random start, no gradients to weights."""
        ball = self.the_ball()
        with torch.no_grad(), without_weight_gradients(self.mixture):
            delta = torch.zeros_like(x) if self.start is None else random_start(ball, x, self.start)
            step = self.recipe.attack_step * ball.radius(x)
            return ball.move(x, ascend(objective, x, ball, delta, self.recipe.attack_steps, step))

    def attack_on(self, member: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """PGD on one member's cross-entropy."""
        return self.pgd(lambda u: cross_entropy(member(u), y), x)

    def the_ball(self) -> Ball:
        if self.ball is None:
            raise InputError("this method attacks while training: give norm and eps, e.g. norm 'linf' and eps 8/255")
        return self.ball


def random_start(ball: Ball, x: Tensor, u: Tensor) -> Tensor:
    """A point of the ball: uniform for linf; for other norms a random direction with the radius of a uniform point.

    u is (B, D + 1) in [0, 1): unlike `Ball.random_start`, the randomness comes from outside, as a CUDA graph needs.
    """
    direction = torch.empty_like(x).copy_((2 * u[:, 1:] - 1).reshape(x.shape))  # in the memory layout of x
    reach = u[:, 0].pow(1 / direction[0].numel())
    return ball.project(ball.norm.scale_to(direction, reach * ball.radius(x)), x)


def uniform_in_ball_draws(shape: Sequence[int]) -> int:
    """How many uniform numbers `random_start` takes a sample."""
    return 1 + int(torch.Size(shape).numel())


def expected_loss(members: Sequence[nn.Module], alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """sum_i alpha_i l(f_i(x), y), (B,): what adaptive PGD increases."""
    losses = torch.stack([cross_entropy(member(x), y) for member in members])
    return (per_sample(alpha, losses) * losses).sum(0)
