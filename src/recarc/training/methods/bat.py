"""Boosted adversarial training (Pinot et al. 2020): each member learns the adversarial examples of its predecessors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from recarc.training.method import Method, Stage, StepContext, expected_loss
from recarc.training.methods.at import AT
from recarc.training.recipes import Recipe


class BAT(Method):
    """f_1 by adversarial training (or pretrained); f_2 on PGD examples of f_1, which stays fixed.

    For M > 2, f_m is trained on adaptive PGD examples of the mixture of f_1 .. f_(m-1), in which each
    newcomer gets probability 0.1. For M = 2 that is alpha = (0.9, 0.1), the paper's optimum.
    """

    summary = (
        "first member by `at` (or `--start`), each further one on the adversarial examples of its predecessors; "
        "alpha (0.9, 0.1) (Pinot et al. 2020)"
    )
    default_members = 2
    min_members = 2
    attacks_fixed_only = True
    newcomer = 0.1

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        # What the newcomer adds under adaptive PGD rests on its large gradients, and smoothed labels keep them small.
        return replace(base, label_smoothing=0.0)

    def plan(self, members: int, pretrained: int) -> list[list[Stage]]:
        first = [] if pretrained else [[Stage((0,), method=AT())]]
        return first + [[Stage((i,), fixed=tuple(range(i)))] for i in range(max(pretrained, 1), members)]

    def alpha(self, members: int) -> Sequence[float]:
        alpha = [1.0]
        for _ in range(1, members):
            alpha = [a * (1 - self.newcomer) for a in alpha] + [self.newcomer]
        return alpha

    def training_alpha(self, fixed: int, trained: int) -> list[float]:
        return [*self.alpha(fixed), *([0.0] * trained)]

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd(lambda u: expected_loss(context.fixed, context.alpha[: len(context.fixed)], u, y), x)
