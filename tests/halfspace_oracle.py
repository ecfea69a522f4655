"""The smallest perturbation that fools given linear members together: a program per norm, no solver of the package."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls

from recarc.geometry import Norm

Array = NDArray[np.float64]
TOLERANCE = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def smallest_radius(w: Array, margins: Array, norm: Norm) -> float:
    """eps_S = min ||delta||_p s.t. w_i . delta + margins_i <= 0 for all i, p in {1, 2, inf}; inf where no delta does.

    Equals max over lambda >= 0 of (sum lambda_i margins_i) / ||sum lambda_i w_i||_q, or 0 where that is negative.
    """
    length = np.linalg.norm(w, ord=norm.q, axis=1)
    if (margins[length == 0] >= 0).any():
        return np.inf
    w, m = w[length > 0] / length[length > 0, None], margins[length > 0] / length[length > 0]
    scale = float(np.max(m, initial=0.0))
    if scale <= 0:
        return 0.0
    return scale * (_l2(w, m / scale) if norm.p == 2 else _linear(w, m / scale, norm.p))


def _l2(w: Array, m: Array) -> float:
    """Lawson and Hanson 1974, chapter 23: z >= 0 minimises ||[-w^T; m^T] z - e||, whose residual is 0 iff no u does."""
    target = np.eye(w.shape[1] + 1)[-1]
    z, _ = nnls(np.vstack([-w.T, m]), target)
    squared = float(1 - m @ z)
    return np.inf if squared <= 1e-14 else float(np.linalg.norm(w.T @ z)) / squared


def _linear(w: Array, m: Array, p: float) -> float:
    """delta = a - b with a, b >= 0, and r >= ||delta||_p: r = sum (a + b), or r >= a_j + b_j for every j."""
    dim = w.shape[1]
    eye = np.eye(dim) if np.isinf(p) else np.ones((1, dim))
    rows = np.block([[w, -w, np.zeros((len(w), 1))], [eye, eye, -np.ones((len(eye), 1))]])
    limits = np.concatenate([-m, np.zeros(len(eye))])
    solution = linprog(np.eye(2 * dim + 1)[-1], A_ub=rows, b_ub=limits, method="highs-ds", options=TOLERANCE)
    return float(solution.fun) if solution.status == 0 else np.inf
