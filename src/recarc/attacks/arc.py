"""ARC: attacking randomized ensembles of classifiers, Algorithm 2 of the paper."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count, check_step_size, step_of
from recarc.attacks.nearest_plane import Plane, nearest_plane
from recarc.attacks.problem import Problem
from recarc.attacks.registry import register
from recarc.errors import InputError, unknown
from recarc.geometry import Ball, per_sample, working_dtype

LONGEST = 2.0  # how much longer than those before it a normal may be expected to be


@register("arc", label="ARC", help="Algorithm 2 of the paper")
@register("corrected_arc", label="ARC, corrected", help="ARC with the distance its proof needs", variant="corrected")
@dataclass(frozen=True)
class ARC(Attack):
    """Greedy over the members by decreasing alpha: push each one over its nearest plane, keep what does not hurt.

    variant="paper" is Algorithm 2 as printed. variant="corrected" measures the distance at the centre of the local
    ball, which restores the consistency of Theorem 5.1 on linear ensembles (without a box, from a point that every
    member has right), and never leads a fooled member back to y.
    """

    steps: int = 20  # K, the paper's for CIFAR-10
    step_size: float | None = None  # eta; the paper: eps for linf, eps/4 for l2
    planes: int | None = None  # G of Appendix D; None: all C - 1, less those that are too far to be the nearest
    variant: str = "paper"
    rho: float = 0.05  # in units of eps; the paper's rho = 0.05 eps

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_step_size(self.step_size)
        if self.planes is not None:
            check_count("planes", self.planes)
        if self.variant not in ("paper", "corrected"):
            raise unknown("variant", self.variant, ("paper", "corrected"))
        if not 0 < self.rho < math.inf:
            raise InputError(f"rho is {self.rho!r}; it must be > 0 (the paper: 0.05, in units of eps)")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.planes is not None and self.planes > classes - 1:
            raise InputError(f"planes is {self.planes}; with {classes} classes it must be 1..{classes - 1} or None")

    def perturb(self, problem: Problem) -> Tensor:
        x, ball = problem.x, problem.ball
        eta = step_of(self.step_size, 1 if math.isinf(ball.norm.p) else 1 / 4, ball, x)
        delta = torch.zeros_like(x, dtype=working_dtype(x))
        v = problem.clean_accuracy()
        left = torch.arange(len(x), device=x.device)
        for _ in range(self.steps):
            left = left[v[left] > 0]  # an expected accuracy of 0 cannot fall
            if not len(left):
                break
            before = delta[left]
            delta[left], v[left] = self._iteration(problem.take(left), eta[left], before, v[left])
            left = left[(delta[left] != before).flatten(1).any(1)]  # what did not move would not move again
        return ball.move(x, delta)

    def _iteration(self, problem: Problem, eta: Tensor, delta: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One round of the local search; returns the new delta and its expected accuracy."""
        x, ball = problem.x, problem.ball
        delta_l, v_l = torch.zeros_like(delta), v
        for i in problem.ensemble.order:
            x_tilde = ball.move(x, delta + delta_l)  # in the box, where the member is defined
            plane, beta = self._plane_and_beta(problem, i, x_tilde, eta, delta_l)
            g = -ball.norm.steepest(plane.w)
            delta_l_hat = ball.norm.scale_to(delta_l + per_sample(beta, g) * g, eta)
            delta_hat = ball.project(delta + delta_l_hat, x)
            v_hat = problem.expected_accuracy(ball.move(x, delta_hat))
            accept = v_hat <= v_l
            delta_l = torch.where(per_sample(accept, x), delta_l_hat, delta_l)
            v_l = torch.where(accept, v_hat, v_l)
        # The global update: v_l was measured at exactly this point and is at most v, so the update always holds.
        return ball.project(delta + delta_l, x), v_l

    def _plane_and_beta(
        self, problem: Problem, i: int, x_tilde: Tensor, eta: Tensor, delta_l: Tensor
    ) -> tuple[Plane, Tensor]:
        """The plane to cross and how far to push. "i = 1" needs no case: delta_l = 0 cancels beta."""
        member, norm = problem.ensemble.members[i], problem.ball.norm
        planes, rho = self.planes or problem.classes - 1, self.rho * problem.ball.radius(x_tilde)
        if self.variant == "paper":
            # Paper: all C - 1 planes. Here, unless `planes` is set: none that could be the nearest only with a normal
            # more than LONGEST times as long as those before it, because it almost never is (bench-planes).
            longest = LONGEST if self.planes is None else math.inf
            plane = nearest_plane(member, x_tilde, norm, label=None, planes=planes, longest=longest)
            gap, reach = (plane.along(delta_l) + plane.zeta).abs(), plane.zeta
        else:
            # Paper: zeta at x + delta + delta_l, to which the projection of delta_l is added again. Here: the
            # distance zeta0 from x + delta, because Theorem 5.1's proof needs (1 - zeta0/eta) beta > zeta; and the
            # planes around y, so that a fooled member (zeta < 0) is pushed deeper and not back.
            plane = nearest_plane(member, x_tilde, norm, label=problem.y, planes=planes, offset=delta_l)
            gap, reach = plane.zeta.clamp(min=0), plane.zeta - plane.along(delta_l)
        near = reach < eta
        beta = eta / torch.where(near, eta - reach, 1) * torch.where(near, gap, 0) + rho
        return plane, torch.where(near, beta, eta)
