"""ARC for linear members, Algorithm 1 of the paper: consistent by Theorem 5.1, which knows no box."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack
from recarc.attacks.nearest_plane import nearest_plane
from recarc.attacks.problem import Problem
from recarc.attacks.registry import register
from recarc.errors import InputError
from recarc.geometry import per_sample, working_dtype


@register("linear_arc", label="LinearARC", help="Algorithm 1, for linear members")
@dataclass(frozen=True)
class LinearARC(Attack):
    """One greedy pass over affine members, e.g. nn.Linear(D, C); with C = 2 Algorithm 1 to the letter.

    For C > 2 a member's plane is the nearest one between y and another class.
    """

    rho: float = 0.05  # in units of eps; the paper's rho = 0.05 eps

    def __post_init__(self) -> None:
        if not 0 < self.rho < math.inf:
            raise InputError(f"rho is {self.rho!r}; it must be > 0 (the paper: 0.05, in units of eps)")

    def perturb(self, problem: Problem) -> Tensor:
        ensemble, x, ball = problem.ensemble, problem.x, problem.ball
        eps = ball.radius(x)
        delta = torch.zeros_like(x, dtype=working_dtype(x))
        v = problem.clean_accuracy()
        for i in ensemble.order:
            plane = nearest_plane(ensemble.members[i], x, ball.norm, label=problem.y, planes=problem.classes - 1)
            g, zeta = -ball.norm.steepest(plane.w), plane.zeta.abs()
            near = zeta < eps
            gap = (plane.along(delta) + zeta).abs()
            beta = eps / torch.where(near, eps - zeta, 1) * torch.where(near, gap, 0) + self.rho * eps
            beta = torch.where(near, beta, eps)
            delta_hat = ball.norm.scale_to(delta + per_sample(beta, g) * g, eps)
            delta_hat = ball.project(delta_hat, x)  # keeps it in the box, where there is one
            v_hat = problem.expected_accuracy(ball.move(x, delta_hat))
            accept = v_hat <= v
            delta = torch.where(per_sample(accept, x), delta_hat, delta)
            v = torch.where(accept, v_hat, v)
        return ball.move(x, delta)
