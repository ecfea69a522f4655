"""Points of a ball, cut by a box, that lie inside several half-spaces at once: linear and least-distance programs.

One sample at a time, in units of its radius: u = delta / eps, so the ball is ||u||_p <= 1. A half-space is
w . u + m <= 0 with ||w||_q = 1, so that m is the signed distance of u = 0 to its plane. A point is inside by
the depth t = -max_i (w_i . u + m_i).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

from recarc.errors import InputError
from recarc.geometry import Norm

Array = NDArray[np.float64]

TAU = 1e-9  # strict depth, in units of eps, that counts as inside: above the solvers' errors, below any float32 step
SOLVER = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
BISECTIONS = 40
GUESSES = 30  # a handful is the rule
EMPTY = 1e-14


class Region(NamedTuple):
    """{u: ||u||_p <= 1, low <= u <= high} for p in {1, 2, inf}; low <= 0 <= high, infinite without a box."""

    p: float
    low: Array
    high: Array


class CommonPoint(NamedTuple):
    """A point inside all half-spaces, or None and the indices of some that already have no point in common."""

    point: Array | None
    core: NDArray[np.intp]


def common_point(w: Array, m: Array, region: Region) -> CommonPoint:
    """A point of the region at depth > TAU in every half-space of w (k, D), m (k,)."""
    if region.p == 2:
        u, multipliers = _nearest_l2(w, m + TAU, region)
        inside = u is not None and float(np.linalg.norm(u)) <= 1
    else:
        u, multipliers = _deepest_lp(w, m, region)
        inside = depth(w, m, u) > TAU
    return CommonPoint(u if inside else None, np.flatnonzero(multipliers))


def deepest_point(w: Array, m: Array, region: Region) -> Array:
    """argmax_u min_i -(w_i . u + m_i) over the region, given that common_point finds one.

    For p = 2 by bisection over the depth; where the region's bounds limit it, short of the maximum by about 1e-8.
    """
    if region.p != 2:
        return _deepest_lp(w, m, region)[0]
    reached, beyond = TAU, float(np.min(1 - m))
    best, _ = _nearest_l2(w, m + reached, region)
    for _ in range(BISECTIONS):
        t = (reached + beyond) / 2
        u, _ = _nearest_l2(w, m + t, region)
        if u is not None and np.linalg.norm(u) <= 1:
            reached, best = t, u
        else:
            beyond = t
    assert best is not None
    return best


def depth(w: Array, m: Array, u: Array) -> float:
    return float(np.min(-m - w @ u))


def check_norm(norm: Norm) -> None:
    if norm.p not in (1, 2, np.inf):
        raise InputError(f"exact optima are known for l1, l2 and linf, not for {norm}")


def normalised(w: Array, m: Array, norm: Norm) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Rows scaled to ||w_i||_q = 1, and which half-spaces are not empty.

    w_i = 0 leaves the whole space (m_i = -1 stands for it) or, if m_i >= 0, nothing.
    """
    length = np.linalg.norm(w, ord=norm.q, axis=1)
    flat = length == 0
    safe = np.where(flat, 1.0, length)
    return w / safe[:, None], np.where(flat, np.where(m < 0, -1.0, 1.0), m / safe), ~flat | (m < 0)


def _deepest_lp(w: Array, m: Array, region: Region) -> tuple[Array, Array]:
    """max t s.t. w_i . u + m_i <= -t over the region, p in {1, inf}; u and the multipliers of the half-spaces."""
    count, dim = w.shape
    free = np.array([[-np.inf, np.inf]])
    ones = np.ones((count, 1))
    if region.p == 1:  # u = a - b with a, b >= 0 and sum (a + b) <= 1
        rows = np.vstack([np.hstack([w, -w, ones]), np.r_[np.ones(2 * dim), 0.0]])
        limits = np.r_[-m, 1.0]
        upper = np.r_[np.minimum(region.high, 1), np.minimum(-region.low, 1)]
        bounds = np.vstack([np.c_[np.zeros(2 * dim), upper], free])
    else:
        rows, limits = np.hstack([w, ones]), -m
        bounds = np.vstack([np.c_[np.maximum(region.low, -1), np.minimum(region.high, 1)], free])
    objective = np.zeros(len(bounds))
    objective[-1] = -1
    solution = linprog(objective, A_ub=rows, b_ub=limits, bounds=bounds, method="highs-ds", options=SOLVER)
    if solution.status != 0:
        raise RuntimeError(f"the linear program of the deepest point was not solved: {solution.message}")
    u = solution.x[:dim] - solution.x[dim : 2 * dim] if region.p == 1 else solution.x[:dim]
    u = np.clip(u, region.low, region.high)
    return u / max(1.0, float(np.linalg.norm(u, ord=region.p))), solution.ineqlin.marginals[:count]


def _nearest_l2(w: Array, m: Array, region: Region) -> tuple[Array | None, Array]:
    """min ||u||_2 s.t. w_i . u + m_i <= 0, low <= u <= high; None where empty. And the half-spaces' multipliers.

    At the optimum u = clip(-w^T multipliers, low, high): guess which coordinates are clipped, solve for the others,
    guess again, until the guess repeats itself.
    """
    clipped = np.zeros(w.shape[1], dtype=bool)
    u = np.zeros(w.shape[1])
    for _ in range(GUESSES):
        free = ~clipped
        nearest, multipliers = _least_distance(-w[:, free], m + w @ u)
        if nearest is None:
            break
        unclipped = -multipliers @ w
        at_bound = np.clip(unclipped, region.low, region.high)
        now = unclipped != at_bound
        if np.array_equal(now, clipped) and np.array_equal(at_bound[clipped], u[clipped]):
            u[free] = nearest
            return np.clip(u, region.low, region.high), multipliers
        clipped, u = now, np.where(now, at_bound, 0.0)
    return _nearest_l2_by_cuts(w, m, region)


def _nearest_l2_by_cuts(w: Array, m: Array, region: Region) -> tuple[Array | None, Array]:
    """The same, with bounds as half-spaces of their own once a point breaks them; gives up where ||u|| > 1.

    Slower and certain to end; it also tells an empty set.
    """
    used = np.zeros((2, w.shape[1]), dtype=bool)  # lower and upper bounds that have entered
    eye = np.eye(w.shape[1])
    while True:
        sides = np.vstack([-w, eye[used[0]], -eye[used[1]]])
        limits = np.r_[m, region.low[used[0]], -region.high[used[1]]]
        u, multipliers = _least_distance(sides, limits)
        if u is None or np.linalg.norm(u) > 1:
            return u, multipliers[: len(m)]
        broken = np.stack([u < region.low, u > region.high]) & ~used
        if not broken.any():
            return np.clip(u, region.low, region.high), multipliers[: len(m)]
        used |= broken


def _least_distance(g: Array, h: Array) -> tuple[Array | None, Array]:
    """min ||u||_2 s.t. g u >= h, by non-negative least squares (Lawson and Hanson 1974, chapter 23).

    With z >= 0 minimising ||[g^T; h^T] z - e||, e the last unit vector, and r that residual: no u exists iff r = 0,
    else u = g^T multipliers with multipliers = z / ||r||^2, and ||r||^2 = -r_last = 1 / (1 + ||u||^2).
    A set so thin that the u found misses it by rounding is taken as empty.
    """
    stacked = np.vstack([g.T, h])
    target = np.zeros(len(stacked))
    target[-1] = 1
    z, _ = nnls(stacked, target)
    squared = float(1 - h @ z)
    if squared <= EMPTY:
        return None, z
    u = g.T @ z / squared
    missed = np.max(h - g @ u, initial=0.0) > TAU / 10 * (1 + np.linalg.norm(u))
    return (None if missed else u), z / squared
