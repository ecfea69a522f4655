"""Adaptive diversity promoting training (Pang et al. 2019): members that err in different directions."""

from __future__ import annotations

import torch
from torch import Tensor

from recarc.training.method import LossTerms, Method, StepContext
from recarc.training.recipes import Recipe, for_diversity

ENTROPY, VOLUME = 2.0, 0.5  # the paper's alpha and beta
JITTER = 1e-6  # keeps the logarithm finite while two members still agree exactly


class ADP(Method):
    """sum_i CE_i - 2 H(mean_i p_i) - 0.5 log det(G), G the Gram matrix of the normalised non-true predictions."""

    summary = "members trained jointly for diverse non-true predictions (Pang et al. 2019)"
    default_members = 3
    min_members = 2
    joint = True
    needs_ball = False

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        return for_diversity(base, name)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        logits = torch.stack([member(x_adv).float() for member in context.trained])
        p = logits.softmax(2)
        return {
            "ce": torch.stack([context.loss(row, y) for row in logits]).sum(),
            "entropy": -context.recipe.diversity * ENTROPY * entropy(p.mean(0)).mean(),
            "volume": -context.recipe.diversity * VOLUME * log_volume(non_true(p, y)).mean(),
        }


def entropy(p: Tensor) -> Tensor:
    """(B, C) probabilities -> (B,) Shannon entropy."""
    return -(p * p.clamp(min=1e-20).log()).sum(1)


def non_true(p: Tensor, y: Tensor) -> Tensor:
    """(M, B, C) predictions -> (B, M, C) without the true class, each of unit length."""
    rest = p.transpose(0, 1).scatter(2, y[:, None, None].expand(-1, len(p), 1), 0.0)
    return rest / rest.norm(dim=2, keepdim=True).clamp(min=1e-20)


def log_volume(v: Tensor) -> Tensor:
    """(B, M, D) rows -> (B,) log det of their Gram matrix, by elimination, as no graph can capture batched solvers."""
    gram = (v[:, :, None] * v[:, None]).sum(3)  # not `@`: autocast would compute it in half precision
    gram = gram + JITTER * torch.eye(v.shape[1], device=v.device)
    total = gram.new_zeros(len(gram))
    for _ in range(gram.shape[1]):
        pivot = gram[:, 0, 0].clamp(min=JITTER)
        total = total + pivot.log()
        gram = gram[:, 1:, 1:] - gram[:, 1:, :1] * gram[:, :1, 1:] / pivot[:, None, None]
    return total
