"""Ground truth for ensembles of linear members: the smallest expected accuracy any attack can reach, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recarc.attacks.problem import Problem, frozen_problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.exact.affine import affine_parameters
from recarc.exact.halfspaces import TAU, Array, Region, check_norm, deepest_point, normalised
from recarc.exact.subsets import Planes, heaviest_set
from recarc.geometry import Ball, per_sample

INWARDS = 1 - 1e-12  # keeps sums of rounded terms inside the ball; far below TAU


@dataclass(frozen=True)
class Optimum:
    """min over the ball (and box) of the expected accuracy L of Eq. (1), and a point that attains it.

    Member i counts as fooled where some wrong class beats y by more than tau = TAU * eps in lp distance to the
    decision plane; a tie is not fooled. x_adv is the point deepest inside the wrong answers of all fooled
    members at once, rounded towards x so that it never leaves ball or box. `realised` says whether the fooled
    members, run in their own precision on x_adv, do answer wrongly: False only where the optimal set is foolable
    by no more than rounding error, so that the optimum holds in real arithmetic but not at this x_adv.
    """

    accuracy: Tensor  # (B,) float64
    x_adv: Tensor  # (B, ...), dtype and device of x
    fooled: Tensor  # (M, B) bool
    realised: Tensor  # (B,) bool


def optimum(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Optimum:
    """min over delta of sum_i alpha_i 1{f_i(x + delta) = y} for affine members f_i, p in {1, 2, inf}.

    Branches over sets of members; NP-hard in their number, around ten are quick.
    """
    check_norm(ball.norm)
    with frozen_problem(ensemble, x.detach(), y, ball) as problem:
        return _optimum(problem)


def _optimum(problem: Problem) -> Optimum:
    ensemble, x, y, ball = problem.ensemble, problem.x, problem.y, problem.ball
    parameters = _parameters(ensemble, x)
    w = torch.stack([w for w, _ in parameters]).cpu().numpy()
    b = torch.stack([b for _, b in parameters]).cpu().numpy()
    points = x.double().flatten(1).cpu().numpy()
    radii = ball.radius(x).double().cpu().numpy()
    alpha = ensemble.alpha.cpu().numpy()

    moves = np.zeros_like(points)
    fooled = np.zeros((len(alpha), len(points)), dtype=bool)
    for n, label in enumerate(y.tolist()):
        moves[n], fooled[:, n] = _solve(w, b, alpha, points[n], label, radii[n], ball)

    bits = torch.from_numpy(fooled).to(x.device)
    delta = torch.from_numpy(moves).to(x.device).reshape(x.shape) * per_sample(ball.radius(x).double(), x)
    x_adv = _rounded_towards(x, delta)
    wrong = ~ensemble.correct(x_adv, y)
    return Optimum(ensemble.score(~bits), x_adv, bits, (wrong | ~bits).all(0))


def _parameters(ensemble: RandomizedEnsemble, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    parameters = []
    for i, member in enumerate(ensemble.members):
        try:
            parameters.append(affine_parameters(member, x))
        except InputError as error:
            raise InputError(f"member {i}: {error}") from None
    return parameters


def _solve(
    w: Array, b: Array, alpha: Array, x: Array, label: int, eps: float, ball: Ball
) -> tuple[Array, NDArray[np.bool_]]:
    """u = delta / eps of an optimal point (D,) and who is fooled there (M,)."""
    members, classes, dim = w.shape
    others = [c for c in range(classes) if c != label]
    gaps = (w[:, label, None] - w[:, others]).reshape(-1, dim)
    margins = gaps @ x + (b[:, label, None] - b[:, others]).reshape(-1)
    gaps, distances, alive = normalised(gaps, margins / eps, ball.norm)
    owner = np.repeat(np.arange(members), len(others))
    region = _region(x, eps, ball)

    useful = np.flatnonzero(alive & (distances < 1 - TAU) & (alpha[owner] > 0))
    planes = Planes(gaps[useful], distances[useful], owner[useful])
    chosen = list(heaviest_set(planes, alpha, region)) if len(useful) else []
    u = deepest_point(planes.w[chosen], planes.m[chosen], region) * INWARDS if chosen else np.zeros(dim)
    fooled: NDArray[np.bool_] = np.any((gaps @ u + distances).reshape(members, -1) < -TAU, axis=1)
    fooled[planes.owner[chosen]] = True
    return u, fooled


def _region(x: Array, eps: float, ball: Ball) -> Region:
    if ball.box is None:
        return Region(ball.norm.p, np.full_like(x, -np.inf), np.full_like(x, np.inf))
    low, high = ball.box
    return Region(ball.norm.p, np.minimum((low - x) / eps, 0), np.maximum((high - x) / eps, 0))


def _rounded_towards(x: Tensor, delta: Tensor) -> Tensor:
    """x + delta in the dtype of x, no coordinate further from x than delta says."""
    moved = (x.double() + delta).to(x.dtype)
    too_far = (moved.double() - x.double()).abs() > delta.abs()
    return torch.where(too_far, torch.nextafter(moved, x), moved)
