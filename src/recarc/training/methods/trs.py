"""Transferability reduced smooth ensembles (Yang et al. 2021): orthogonal gradients of smooth members."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from recarc.geometry import Ball
from recarc.losses import cross_entropy
from recarc.training.method import LossTerms, Method, StepContext, random_start
from recarc.training.methods.gal import logits_and_gradients, pairwise_cosines
from recarc.training.recipes import Recipe
from recarc.training.second_order import second_order
from recarc.training.shadow_models import without_statistics, without_weight_gradients
from recarc.training.streams import side_by_side

WEIGHT, COSINE = 5.0, 2.0
# Paper: 2 times twice the squared norm of the gradient of the mean loss over 128 images. Here: of one image's loss.
SMOOTH = 2.0 * 2.0 / 128**2
SEARCH_STEPS = 3  # of the search for points with large gradients
SEARCH_BALL = Ball("linf", 8 / 255)  # if the run has no ball of its own


class TRS(Method):
    """sum_i CE_i + 5 (2 mean_{i<j} |cos(grad_i, grad_j)| + 2 mean_i 2 ||grad_i(x') / 128||_2^2).

    Of every second image x' is found near x by a short ascent on the members' squared gradient norms, of the others it
    is x: the authors' published code, too, does so for half of the batch. Of that are the weights as well, for
    gradients of the mean over a batch of 128. There the radius grows in training, and x' counts in the running
    statistics of batch norm. Here neither, as what is deployed is to know clean images.
    """

    summary = "orthogonal input gradients of smooth members (Yang et al. 2021)"
    default_members = 3
    min_members = 2
    joint = True
    needs_ball = False
    differentiates_twice = True

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        adam = replace(base, optimizer="adam", lr=2e-3, label_smoothing=0.0)
        if data == "imagenet" and name == "paper":  # not in the method's own paper
            return base
        if name == "paper":
            return replace(adam, epochs=120, lr=1e-3, weight_decay=1e-4, schedule="constant")
        if data == "digits":
            return replace(adam, lr=3e-3, diversity=0.1)  # in few epochs the cosines would dominate
        return replace(adam, epochs=min(base.epochs, 20))

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """x', half of it with large gradients; the cross-entropy and the cosines are computed at x itself."""
        ball, noise, found = context.ball or SEARCH_BALL, context.start_noise, x.clone()
        x, y = x[::2], y[::2]
        delta = torch.zeros_like(x) if noise is None else random_start(ball, x, noise[::2])
        step = 2 * ball.radius(x) / SEARCH_STEPS
        with without_weight_gradients(context.mixture), without_statistics(context.victims):
            for _ in range(SEARCH_STEPS):
                g = gradient_of_gradient_norm(context, ball.move(x, delta), y)
                delta = ball.project(delta + step[:, None, None, None] * ball.norm.steepest(g), x)
        found[::2] = ball.move(x, delta)
        return found

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        logits, gradients = logits_and_gradients(context, x, y)
        with without_statistics(context.trained):
            _, far = logits_and_gradients(context, x_adv, y)
        weight = context.recipe.diversity * WEIGHT
        return {
            "ce": torch.stack([context.loss(row, y) for row in logits]).sum(),
            "cosine": weight * COSINE * pairwise_cosines(gradients).abs().mean(),
            "smooth": weight * SMOOTH * far.square().sum(2).mean(),
        }

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return x


def gradient_of_gradient_norm(context: StepContext, x: Tensor, y: Tensor) -> Tensor:
    """The gradient in x of sum_i ||grad_x l_i(x)||^2, over the members as the attack sees them."""

    def one(member: nn.Module) -> Tensor:
        with torch.enable_grad():
            u = x.detach().requires_grad_()
            with second_order():
                loss = cross_entropy(member(u), y).sum()
            (g,) = torch.autograd.grad(loss, u, create_graph=True)
            (gradient,) = torch.autograd.grad(g.float().square().sum(), u)
        return gradient.float()

    gradients = side_by_side([partial(one, member) for member in context.victims], x.device)
    return torch.stack(gradients).sum(0).nan_to_num(nan=0.0)
