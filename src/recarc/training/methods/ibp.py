"""Certified training: interval bounds (Gowal et al. 2018), helped by CROWN's at first (Zhang et al. 2020)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.exact.bounds import Bounds, Linear, bounds
from recarc.exact.network import Network
from recarc.geometry import Ball
from recarc.training.method import LossTerms, Method, StepContext
from recarc.training.recipes import Recipe

RAMP = (0.05, 0.6)  # the part of the run in which eps grows to its value, and the loss moves from clean to bounds
KAPPA = 0.5  # weight of the clean loss at the end


class IBP(Method):
    """kappa CE(f(x), y) + (1 - kappa) CE(-lowest margins over the ball, y).

    The lowest margins are beta times those of CROWN-IBP plus 1 - beta times those of intervals. During the ramp-up eps
    grows from 0, kappa falls from 1 to 1/2 and beta from the recipe's `crown` (1) to 0; without CROWN a step of a CNN
    costs a fraction. Batch norm is bounded with its running statistics.
    """

    summary = "certified training with interval bounds, ramped up, and CROWN-IBP (Gowal et al. 2018, Zhang et al. 2020)"
    capturable = False  # the ramp is steered in Python
    half_precision = False

    def __init__(self) -> None:
        self.networks: dict[int, Network] = {}
        self.certified: Tensor | None = None  # the validation batch on which `score` counts certified samples

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        """Bounds need Adam and a long ramp; neither weight decay nor a weight average, which would lag behind it."""
        adam = replace(base, optimizer="adam", lr=1e-3, weight_decay=0.0, label_smoothing=0.0, ema=0.0)
        if name == "paper":
            return replace(adam, epochs=100)
        if data == "digits":
            return replace(adam, epochs=60, lr=5e-3)
        if data in ("mnist", "fashion_mnist"):
            return replace(adam, epochs=20, lr=1e-2)
        return replace(adam, epochs=30, lr=3e-3, crop=False)  # bounds underfit as it is: crops cost them points

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        done = ramp(context.progress)
        kappa, ball = 1 - (1 - KAPPA) * done, scaled(context.required_ball(), done)
        clean, worst, beta = x.new_zeros(()), x.new_zeros(()), context.recipe.crown * (1 - done)
        for member in context.trained:
            clean = clean + context.loss(member(x), y)
            worst = worst + context.loss(-self.lowest_margins(member, x, y, ball, beta), y)
        return {"ce": kappa * clean, "bound": (1 - kappa) * worst}

    def bounds_of(self, member: nn.Module, x: Tensor, ball: Ball) -> Bounds:
        """Interval bounds of a member in training, differentiable in its weights."""
        if id(member) not in self.networks:
            self.networks[id(member)] = Network(member, x.shape[1:])
        return bounds(self.networks[id(member)], x, ball)

    def lowest_margins(self, member: nn.Module, x: Tensor, y: Tensor, ball: Ball, beta: float) -> Tensor:
        """(B, C) lower bounds of f_y - f_c over the ball; 0 for c = y."""
        known = self.bounds_of(member, x, ball)
        assert known.logits is not None
        low, high = known.logits
        own = F.one_hot(y, low.shape[1]).bool()
        lowest = (low.gather(1, y[:, None]) - high).masked_fill(own, 0.0)
        if beta == 0:
            return lowest
        crown = linear_margins(known, y).lowest.reshape(lowest.shape)
        return beta * crown.masked_fill(own, 0.0) + (1 - beta) * lowest

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """The same images: on them `score` counts the certified ones."""
        self.certified = x.clone()
        return self.certified

    def score(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        if x is not self.certified:
            return super().score(context, x, y)
        ball = context.required_ball()
        shares = [self.certified_share(self.lowest_margins(m, x, y, ball, beta=0.0), y) for m in context.trained]
        return torch.stack(shares).mean(0)

    @staticmethod
    def certified_share(lowest: Tensor, y: Tensor) -> Tensor:
        others = lowest.scatter(1, y[:, None], torch.inf)
        return (others.amin(1) > 0).float()


def linear_margins(known: Bounds, y: Tensor) -> Linear:
    """CROWN's linear bounds of every margin, a row for each sample and class."""
    assert known.logits is not None
    classes = known.logits[0].shape[1]
    eye = torch.eye(classes, dtype=known.x.dtype, device=known.x.device)
    rows = (eye[y][:, None] - eye).flatten(0, 1)
    sample = torch.arange(len(known.x), device=known.x.device).repeat_interleave(classes)
    return known.linear(known.network.output, rows, sample)


def ramp(progress: float) -> float:
    begin, end = RAMP
    return min(max((progress - begin) / (end - begin), 0.0), 1.0)


def scaled(ball: Ball, factor: float) -> Ball:
    return replace(ball, eps=ball.eps * factor)
