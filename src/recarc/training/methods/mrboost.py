"""MRBoost (Zhang et al. 2022): members added one at a time against the current mixture, with a margin loss."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.training.method import LossTerms, Method, Stage, StepContext
from recarc.training.recipes import Recipe


class MRBoost(Method):
    """Member m starts from member m-1 and is trained on examples that hurt the whole mixture f_1 .. f_m."""

    summary = "members added one at a time against the current mixture, with a margin loss (Zhang et al. 2022)"
    default_members = 3

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        if data == "imagenet" and name == "paper":  # not in the method's own paper
            return base
        if name == "paper":
            return replace(base, epochs=100, batch=256, weight_decay=5e-4, attack_steps=10)
        if data == "digits":
            return replace(base, epochs=10, lr=0.03)  # the margin loss is steep
        return replace(base, epochs=min(base.epochs, 30), batch=256, attack_steps=10)

    def plan(self, members: int, pretrained: int) -> list[list[Stage]]:
        return [[Stage((i,), fixed=tuple(range(i)), start=(i - 1,) if i else None)] for i in range(pretrained, members)]

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd(lambda u: margin_loss(mixture_log_probabilities(context, u), y), x)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        return {"margin": margin_loss(context.trained[0](x_adv).float(), y).mean()}

    def score(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """The mixture's expected accuracy."""
        with torch.no_grad():
            right = torch.stack([(member(x).argmax(1) == y).float() for member in context.mixture])
            return (context.alpha[:, None] * right).sum(0)


def mixture_log_probabilities(context: StepContext, x: Tensor) -> Tensor:
    """log sum_i alpha_i softmax(f_i(x)), (B, C)."""
    logs = torch.stack([member(x).float().log_softmax(1) for member in context.mixture])
    return torch.logsumexp(logs + context.alpha.clamp(min=1e-12).log()[:, None, None], 0)


def margin_loss(z: Tensor, y: Tensor) -> Tensor:
    """CE(z, y) + 1/(C-1) sum_{c != y} -log softmax(-z)_c, (B,)."""
    rivals = -(-z).log_softmax(1)
    own = rivals.gather(1, y[:, None])[:, 0]
    return F.cross_entropy(z, y, reduction="none") + (rivals.sum(1) - own) / (z.shape[1] - 1)
