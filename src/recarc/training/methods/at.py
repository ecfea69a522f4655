"""Adversarial training with PGD (Madry et al. 2018), with the early stopping of Rice et al. 2020."""

from __future__ import annotations

from torch import Tensor

from recarc.training.method import Method, StepContext


class AT(Method):
    """min_theta CE(f(x + delta), y), delta from PGD with K = 7 on f itself."""

    summary = "PGD adversarial training: K = 7, random start, step eps / 4 (Madry et al. 2018, Rice et al. 2020)"

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return context.pgd_on(context.victims[0], x, y)
