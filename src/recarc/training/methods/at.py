"""Adversarial training with PGD (Madry et al. 2018), with the early stopping of Rice et al. 2020."""

from __future__ import annotations

from torch import Tensor

from recarc.training.method import Method
from recarc.training.step_context import Team


class AT(Method):
    """min_theta CE(f(x + delta), y), delta from PGD with K = 7 on f itself."""

    name = "at"
    summary = "PGD adversarial training of one member"

    def attacked(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        return team.attack_on(team.victims[0], x, y)
