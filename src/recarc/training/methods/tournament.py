"""Adversarial training of members that lean different ways between every two classes, in cycles."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from recarc.losses import cross_entropy
from recarc.training.method import LossTerms, Stage, StepContext
from recarc.training.methods.at import AT


class Tournament(AT):
    """`at` on logits f_c + beta A_yc, A_yc = +-1 with A_cy = -A_yc; every second member has -A in place of A.

    Between the classes y and c a member leans to y where A_yc = 1: it holds y against c by a margin of beta, and in
    exchange gives c up to y. As A is not an order of the classes but a tournament, each class is held against about
    half of the others. Two members with opposite A can be fooled alone, but where one gives way the other holds: a
    perturbation for both must lead to two classes at once. beta is the recipe's `diversity`; it costs what `iat` costs.
    """

    summary = (
        "as `iat`, but between every two classes one half of the members leans to one, the rest to the other; our own"
    )
    default_members = 2
    min_members = 2

    side = 1.0  # of A; -1 in every second member's stage

    def plan(self, members: int, pretrained: int) -> list[list[Stage]]:
        opposite = copy.copy(self)
        opposite.side = -self.side
        return [[Stage((i,), method=opposite if i % 2 else self) for i in range(pretrained, members)]]

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd(lambda u: cross_entropy(self.leaning(context, context.victims[0](u), y), y), x)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        return {"ce": context.loss(self.leaning(context, context.trained[0](x_adv), y), y)}

    def leaning(self, context: StepContext, logits: Tensor, y: Tensor) -> Tensor:
        table = tournament(logits.shape[1], logits.device)
        return logits.float() + context.recipe.diversity * self.side * table[y]


def tournament(classes: int, device: torch.device) -> Tensor:
    """(C, C): A_yc = (-1)^(c - y) sign(c - y), so that neighbours of a class alternate."""
    c = torch.arange(classes, device=device)
    ahead = c - c[:, None]
    return (ahead.sign() * (1 - 2 * (ahead.abs() % 2))).float()
