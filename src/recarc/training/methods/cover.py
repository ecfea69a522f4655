"""Adversarial training in which each member gives most weight to the samples that fool the others."""

from __future__ import annotations

from torch import Tensor

from recarc.training.method import LossTerms, StepContext
from recarc.training.methods.jat import JAT, losses


class Cover(JAT):
    """mean_i max_delta w_i l_i(x + delta), with larger weights w_i where the other members give way.

    Boosting without an order of the members: each is attacked alone, as in `iat`, and of a sample that the others
    already hold it is asked less. w_i is 1 minus the others' mean probability of y under their own attacks, scaled to
    a mean of 1 over the batch; the recipe's `diversity` is its share, the rest weighs all samples alike. A step costs
    what a step of `iat` with as many members does.
    """

    summary = "as `iat`, but each member gives most weight to the samples that fool the others; our own"

    def alone(self, context: StepContext, count: int) -> int:
        """All of them: each member has a point of its own for every sample."""
        return count

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        found = losses(context.trained, x_adv, y)
        share = min(context.recipe.diversity, 1.0)
        weights = 1 - share + share * fallen_elsewhere(found.detach())
        return {"ce": (weights * found).mean(1).sum()}

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """One point for all, by adaptive PGD: validation looks at one batch."""
        return context.pgd(lambda u: losses(context.victims, [u] * len(context.victims), y).mean(0), x)


def fallen_elsewhere(values: Tensor) -> Tensor:
    """(M, B) cross-entropies -> (M, B) how far the other members have fallen on a sample, with a mean of 1 each."""
    held = (-values).exp()
    fallen = 1 - (held.sum(0) - held) / (len(values) - 1)
    return fallen / fallen.mean(1, keepdim=True).clamp(min=1e-6)
