"""Joint adversarial training: part of every batch is attacked member by member, part by one perturbation for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from recarc.losses import cross_entropy
from recarc.training.method import LossTerms, Method, StepContext
from recarc.training.recipes import Recipe


class JAT(Method):
    """mean_i max_delta l_i(x + delta) on one half of the samples, max_delta of their joint loss on the other.

    Of two equiprobable members, a sample keeps 1 if no point of the ball fools either, 1/2 if none fools both, and
    else 0: half of what can be won is won by members that hold alone, as `iat` trains them, and half by members that
    never fall together. The joint loss -log(mean_i p_i), p_i member i's probability of y, is small where one of them
    is right. The attack's steps therefore go against whoever still stands, and the update asks most of that one.
    A step costs what a step of `iat` with as many members does. The recipe's `diversity` is the second part's share.
    """

    summary = "members that hold alone (half of each batch, as `iat`) and never fall together (the other half); our own"
    default_members = 2
    min_members = 2
    joint = True

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        return replace(base, diversity=0.5, label_smoothing=0.0)

    def alone(self, context: StepContext, count: int) -> int:
        """How many of a batch's samples are attacked member by member."""
        return count - round(min(context.recipe.diversity, 1.0) * count)

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """(M, B, ...): a point of its own for each member on the first samples, the same one for all on the rest."""
        members, n, noise = len(context.victims), self.alone(context, len(x)), context.start_noise

        def copies(batch: Tensor) -> Tensor:
            return torch.cat([*[batch[:n]] * members, batch[n:]])

        def batches(points: Tensor) -> list[Tensor]:
            own, shared = points[: members * n], points[members * n :]
            return [torch.cat([own[i * n : (i + 1) * n], shared]) for i in range(members)]

        def objective(points: Tensor) -> Tensor:
            found = losses(context.victims, batches(points), y)
            return torch.cat([found[:, :n].flatten(), joint_loss(found[:, n:])])

        attacked = replace(context, start_noise=None if noise is None else copies(noise))
        return torch.stack(batches(attacked.pgd(objective, copies(x))))

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        found, n = losses(context.trained, x_adv, y), self.alone(context, len(y))
        together = len(found) * joint_loss(found[:, n:])
        return {"alone": found[:, :n].sum() / len(y), "together": together.sum() / len(y)}

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd(lambda u: joint_loss(losses(context.victims, [u] * len(context.victims), y)), x)


def losses(members: Sequence[nn.Module], batches: Iterable[Tensor], y: Tensor) -> Tensor:
    """(M, B) cross-entropies of each member on a batch of its own."""
    return torch.stack([cross_entropy(member(x), y) for member, x in zip(members, batches)])


def joint_loss(values: Tensor) -> Tensor:
    """(M, B) cross-entropies l_i = -log p_i -> (B,) -log(mean_i p_i)."""
    return math.log(len(values)) - torch.logsumexp(-values, 0)
