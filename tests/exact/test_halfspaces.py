"""Programs over half-spaces against the dual formula, a general solver and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from halfspace_oracle import smallest_radius
from recarc.exact import halfspaces
from recarc.exact.halfspaces import TAU, Array, Region, common_point, deepest_point, depth, normalised
from recarc.geometry import Norm

NORMS = [1, 2, math.inf]


def dual_radius(w: Array, m: Array, norm: Norm, rng: np.random.Generator) -> float:
    """max over lambda >= 0 of the quasi-concave (sum lambda m) / ||sum lambda w||_q, by ever closer random points."""
    cloud, best, value = rng.dirichlet(np.ones(len(m)), 3000), np.ones(len(m)), -math.inf
    for zoom in range(25):
        values = cloud @ m / np.linalg.norm(cloud @ w, ord=norm.q, axis=1)
        if values.max() > value:
            best, value = cloud[values.argmax()], float(values.max())
        cloud = np.abs(best + 0.3 * 0.6**zoom * rng.normal(size=cloud.shape))
        cloud /= cloud.sum(1, keepdims=True)
    return value


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_smallest_radius_equals_the_dual_formula(p: float, count: int) -> None:
    rng = np.random.default_rng(count)
    for _ in range(8):
        w, m = rng.normal(size=(count, 6)), rng.normal(size=count) + 0.5
        radius, dual = smallest_radius(w, m, Norm(p)), dual_radius(w, m, Norm(p), rng)
        assert radius >= dual - 1e-9
        assert radius == pytest.approx(max(dual, 0.0), rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("p", NORMS)
def test_smallest_radius_by_hand(p: float) -> None:
    w = np.array([[2.0, 0.0], [-2.0, 0.0]])
    assert smallest_radius(w, np.array([1.0, 1.0]), Norm(p)) == math.inf
    assert smallest_radius(w, np.array([1.0, -3.0]), Norm(p)) == pytest.approx(0.5)
    assert smallest_radius(w, np.array([-1.0, -1.0]), Norm(p)) == 0
    assert smallest_radius(np.zeros((1, 2)), np.array([1.0]), Norm(p)) == math.inf
    corner = {1: 2.0, 2: math.sqrt(2), math.inf: 1.0}[p]
    assert smallest_radius(np.eye(2), np.ones(2), Norm(p)) == pytest.approx(corner)


def boxed_region(rng: np.random.Generator, p: float, dim: int, box: bool) -> Region:
    if not box:
        return Region(p, np.full(dim, -np.inf), np.full(dim, np.inf))
    return Region(p, -rng.choice([0.0, 0.1, 0.3], dim), rng.choice([0.0, 0.2, 2.0], dim))


def feasible(u: Array, region: Region) -> bool:
    inside = np.linalg.norm(u, ord=region.p) <= 1 + 1e-9
    return bool(inside and (u >= region.low).all() and (u <= region.high).all())


@pytest.mark.parametrize("box", [False, True])
@pytest.mark.parametrize("p", NORMS)
def test_common_and_deepest_points(p: float, box: bool) -> None:
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(40):
        region = boxed_region(rng, p, 5, box)
        w, _, _ = normalised(rng.normal(size=(3, 5)), np.zeros(3), Norm(p))
        m = rng.normal(size=3) * (0.1 if box else 0.5)
        point, core = common_point(w, m, region)
        if point is None:
            assert common_point(w[core], m[core], region).point is None
            cloud = rng.uniform(-1, 1, size=(2000, 5)).clip(region.low, region.high)
            cloud /= np.maximum(np.linalg.norm(cloud, ord=p, axis=1), 1)[:, None]
            assert not (cloud @ w.T + m < -TAU).all(1).any()
            continue
        found += 1
        deepest = deepest_point(w, m, region)
        assert feasible(point, region) and feasible(deepest, region)
        assert depth(w, m, point) > TAU / 2
        assert depth(w, m, deepest) >= depth(w, m, point) - 1e-12
        cloud = deepest + 0.05 * rng.normal(size=(500, 5))
        near = [u for u in cloud.clip(region.low, region.high) if feasible(u, region)]
        assert all(depth(w, m, u) <= depth(w, m, deepest) + 1e-8 for u in near)
    assert 5 < found < 40


def test_nearest_l2_in_a_box_against_a_general_solver() -> None:
    rng = np.random.default_rng(2)
    compared = 0
    for _ in range(30):
        region = boxed_region(rng, 2, 6, box=True)
        w, m, _ = normalised(rng.normal(size=(3, 6)), rng.normal(size=3) * 0.2, Norm(2))
        u, _ = halfspaces._nearest_l2(w, m, region)
        general = minimize(
            lambda v: v @ v,
            np.zeros(6),
            jac=lambda v: 2 * v,
            bounds=list(zip(region.low, region.high)),
            constraints={"type": "ineq", "fun": lambda v, w=w, m=m: -w @ v - m, "jac": lambda v, w=w: -w},
            method="SLSQP",
        )
        if u is not None and np.linalg.norm(u) <= 1:
            assert general.success
            assert u == pytest.approx(general.x, abs=1e-5)
            compared += 1
        else:
            assert not general.success or np.linalg.norm(general.x) > 1
    assert compared > 8


def test_both_ways_to_the_nearest_point_in_a_box_agree() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        region = boxed_region(rng, 2, 8, box=True)
        w, m, _ = normalised(rng.normal(size=(4, 8)), rng.normal(size=4) * 0.15, Norm(2))
        u, _ = halfspaces._nearest_l2(w, m, region)
        v, _ = halfspaces._nearest_l2_by_cuts(w, m, region)
        near = [a is not None and np.linalg.norm(a) <= 1 for a in (u, v)]
        assert near[0] == near[1]
        if near[0]:
            assert u == pytest.approx(v, abs=1e-9)
