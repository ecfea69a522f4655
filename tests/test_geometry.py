"""Norms and balls against closed forms, scipy and the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

from recarc import Ball, InputError, Norm
from recarc.geometry import odd_scale, per_sample, running_total, total
from tiny import points

P = [1, 1.5, 2, 3, 7.3, math.inf]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# Norms


@pytest.mark.parametrize(
    ("name", "p"),
    [
        ("linf", math.inf),
        ("Linf", math.inf),
        ("L_inf", math.inf),
        ("inf", math.inf),
        ("l∞", math.inf),
        (math.inf, math.inf),
        (np.inf, math.inf),
        ("l2", 2),
        ("L2", 2),
        (2, 2),
        ("2", 2),
        ("l1", 1),
        (1.5, 1.5),
        ("l1.5", 1.5),
        (np.float32(3), 3),
        (Norm(2), 2),
    ],
)
def test_names_of_norms(name: object, p: float) -> None:
    assert Norm(name).p == p
    assert Norm(name) == Norm(p)


def test_norms_print_their_name() -> None:
    assert [str(Norm(p)) for p in (1, 1.5, 2, math.inf)] == ["l1", "l1.5", "l2", "linf"]


@pytest.mark.parametrize("p", [0.5, 0, -1, math.nan, "l0", "lp", "", "l", "l1_5", None, "two", -math.inf])
def test_not_a_norm(p: object) -> None:
    with pytest.raises(InputError, match="not an lp norm with p >= 1; use 'linf', 'l2', 'l1'") as error:
        Norm(p)
    assert repr(p) in str(error.value)


@pytest.mark.parametrize("p", P)
def test_norm_and_dual_norm_are_numpys(p: float) -> None:
    v = normal(4, 3, 2)
    rows = v.reshape(4, -1).numpy()
    norm = Norm(p)
    np.testing.assert_allclose(norm.norm(v), np.linalg.norm(rows, p, axis=1), rtol=1e-12)
    np.testing.assert_allclose(norm.dual(v), np.linalg.norm(rows, norm.q, axis=1), rtol=1e-12)
    assert 1 / norm.p + 1 / norm.q == pytest.approx(1)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("p", P)
def test_steepest_has_unit_norm_and_reaches_the_dual_norm(p: float, dtype: torch.dtype, scale: float) -> None:
    w, norm = (normal(6, 5, 3) * scale).to(dtype), Norm(p)
    d = norm.steepest(w)
    assert d.dtype == dtype and d.shape == w.shape
    torch.testing.assert_close(norm.norm(d), torch.ones(6, dtype=dtype))
    reached = (w.double() * d.double()).flatten(1).sum(1) / scale
    torch.testing.assert_close(reached, norm.dual(w).double() / scale, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("p", P)
def test_steepest_of_half_precision(p: float, dtype: torch.dtype) -> None:
    """Values at the edge of float16 (6e-8 and 6e4) would overflow or vanish when raised to a power there."""
    w = torch.tensor([[6e-8, -1.2e-7, 0.0], [6e4, 3e4, -6e4], [0.0, 0.0, 0.0]]).to(dtype)
    d = Norm(p).steepest(w)
    assert d.dtype == torch.float32
    torch.testing.assert_close(Norm(p).norm(d), torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(d, Norm(p).steepest(w.double()).float())


@pytest.mark.parametrize("p", P)
def test_steepest_of_zero_is_zero(p: float) -> None:
    w = torch.zeros(2, 4)
    w[1, 2] = -3.0
    d = Norm(p).steepest(w)
    assert torch.equal(d, torch.tensor([[0.0] * 4, [0.0, 0.0, -1.0, 0.0]]))


def test_steepest_of_l1_is_one_hot_even_on_ties() -> None:
    d = Norm(1).steepest(torch.tensor([[1.0, -5.0, 5.0, 5.0], [2.0, 2.0, 2.0, 2.0]]))
    assert d.abs().sum(1).tolist() == [1.0, 1.0]
    assert (d != 0).sum(1).tolist() == [1, 1]


def test_steepest_no_direction_does_better() -> None:
    for p in P:
        w, norm = normal(1, 6, seed=3), Norm(p)
        tried = norm.scale_to(normal(2000, 6, seed=4), torch.ones(2000, dtype=torch.float64))
        assert float((tried @ w[0]).max()) <= float(norm.dual(w)) + 1e-12


@pytest.mark.parametrize("p", P)
def test_scale_to(p: float) -> None:
    v = normal(3, 4)
    v[1] = 0
    out = Norm(p).scale_to(v, torch.tensor([2.0, 2.0, 0.5], dtype=torch.float64))
    torch.testing.assert_close(Norm(p).norm(out), torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64))
    assert torch.equal(out[1], torch.zeros(4, dtype=torch.float64))


# Lemmas A.1 and A.2


@pytest.mark.parametrize("p", P)
def test_lemma_a1_distance_and_projection_onto_a_plane(p: float) -> None:
    """z* = x - zeta sgn(f) mu_p(w) is on the plane at the smallest lp distance: scipy's minimum is no smaller."""
    rng = np.random.default_rng(5)
    norm = Norm(p)
    for _ in range(5):
        w, x, b = rng.normal(size=4), rng.normal(size=4), rng.normal()
        f = w @ x + b
        zeta = float(norm.distance(torch.from_numpy(w)[None], torch.tensor([f])))
        assert abs(zeta) == pytest.approx(abs(f) / np.linalg.norm(w, norm.q))
        assert math.copysign(1, zeta) == math.copysign(1, f)
        z = x - zeta * norm.steepest(torch.from_numpy(w)[None])[0].numpy()
        assert w @ z + b == pytest.approx(0, abs=1e-12)
        assert np.linalg.norm(z - x, p) == pytest.approx(abs(zeta))
        assert abs(zeta) == pytest.approx(_nearest_by_scipy(w, f, p), rel=1e-3)


def _nearest_by_scipy(w: np.ndarray, f: float, p: float) -> float:
    """min ||u||_p with <w, u> = -f: a linear program for p in {1, inf}, else scipy's SLSQP."""
    n = len(w)
    if p == 1:  # u = a - c, minimise sum a + c
        return float(optimize.linprog(np.ones(2 * n), A_eq=[np.r_[w, -w]], b_eq=[-f]).fun)
    if math.isinf(p):  # |u_i| <= t, minimise t
        above, below = np.c_[np.eye(n), -np.ones(n)], np.c_[-np.eye(n), -np.ones(n)]
        problem = {"A_ub": np.r_[above, below], "b_ub": np.zeros(2 * n), "A_eq": [np.r_[w, 0]], "b_eq": [-f]}
        return float(optimize.linprog(np.r_[np.zeros(n), 1], bounds=(None, None), **problem).fun)
    plane = {"type": "eq", "fun": lambda u: w @ u + f}
    start = -f * w / (w @ w)
    result = optimize.minimize(lambda u: (np.abs(u) ** p).sum(), start, constraints=[plane], tol=1e-12)
    return float(np.linalg.norm(result.x, p))


def test_distance_to_no_plane_is_infinite() -> None:
    out = Norm(2).distance(torch.zeros(2, 3), torch.tensor([1.0, 0.0]))
    assert out.tolist() == [math.inf, math.inf]


@pytest.mark.parametrize("p", P)
def test_lemma_a2_when_a_perturbation_fools(p: float) -> None:
    """delta fools f at a correct (x, y) iff -y <w, delta> > 0 and |<w, delta>| / ||w||_q > zeta."""
    rng = np.random.default_rng(6)
    norm = Norm(p)
    fooled_ones = 0
    for _ in range(300):
        w, x, delta = torch.from_numpy(rng.normal(size=(3, 1, 4)))
        b = float(rng.normal())
        f = float((w * x).sum()) + b
        y = math.copysign(1, f)
        zeta = float(norm.distance(w, torch.tensor([f])).abs())
        along = float((w * delta).sum())
        condition = -y * along > 0 and abs(along) / float(norm.dual(w)) > zeta
        fooled = y * (float((w * (x + delta)).sum()) + b) < 0
        assert condition == fooled
        fooled_ones += fooled
    assert 30 < fooled_ones < 270


# Projections


@pytest.mark.parametrize("p", P)
def test_projection_keeps_what_is_inside_and_on_the_boundary(p: float) -> None:
    x = torch.full((3, 5), 0.5, dtype=torch.float64)
    ball = Ball(p, 0.3, box=None)
    inside = ball.norm.scale_to(normal(3, 5), torch.tensor([0.0, 0.1, 0.2999999], dtype=torch.float64))
    assert torch.equal(ball.project(inside, x), inside)
    boundary = ball.norm.scale_to(normal(3, 5), torch.full((3,), 0.3, dtype=torch.float64))
    torch.testing.assert_close(ball.project(boundary, x), boundary, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("p", P)
def test_projection_of_what_is_outside_lands_on_the_boundary(p: float) -> None:
    x = torch.zeros(50, 5, dtype=torch.float64)
    eps = torch.linspace(0.1, 2, 50, dtype=torch.float64)
    ball = Ball(p, eps, box=None)
    outside = ball.norm.scale_to(normal(50, 5), eps * 1.7)
    out = ball.project(outside, x)
    torch.testing.assert_close(ball.norm.norm(out), eps)
    torch.testing.assert_close(ball.project(out, x), out)  # idempotent
    assert bool((out * outside >= 0).all())  # no coordinate changes its sign


def test_projection_onto_l2_and_linf_closed_forms() -> None:
    x, d = torch.zeros(20, 7, dtype=torch.float64), normal(20, 7)
    torch.testing.assert_close(Ball("linf", 0.4, None).project(d, x), d.clamp(-0.4, 0.4))
    length = d.norm(dim=1, keepdim=True)
    torch.testing.assert_close(Ball("l2", 1.0, None).project(d, x), d / length.clamp(min=1))


def nearest_in_l1(d: np.ndarray, eps: float, bounds: list[tuple[float, float | None]]) -> np.ndarray:
    """By scipy: minimise ||a - c - d||^2 under sum (a + c) <= eps and the bounds of a and of c."""
    count = len(d)
    result = optimize.minimize(
        lambda v: ((v[:count] - v[count:] - d) ** 2).sum(),
        np.full(2 * count, 0.01),
        jac=lambda v: 2 * np.r_[v[:count] - v[count:] - d, -(v[:count] - v[count:] - d)],
        bounds=bounds,
        constraints=[{"type": "ineq", "fun": lambda v: eps - v.sum()}],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return result.x[:count] - result.x[count:]


def test_projection_onto_l1_is_the_nearest_point() -> None:
    """Against scipy: minimise ||u - d||^2 under ||u||_1 <= eps, written with u = a - c, a, c >= 0."""
    d, eps = normal(6, 4, seed=8), torch.tensor([0.2, 0.5, 1.0, 2.0, 4.0, 20.0], dtype=torch.float64)
    out = Ball("l1", eps, box=None).project(d, torch.zeros_like(d))
    for n in range(6):
        bounds = [(0, None)] * 8
        np.testing.assert_allclose(out[n], nearest_in_l1(d[n].numpy(), float(eps[n]), bounds), atol=1e-5)


@pytest.mark.parametrize("eps", [0.0, 0.1, 1.0, 5.0, 500.0])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_projection_onto_l1_ball_and_box_solves_its_equation(eps: float, dtype: torch.dtype, atol: float) -> None:
    """The nearest point is clip(sgn(d) (|d| - theta)+) with ||.||_1 = eps: theta by plain bisection instead."""
    x, d = points(20, 60, dtype=dtype), normal(20, 60, dtype=dtype)
    x[:, :10], x[:, 10:20] = 0, 1
    d *= torch.logspace(-3, 1, 20, dtype=dtype)[:, None]
    out = Ball("l1", eps).project(d, x)
    for n in range(20):
        row, start = d[n].double(), x[n].double()

        def point(theta: float, row: Tensor = row, start: Tensor = start) -> Tensor:
            return (row.sign() * (row.abs() - theta).clamp(min=0)).clamp(-start, 1 - start)

        low, high = 0.0, float(row.abs().max())
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if float(point(middle).abs().sum()) > eps else (low, middle)
        best = point(0.0) if float(point(0.0).abs().sum()) <= eps else point(high)
        torch.testing.assert_close(out[n].double(), best, rtol=0, atol=atol)


def test_projection_onto_l1_ball_and_box_is_the_nearest_point() -> None:
    """Against scipy: minimise ||u - d||^2 with u = a - c, 0 <= a <= 1 - x, 0 <= c <= x and sum a + c <= eps."""
    d, x = normal(6, 4, seed=8), points(6, 4)
    eps = torch.tensor([0.1, 0.3, 0.6, 1.0, 1.5, 4.0], dtype=torch.float64)
    out = Ball("l1", eps).project(d, x)
    for n in range(6):
        bounds = [(0, float(1 - u)) for u in x[n]] + [(0, float(u)) for u in x[n]]
        np.testing.assert_allclose(out[n], nearest_in_l1(d[n].numpy(), float(eps[n]), bounds), atol=1e-5)


# Steps


@pytest.mark.parametrize("p", P)
def test_steps_have_unit_norm_and_are_the_steepest_except_in_l1(p: float) -> None:
    g, x = normal(5, 8), points(5, 8)
    ball = Ball(p, 3.0)
    d = ball.step_direction(g, x, torch.zeros_like(x))
    torch.testing.assert_close(ball.norm.norm(d), torch.ones(5, dtype=torch.float64))
    assert bool((d * g >= 0).all())
    if p == 1:
        largest = g.abs().topk(3).indices  # eps 3 in a box of width 1 changes at least three values
        assert torch.equal((d != 0).nonzero()[:, 1].reshape(5, 3), largest.sort(1).values)
    else:
        assert torch.equal(d, ball.norm.steepest(g))
    assert torch.equal(Ball(p, 3.0, box=None).step_direction(g, x, torch.zeros_like(x)), ball.norm.steepest(g))


def test_sparse_steps_skip_values_that_the_box_stops() -> None:
    g = torch.tensor([[5.0, -4.0, 3.0, 2.0, 1.0]])
    x, delta = torch.tensor([[0.5, 0.0, 0.2, 0.3, 0.4]]), torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.0]])
    ball = Ball("l1", 1.0)
    assert ball.step_direction(g, x, delta, torch.tensor([2.0])).tolist() == [[0.0, 0.0, 0.5, 0.5, 0.0]]
    assert ball.step_direction(g, x, delta, torch.tensor([99.0])).count_nonzero() == 3
    assert not ball.step_direction(torch.zeros(1, 5), x, delta).any()


@pytest.mark.parametrize("p", P)
def test_projection_stays_in_ball_and_box(p: float) -> None:
    x = points(40, 6)
    x[0], x[1] = 0.0, 1.0
    ball = Ball(p, 0.7)
    delta = ball.project(normal(40, 6) * 2, x)
    assert float(ball.norm.norm(delta).max()) <= 0.7 + 1e-12
    assert float((x + delta).min()) >= -1e-15 and float((x + delta).max()) <= 1 + 1e-15
    assert float(ball.violation(x, ball.move(x, delta)).max()) <= 1e-12


def test_violation_names_the_excess() -> None:
    ball = Ball("linf", 0.1)
    x = torch.tensor([[0.5, 0.5], [0.95, 0.5], [0.5, 0.5]])
    x_adv = torch.tensor([[0.65, 0.5], [1.02, 0.5], [0.55, 0.45]])
    torch.testing.assert_close(ball.violation(x, x_adv).float(), torch.tensor([0.05, 0.02, 0.0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_half_precision_points_stay_inside_the_ball(p: float, dtype: torch.dtype) -> None:
    """x + delta rounded to the nearest half number would leave the ball by up to 6 % of 8/255."""
    x = points(30, 8, dtype=dtype)
    ball = Ball(p, 8 / 255)
    delta = ball.project(normal(30, 8, dtype=torch.float32), x)
    moved = ball.move(x, delta)
    assert moved.dtype == dtype
    assert float(ball.violation(x, moved).max()) <= 1e-8
    share = ball.norm.norm(moved.float() - x.float()) / ball.norm.norm(delta)
    assert float(share.min()) > (0.2 if p != math.inf else 0.8)  # and the perturbation is not rounded away


# Random starts


@pytest.mark.parametrize("p", P)
def test_random_start_is_uniform_in_the_ball(p: float) -> None:
    """The radius of a uniform point has P(||d|| <= r) = r^D, so E||d|| = D / (D + 1); signs are fair."""
    dim, count = 4, 4000
    x = points(count, dim, seed=2)
    delta = Ball(p, 1.0, box=None).random_start(x, seed=0)
    radius = Norm(p).norm(delta)
    assert float(radius.max()) <= 1
    assert float(radius.mean()) == pytest.approx(dim / (dim + 1), abs=0.01)
    assert stats.kstest(radius.numpy() ** dim, "uniform").pvalue > 1e-3
    assert bool((delta.mean(0).abs() < 4 * delta.std(0) / math.sqrt(count)).all())
    correlation = torch.corrcoef(delta.T) - torch.eye(dim, dtype=torch.float64)
    assert float(correlation.abs().max()) < 4 / math.sqrt(count)


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_random_start_stays_in_ball_and_box_for_every_eps(p: float, dtype: torch.dtype) -> None:
    x = points(60, 2, 3, 3, seed=2, dtype=dtype)
    x[:5], x[5:10] = 0, 1
    eps = torch.linspace(0.01, 3, 60)
    ball = Ball(p, eps)
    start = ball.random_start(x, seed=5)
    assert start.shape == x.shape
    assert bool((ball.norm.norm(start) <= eps * (1 + 1e-6)).all())
    moved = ball.move(x, start)
    assert float(ball.violation(x, moved).max()) <= 1e-6
    assert float(ball.norm.norm(start).min()) > 0


def test_random_start_does_not_depend_on_the_batch() -> None:
    x = points(10, 5)
    ball = Ball("l2", torch.linspace(0.1, 1, 10))
    whole = ball.random_start(x, seed=3)
    order = torch.tensor([7, 2, 9])
    assert torch.equal(ball.take(order).random_start(x[order], seed=3), whole[order])
    assert not torch.equal(ball.random_start(x, seed=4), whole)


def test_empty_batch() -> None:
    x = torch.zeros(0, 3)
    ball = Ball("l1", 0.5)
    ball.check(x)
    assert ball.random_start(x, 0).shape == ball.project(x, x).shape == (0, 3)
    assert ball.violation(x, x).shape == (0,)


# Bad balls


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        (-0.1, "eps is -0.1;"),
        (math.nan, "eps is nan;"),
        (math.inf, "eps is inf;"),
        ("8/255", "eps is '8/255';"),
        (None, "eps is None;"),
        (torch.tensor(-1.0), "eps is -1.0;"),
        (torch.tensor([0.1, -0.5]), r"eps holds -0.5"),
        (torch.tensor([0.1, math.nan]), "eps holds nan"),
        (torch.ones(2, 2), r"eps has shape \(2, 2\)"),
    ],
)
def test_bad_eps(eps: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ball("linf", eps)


@pytest.mark.parametrize("eps", [1, 0.1, np.float32(0.1), np.float64(0.1), torch.tensor(0.1), torch.tensor([0.1])])
def test_good_eps(eps: object) -> None:
    assert float(torch.as_tensor(Ball(2, eps).eps).reshape(-1)[0]) > 0


@pytest.mark.parametrize("box", [(1.0, 0.0), (0.5, 0.5), (0.0, 1.0, 2.0)])
def test_bad_box(box: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match=r"it must be \(low, high\) with low < high, or None"):
        Ball("linf", 0.1, box)


def test_inputs_outside_the_box() -> None:
    ball = Ball("linf", 0.1)
    ball.check(torch.tensor([[-1e-7, 1 + 1e-7]]))  # float noise is not an error
    with pytest.raises(InputError, match=r"x has values in \[0, 255\], outside the box .*divide 8-bit images by 255"):
        ball.check(torch.tensor([[0.0, 255.0]]))
    with pytest.raises(InputError, match=r"x has values in \[-2.1, 1.3\].*move normalisation into the model"):
        ball.check(torch.tensor([[-2.1, 1.3]]))
    Ball("linf", 0.1, box=None).check(torch.tensor([[-2.1, 300.0]]))


def test_eps_of_another_batch() -> None:
    with pytest.raises(InputError, match="eps has 2 values for 3 samples"):
        Ball("linf", torch.tensor([0.1, 0.2])).check(torch.zeros(3, 4))


def test_per_sample_broadcasts() -> None:
    assert per_sample(torch.ones(3), torch.zeros(3, 2, 2)).shape == (3, 1, 1)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 3072])
def test_sums_of_samples_on_every_device(count: int) -> None:
    """The way CUDA takes is plain arithmetic: tried on the CPU by a tensor that claims to be on a GPU."""

    class Claims(torch.Tensor):
        is_cuda = True

    v = points(5, count)
    claimed = v.as_subclass(Claims)
    torch.testing.assert_close(total(claimed).as_subclass(torch.Tensor), v.sum(1))
    torch.testing.assert_close(running_total(claimed).as_subclass(torch.Tensor), v.cumsum(1))
    assert torch.equal(total(claimed[:2]), total(claimed)[:2])


def test_long_rows_are_added_alike_in_any_batch_and_by_any_number_of_threads() -> None:
    threads = torch.get_num_threads()
    v = torch.rand(3, 150_528, generator=torch.Generator().manual_seed(0))
    try:
        torch.set_num_threads(2)
        for norm in (Norm(1), Norm(2)):
            assert torch.equal(norm.norm(v)[:1], norm.norm(v[:1]))
        assert torch.equal(total(v)[1:2], total(v[1:2]))
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(total(v), v.double().sum(1).float())


@pytest.mark.parametrize("p", [1, 1.5, 2, math.inf])
def test_points_from_far_away_end_inside(p: float) -> None:
    """What a user's attack may well project: rounding in float32 must not carry it further than the judge allows."""
    x = torch.rand(50, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    ball = Ball(p, 0.5)
    delta = ball.project(1e4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1)), x)
    excess = ball.violation(x, ball.move(x, delta)) - ball.tolerance(x.double())
    assert float(excess.max()) <= 0


@pytest.mark.parametrize(
    ("norm", "eps", "pixels", "odd"),
    [
        ("l1", 12.0, 32, False),
        ("l1", 255.0, 32, True),
        ("l2", 3.0, 224, False),
        ("l2", 3.0, 32, True),
        ("l2", 2.5, 32, False),
        ("linf", 8.0, 32, True),
    ],
)
def test_an_eps_of_another_scale_is_noticed(norm: str, eps: float, pixels: int, odd: bool) -> None:
    assert (odd_scale(Ball(norm, eps), (3, pixels, pixels)) is not None) is odd
