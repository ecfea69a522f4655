"""Free adversarial training (Shafahi et al. 2019): every backward pass updates the weights and the perturbation."""

from __future__ import annotations

import torch
from torch import Tensor

from recarc.geometry import per_sample
from recarc.training.method import Method
from recarc.training.step_context import Team


class Free(Method):
    """Each batch is replayed m times (`replays`); delta persists from batch to batch and takes steps of size eps."""

    name = "free"
    summary = "free adversarial training, the paper's method for ImageNet"
    wants_input_gradient = True

    def setup(self, team: Team, x: Tensor) -> None:
        team.memory["delta"] = torch.zeros_like(x)

    def attacked(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        ball = team.the_ball()
        return ball.move(x, ball.project(team.memory["delta"], x))

    def after(self, team: Team, x: Tensor, x_adv: Tensor, gradient: Tensor) -> None:
        ball, delta = team.the_ball(), team.memory["delta"]
        moved = delta + per_sample(ball.radius(x), x) * ball.norm.steepest(gradient.float().nan_to_num(nan=0.0))
        delta.copy_(ball.project(moved, x))

    def probe(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        return team.attack_on(team.victims[0], x, y)
