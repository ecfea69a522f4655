"""Gradient alignment (Kariyappa and Qureshi 2019): members whose input gradients point in different directions."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from recarc.losses import cross_entropy
from recarc.training.method import LossTerms, Method, StepContext
from recarc.training.recipes import Recipe, for_diversity
from recarc.training.second_order import inputs_only, second_order
from recarc.training.streams import side_by_side

COHERENCE = 0.5


class GAL(Method):
    """mean_i CE_i + 0.5 log sum_{i<j} exp cos(grad_x l_i, grad_x l_j)."""

    summary = "members trained jointly for misaligned input gradients (Kariyappa and Qureshi 2019)"
    default_members = 3
    min_members = 2
    joint = True
    needs_ball = False

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        return for_diversity(base, name)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        logits, gradients = logits_and_gradients(context, x_adv, y)
        ce = torch.stack([context.loss(row, y) for row in logits]).mean()
        weight = context.recipe.diversity * COHERENCE
        return {"ce": ce, "coherence": weight * torch.logsumexp(pairwise_cosines(gradients), 0).mean()}


def logits_and_gradients(context: StepContext, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(M, B, C) logits and (M, B, D) gradients of each member's cross-entropy in x; both differentiable in weights."""
    x = x.detach().requires_grad_()

    def one(member: nn.Module) -> tuple[Tensor, Tensor]:
        with second_order():
            z = member(x).float()
        with inputs_only():
            (gradient,) = torch.autograd.grad(cross_entropy(z, y).sum(), x, create_graph=True)
        return z, gradient.float().flatten(1)

    outputs, gradients = zip(*side_by_side([partial(one, member) for member in context.trained], x.device))
    return torch.stack(outputs), torch.stack(gradients)


def pairwise_cosines(gradients: Tensor) -> Tensor:
    """(M, B, D) -> (pairs, B) cosines of i < j."""
    unit = gradients / gradients.norm(dim=2, keepdim=True).clamp(min=1e-12)
    pairs = [(i, j) for i in range(len(unit)) for j in range(i + 1, len(unit))]
    return torch.stack([(unit[i] * unit[j]).sum(1) for i, j in pairs])
