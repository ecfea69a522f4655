"""Boosted adversarial training (Pinot et al. 2020): each member learns the adversarial examples of those before it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from recarc.training.method import Method, Stage
from recarc.training.methods.at import AT
from recarc.training.step_context import Team, expected_loss


class BAT(Method):
    """f_1 by adversarial training (or given); f_2 on PGD examples of f_1, which stays fixed.

    For M > 2, f_m is trained on adaptive PGD examples of the mixture of f_1 .. f_(m-1), whose probabilities follow the
    same rule at every addition: the newcomer gets 0.1. For M = 2 that is alpha = (0.9, 0.1), the paper's optimum.
    """

    name = "bat"
    summary = "boosted adversarial training: further members on the first's adversarial examples"
    members = 2
    least = 2
    newcomer = 0.1

    def plan(self, members: int, given: int) -> list[list[Stage]]:
        first = [] if given else [[Stage((0,), method=AT())]]
        return first + [[Stage((i,), fixed=tuple(range(i)))] for i in range(max(given, 1), members)]

    def alpha(self, members: int) -> Sequence[float]:
        alpha = [1.0]
        for _ in range(1, members):
            alpha = [a * (1 - self.newcomer) for a in alpha] + [self.newcomer]
        return alpha

    def mixture_alpha(self, fixed: int, trained: int) -> list[float]:
        return [*self.alpha(fixed), *([0.0] * trained)]

    def attacked(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        return team.pgd(lambda u: expected_loss(team.fixed, team.alpha[: len(team.fixed)], u, y), x)
