"""Joint adversarial training: members trained against the one perturbation that fools as many of them as it can."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recarc.losses import cross_entropy, margin
from recarc.training.method import LossTerms, Method, StepContext

KAPPA = 0.2  # a fooled member is pushed until its margin is -KAPPA, in logits, and then left alone


class JAT(Method):
    """min_theta max_delta of what a randomized ensemble loses, instead of what each member loses at a point of its own.

    delta is Climb's: PGD on -sum_i relu(margin_i + kappa), in which a member that is fooled no longer counts, so that
    the steps go to the others. At that point the members share the loss -log((1/M) sum_i p_i^tau) / tau, p_i member
    i's probability of y: tau -> 0 is the mean cross-entropy, where every member must be right; the larger tau (the
    recipe's `diversity`), the more each member minds the samples on which the others fall but it does not.
    A step costs what a step of `iat` with as many members does.
    """

    summary = "members trained at once against perturbations that fool them together, as Climb seeks them (our own)"
    default_members = 2
    min_members = 2
    joint = True

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd(lambda u: -sum_of_margins(context, u, y), x)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        losses = torch.stack([cross_entropy(member(x_adv), y) for member in context.trained])
        return {"shared": len(losses) * shared(losses, context.recipe.diversity).mean()}


def sum_of_margins(context: StepContext, x: Tensor, y: Tensor) -> Tensor:
    """sum_i relu(margin_i(x) + kappa), (B,)."""
    margins = torch.stack([margin(member(x).float(), y) for member in context.mixture])
    return (margins + KAPPA).clamp(min=0).sum(0)


def shared(losses: Tensor, tau: float) -> Tensor:
    """(M, B) cross-entropies -> (B,) -log((1/M) sum_i exp(-tau l_i)) / tau; their mean for tau = 0."""
    if tau == 0:
        return losses.mean(0)
    return (math.log(len(losses)) - torch.logsumexp(-tau * losses, 0)) / tau
