"""Free adversarial training (Shafahi et al. 2019): every backward pass updates the weights and the perturbation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recarc.geometry import per_sample
from recarc.training.method import Method, StepContext
from recarc.training.recipes import Recipe


class Free(Method):
    """Each batch is replayed m times (`replays`); delta persists from batch to batch and takes steps of size eps."""

    summary = "free adversarial training, `replays` updates per batch (Shafahi et al. 2019)"
    needs_input_gradient = True

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        if data == "digits":
            return replace(base, epochs=8, replays=4)
        # As many updates as without replays: epochs / m passes over the data, m = 4 on ImageNet as in the paper (90
        # epochs in total, so 22.5 passes), m = 8 on CIFAR as in Shafahi et al. 2019.
        replays = 8 if name == "paper" and data != "imagenet" else 4
        return replace(base, epochs=base.epochs / replays, replays=replays)

    def setup(self, context: StepContext, x: Tensor) -> None:
        context.buffers["delta"] = torch.zeros_like(x)

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        ball = context.required_ball()
        return ball.move(x, ball.project(context.buffers["delta"], x))

    def after_update(self, context: StepContext, x: Tensor, x_adv: Tensor, gradient: Tensor) -> None:
        ball, delta = context.required_ball(), context.buffers["delta"]
        moved = delta + per_sample(ball.radius(x), x) * ball.norm.steepest(gradient.float().nan_to_num(nan=0.0))
        delta.copy_(ball.project(moved, x))

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd_on(context.victims[0], x, y)
