"""MORA, the model-reweighing attack (Yu, Gao and Xu 2022), for the expected accuracy of a randomized ensemble.

After the idea of its abstract: the members' gradients are reweighed in every step, so that those of members that are
fooled already, or far from it, do not cancel the useful ones. The weights, momentum and steps are our own, so the
authors' attack may be stronger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count, differentiate
from recarc.attacks.problem import Best, Problem
from recarc.attacks.registry import register
from recarc.ensemble import predictions_of
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import check_loss, difference_of_logits_ratio

MOMENTUM = 0.75


@register("mora", label="MORA", help="PGD that reweighs the members' gradients in every step")
@dataclass(frozen=True)
class MORA(Attack):
    """Ascends sum_i w_i l_i, l_i the DLR loss of member i (free of its scale), w_i recomputed in every step.

    w_i = alpha_i ((1 - beta) + beta 4 s(1 - s)) with s = sigmoid(l_i / temperature): the second part is how much a
    smooth expected error sum_i alpha_i s_i changes with l_i, which is most at the boundary of member i.
    """

    steps: int = 100
    beta: float = 0.9  # 0: the expected loss with its fixed weights; 1: the smooth expected error
    temperature: float = 0.3

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        if not 0 <= self.beta <= 1:
            raise InputError(f"beta is {self.beta!r}; it must be between 0 (fixed weights) and 1")
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature!r}; it must be > 0")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        check_loss("dlr", classes)

    def perturb(self, problem: Problem) -> Tensor:
        best = Best.clean(problem)
        delta = torch.zeros_like(problem.x, dtype=working_dtype(problem.x))
        previous = delta
        for k in range(self.steps):
            left = (best.v > 0).nonzero()[:, 0]  # an expected accuracy of 0 cannot fall
            if not len(left):
                return best.x_adv
            part = problem.take(left)
            x, ball, here = part.x, part.ball, delta[left]
            gradient = self._visit(part, best, left, ball.move(x, here))
            # Step 2 eps, falling linearly to 0, with the momentum of Croce and Hein's APGD.
            eta = per_sample(2 * (1 - k / self.steps) * ball.radius(x), x)
            z = ball.project(here + eta * ball.step_direction(gradient, x, here), x)
            momentum = MOMENTUM if k else 1.0
            there = ball.project(here + momentum * (z - here) + (1 - momentum) * (here - previous[left]), x)
            previous, delta = delta, delta.index_copy(0, left, there)
        best.consider(problem, problem.ball.move(problem.x, delta))
        return best.x_adv

    def _visit(self, part: Problem, best: Best, index: Tensor, u: Tensor) -> Tensor:
        """The reweighed gradient at u, which is offered to `best`."""
        ensemble, y = part.ensemble, part.y
        wrong = torch.zeros(len(ensemble), len(y), dtype=torch.bool, device=y.device)
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            total = u.new_zeros(())
            for i in ensemble.order:
                logits = ensemble.members[i](u)
                wrong[i] = predictions_of(logits.detach()) != y
                loss = difference_of_logits_ratio(logits, y)
                s = torch.sigmoid(loss.detach() / self.temperature)
                w = float(ensemble.alpha[i]) * ((1 - self.beta) + self.beta * 4 * s * (1 - s))
                total = total + (w * loss).sum()
            gradient = differentiate(total, u)
        best.offer(index, u.detach(), wrong, ensemble.score(~wrong))
        return gradient.to(working_dtype(u)).nan_to_num(nan=0.0)
