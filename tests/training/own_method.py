"""A training method of a user's own, as the documentation describes it: one class, used by its `module:Class`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from recarc.training import LossTerms, Method, StepContext


class TRADES(Method):
    """CE(f(x), y) + beta KL(f(x) || f(x + delta)), delta from PGD on the same divergence (Zhang et al. 2019)."""

    summary = "trades accuracy for robustness with a regulariser (Zhang et al. 2019)"
    beta = 6.0

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        victim = context.victims[0]
        clean = victim(x)
        return context.pgd(lambda u: divergence(clean, victim(u)), x)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        clean, attacked = context.trained[0](x), context.trained[0](x_adv)
        return {"ce": context.loss(clean, y), "kl": self.beta * divergence(clean, attacked).mean()}

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd_on(context.victims[0], x, y)  # validation starts at x, where the divergence is flat


def divergence(clean: Tensor, attacked: Tensor) -> Tensor:
    """(B,) KL divergence of the predictions."""
    p, q = clean.float().softmax(1), attacked.float().log_softmax(1)
    return F.kl_div(q, p, reduction="none").sum(1)
