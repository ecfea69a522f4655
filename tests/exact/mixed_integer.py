"""A second exact solver, to compare: the heaviest set that one point can fool, as a mixed-integer program."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from recarc.exact.halfspaces import TAU, Array, Region, common_point
from recarc.exact.subsets import Planes


def heaviest_by_milp(planes: Planes, alpha: Array, region: Region) -> tuple[int, ...]:
    """max sum_k alpha_owner(k) z_k s.t. w_k . u + m_k <= -tau + K_k (1 - z_k), K_k = max(m_k + tau + 1, 0), u in the
    region, z binary, at most one plane per member. Returns the planes with z_k = 1. p in {1, inf}.

    The solver's tolerance (1e-6) is coarser than tau, so each answer is verified by a linear program; planes
    that turn out to have no common point are cut off (sum of their z <= count - 1) and the program solved again.
    """
    count = len(planes.m)
    u_rows, bounds, integrality = _variables(planes, region)
    big = np.maximum(planes.m + TAU + 1, 0)
    members = np.unique(planes.owner)
    one_plane = (planes.owner[None, :] == members[:, None]).astype(float)
    fixed = bounds.lb.size - count
    constraints = [
        LinearConstraint(np.hstack([u_rows, np.diag(big)]), ub=big - planes.m - TAU),
        LinearConstraint(np.hstack([np.zeros((len(members), fixed)), one_plane]), ub=1),
    ]
    if region.p == 1:
        constraints.append(LinearConstraint(np.r_[np.ones(fixed), np.zeros(count)], ub=1))
    objective = np.r_[np.zeros(fixed), -alpha[planes.owner]]
    while True:
        options = {"mip_rel_gap": 0.0}
        solution = milp(objective, integrality=integrality, bounds=bounds, constraints=constraints, options=options)
        if solution.x is None:
            raise RuntimeError(f"the mixed-integer program was not solved: {solution.message}")
        chosen = np.flatnonzero(solution.x[fixed:] > 0.5)
        if len(chosen) == 0:
            return ()
        point, infeasible = common_point(planes.w[chosen], planes.m[chosen], region)
        if point is not None:
            return tuple(chosen.tolist())
        core = chosen[infeasible]
        cut = np.zeros(fixed + count)
        cut[fixed + core] = 1
        constraints.append(LinearConstraint(cut, ub=len(core) - 1))


def _variables(planes: Planes, region: Region) -> tuple[Array, Bounds, Array]:
    """Columns of w for the variables of u (for p = 1, u = a - b with a, b >= 0), bounds and integrality with z."""
    count, dim = planes.w.shape
    if region.p == 1:
        columns = np.hstack([planes.w, -planes.w])
        low, high = np.zeros(2 * dim), np.minimum(np.r_[region.high, -region.low], 1)
    else:
        columns = planes.w
        low, high = np.maximum(region.low, -1), np.minimum(region.high, 1)
    bounds = Bounds(np.r_[low, np.zeros(count)], np.r_[high, np.ones(count)])
    return columns, bounds, np.r_[np.zeros(columns.shape[1]), np.ones(count)]
