"""The exact optimum against closed forms, brute force, and a second formulation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from mixed_integer import heaviest_by_milp
from torch import Tensor, nn

from halfspace_oracle import smallest_radius
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.exact import Optimum, optimum
from recarc.exact.affine import affine_parameters
from recarc.geometry import Ball

NORMS = [1, 2, math.inf]
BOX = (0.0, 1.0)


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    return layer


def binary(w: Sequence[float], b: float, dtype: torch.dtype = torch.float64) -> nn.Linear:
    """A member with margin w . x + b for label 1."""
    row = torch.tensor(w, dtype=dtype)
    return linear(torch.stack([torch.zeros_like(row), row]), torch.tensor([0.0, b], dtype=dtype))


def random_case(
    members: int, dim: int, classes: int, count: int, seed: int, dtype: torch.dtype = torch.float64
) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Members that mostly agree on x in the box, unequal alpha; a fifth of the labels is random."""
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(classes, dim, generator=g, dtype=dtype)
    x = torch.rand(count, dim, generator=g, dtype=dtype)
    parts = []
    for _ in range(members):
        w = common + torch.randn(classes, dim, generator=g, dtype=dtype)
        parts.append(linear(w, 0.1 * torch.randn(classes, generator=g, dtype=dtype) - 0.5 * w.sum(1)))
    alpha = torch.rand(members, generator=g, dtype=torch.float64) + 0.2
    y = parts[0](x).argmax(1)
    random = torch.rand(count, generator=g) < 0.2
    y = torch.where(random, torch.randint(0, classes, (count,), generator=g), y)
    return RandomizedEnsemble(parts, alpha / alpha.sum()), x, y


def conflicting_case(
    p: float, eps: float, members: int, dim: int, seed: int
) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Binary members in all directions, each within reach of eps alone, some wrong at x: few can be fooled together."""
    rng = np.random.default_rng(seed)
    x = 0.5 + 0.1 * eps * torch.from_numpy(rng.uniform(-1, 1, size=(4, dim)))
    parts = []
    for _ in range(members):
        w = rng.normal(size=dim)
        distance = eps * rng.uniform(-0.2, 0.9) * np.linalg.norm(w, ord=Ball(p, eps).norm.q)
        parts.append(binary(w.tolist(), distance - 0.5 * w.sum()))
    return RandomizedEnsemble(parts, rng.dirichlet(4 * np.ones(members))), x, torch.ones(4, dtype=torch.long)


def radius(p: float, dim: int, scale: float = 0.1) -> float:
    return scale if math.isinf(p) else scale * dim ** (1 / p) * 0.7


def solved(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, milp: bool) -> Optimum:
    """The optimum by the package's search, or with the mixed-integer program in its place."""
    with pytest.MonkeyPatch.context() as patch:
        if milp:
            patch.setattr("recarc.exact.linear.heaviest_set", heaviest_by_milp)
        return optimum(ensemble, x, y, ball)


def check_point(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, milp: bool = False) -> Tensor:
    """The optimum's own promises: feasible, realised, and worth what it says."""
    result = solved(ensemble, x, y, ball, milp)
    assert result.x_adv.shape == x.shape and result.x_adv.dtype == x.dtype
    assert float(ball.violation(x, result.x_adv).max()) == 0
    assert bool(result.realised.all())
    assert torch.equal(ensemble.expected_accuracy(result.x_adv, y), result.accuracy)
    assert torch.equal(ensemble.score(~result.fooled), result.accuracy)
    return result.accuracy


@pytest.mark.parametrize("p", NORMS)
def test_one_member_is_fooled_iff_its_distance_is_below_eps(p: float) -> None:
    ensemble, x, _ = random_case(1, 12, 2, 40, seed=0)
    y = ensemble.predictions(x)[0]
    w, b = affine_parameters(ensemble.members[0], x)
    gap = (w[0] - w[1]).expand_as(x)
    ball = Ball(p, 1.0, None)
    zeta = ball.norm.distance(gap, x @ (w[0] - w[1]) + b[0] - b[1]).abs()
    assert not optimum(ensemble, x, y, Ball(p, zeta * (1 + 1e-6), None)).accuracy.any()
    assert optimum(ensemble, x, y, Ball(p, zeta * (1 - 1e-6), None)).accuracy.all()
    some = Ball(p, float(zeta.median()) * 1.01, None)
    assert torch.equal(check_point(ensemble, x, y, some) == 0, zeta < some.eps)


def test_one_member_in_a_box_linf() -> None:
    ensemble, x, _ = random_case(1, 12, 2, 60, seed=1)
    y = ensemble.predictions(x)[0]
    w, b = affine_parameters(ensemble.members[0], x)
    gap = torch.where(y[:, None] == 0, w[0] - w[1], w[1] - w[0])
    margin = (x * gap).sum(1) + torch.where(y == 0, b[0] - b[1], b[1] - b[0])
    eps = 0.05
    drop = (gap * torch.where(gap > 0, (-x).clamp(min=-eps), (1 - x).clamp(max=eps))).sum(1)
    foolable = margin + drop < 0
    assert foolable.any() and not foolable.all()
    assert torch.equal(check_point(ensemble, x, y, Ball("linf", eps, BOX)) == 0, foolable)


@pytest.mark.parametrize(("p", "milp"), [(1, False), (1, True), (2, False), (math.inf, False), (math.inf, True)])
def test_opposite_members_are_never_fooled_together(p: float, milp: bool) -> None:
    members = [binary([1.0, 2.0], 0.3), binary([-1.0, -2.0], 0.3)]
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.long)
    ball = Ball(p, 1.0, None)
    assert check_point(RandomizedEnsemble(members), x, y, ball, milp).item() == 0.5
    assert check_point(RandomizedEnsemble(members, [0.7, 0.3]), x, y, ball, milp).item() == 0.3
    assert check_point(RandomizedEnsemble(members, [1.0, 0.0]), x, y, ball, milp).item() == 0
    assert check_point(RandomizedEnsemble(members), x, y, Ball(p, 0.05, None), milp).item() == 1


@pytest.mark.parametrize("p", NORMS)
def test_a_member_already_wrong_may_have_to_be_given_up(p: float) -> None:
    fooled_below, wrong_above = binary([1.0], 0.5), binary([-1.0], -0.2)  # delta < -0.5; delta > -0.2, so wrong at 0
    x, y, ball = torch.zeros(1, 1).double(), torch.ones(1, dtype=torch.long), Ball(p, 1.0, None)
    keep = optimum(RandomizedEnsemble([fooled_below, wrong_above], [0.4, 0.6]), x, y, ball)
    assert keep.accuracy.item() == 0.4 and keep.fooled[:, 0].tolist() == [False, True]
    drop = optimum(RandomizedEnsemble([fooled_below, wrong_above], [0.6, 0.4]), x, y, ball)
    assert drop.accuracy.item() == 0.4 and drop.fooled[:, 0].tolist() == [True, False]
    near = binary([-1.0], -0.7)  # wrong for delta > -0.7: both at once in between
    both = optimum(RandomizedEnsemble([fooled_below, near]), x, y, ball)
    assert both.accuracy.item() == 0 and -0.7 < both.x_adv.item() < -0.5
    assert both.x_adv.item() == pytest.approx(-0.6)  # the deepest point


@pytest.mark.parametrize("milp", [False, True])
def test_the_heaviest_member_may_have_to_be_given_up(milp: bool) -> None:
    members = [binary([1.0, 1.0], 0.2), binary([-1.0, -0.9], 0.2), binary([-0.9, -1.0], 0.2)]
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.long)
    for alpha, expected in (([0.4, 0.3, 0.3], 0.4), ([0.6, 0.2, 0.2], 0.4)):
        result = solved(RandomizedEnsemble(members, alpha), x, y, Ball("linf", 1.0, None), milp)
        assert result.accuracy.item() == pytest.approx(expected)
        assert result.fooled[:, 0].tolist() == [alpha[0] > 0.5, alpha[0] < 0.5, alpha[0] < 0.5]


def best_by_enumeration(ensemble: RandomizedEnsemble, x: Tensor, label: int, ball: Ball) -> float:
    """Every choice of one wrong class, or none, for each member, the heaviest first, tested by its smallest radius."""
    parameters = [affine_parameters(member, x[None]) for member in ensemble.members]
    classes, alpha = len(parameters[0][1]), ensemble.alpha.tolist()

    def mass(choice: tuple[int | None, ...]) -> float:
        return float(sum(a for a, c in zip(alpha, choice) if c is not None))

    choices = itertools.product([None, *(c for c in range(classes) if c != label)], repeat=len(parameters))
    for choice in sorted(choices, key=mass, reverse=True):
        picked = [(w, b, c) for (w, b), c in zip(parameters, choice) if c is not None]
        if not picked:
            break
        gaps = np.stack([(w[label] - w[c]).numpy() for w, _, c in picked])
        margins = gaps @ x.numpy() + np.array([float(b[label] - b[c]) for _, b, c in picked])
        if smallest_radius(gaps, margins, ball.norm) < ball.eps:
            return 1 - mass(choice)
    return 1.0


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize(("members", "classes", "dim"), [(4, 2, 6), (3, 3, 8)])
def test_optimum_equals_full_enumeration(p: float, members: int, classes: int, dim: int) -> None:
    ensemble, x, y = random_case(members, dim, classes, 12, seed=members)
    ball = Ball(p, radius(p, dim), None)
    exact = check_point(ensemble, x, y, ball)
    expected = [best_by_enumeration(ensemble, x[n], int(y[n]), ball) for n in range(len(x))]
    assert exact.tolist() == pytest.approx(expected, abs=1e-9)
    assert len(exact.unique()) >= 3


@pytest.mark.parametrize("p", NORMS)
def test_conflicting_members_equal_full_enumeration_and_milp(p: float) -> None:
    accuracies = []
    for seed in range(8):
        ball = Ball(p, 0.2, None)
        ensemble, x, y = conflicting_case(p, 0.2, members=5, dim=2 + seed % 3, seed=seed)
        exact = check_point(ensemble, x, y, ball)
        expected = [best_by_enumeration(ensemble, x[n], 1, ball) for n in range(len(x))]
        assert exact.tolist() == pytest.approx(expected, abs=1e-9)
        if p != 2:
            assert torch.equal(check_point(ensemble, x, y, ball, milp=True), exact)
        accuracies += exact.tolist()
    assert sum(0 < a < 1 for a in accuracies) > 16


@pytest.mark.parametrize("box", [None, BOX])
@pytest.mark.parametrize("p", [1, math.inf])
@pytest.mark.parametrize(("members", "classes", "count"), [(2, 2, 15), (5, 2, 15), (10, 2, 5), (3, 5, 8)])
def test_search_and_milp_agree(
    p: float, box: tuple[float, float] | None, members: int, classes: int, count: int
) -> None:
    ensemble, x, y = random_case(members, 10, classes, count, seed=members)
    ball = Ball(p, radius(p, 10), box)
    assert torch.equal(check_point(ensemble, x, y, ball), check_point(ensemble, x, y, ball, milp=True))


@pytest.mark.parametrize("box", [None, BOX])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("p", NORMS)
def test_random_points_never_beat_the_optimum(p: float, classes: int, box: tuple[float, float] | None) -> None:
    ensemble, x, y = random_case(4, 3, classes, 10, seed=7)
    ball = Ball(p, radius(p, 3, 0.2), box)
    exact = check_point(ensemble, x, y, ball)
    best = torch.ones_like(exact)
    for seed in range(100):
        delta = ball.random_start(x, seed)
        if seed % 2:
            delta = ball.project(delta * 3, x)
        best = torch.minimum(best, ensemble.expected_accuracy(x + delta, y))
    assert bool((exact <= best + 1e-9).all())
    assert float((best == exact).double().mean()) > 0.5


@pytest.mark.parametrize("p", NORMS)
def test_larger_sets_of_perturbations_are_at_least_as_strong(p: float) -> None:
    ensemble, x, y = random_case(5, 8, 3, 15, seed=11)
    x = (x > 0.5).double() * 0.9 + 0.05  # the box matters
    eps = radius(p, 8, 0.15)
    free, boxed = (check_point(ensemble, x, y, Ball(p, eps, box)) for box in (None, BOX))
    smaller = check_point(ensemble, x, y, Ball(p, eps / 2, BOX))
    assert bool((free <= boxed).all()) and bool((free < boxed).any())
    assert bool((boxed <= smaller).all()) and bool((boxed < smaller).any())
    assert bool((smaller <= ensemble.expected_accuracy(x, y)).all())


def test_eps_of_every_sample_is_its_own() -> None:
    ensemble, x, y = random_case(4, 8, 2, 12, seed=13)
    eps = torch.linspace(0.01, 0.3, 12, dtype=torch.float64)
    together = check_point(ensemble, x, y, Ball("linf", eps, BOX))
    alone = [optimum(ensemble, x[n : n + 1], y[n : n + 1], Ball("linf", float(eps[n]), BOX)) for n in range(12)]
    assert torch.equal(together, torch.cat([single.accuracy for single in alone]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", NORMS)
def test_low_precision_inputs(p: float, dtype: torch.dtype) -> None:
    ensemble, x, y = random_case(3, 16, 2, 12, seed=17, dtype=dtype)
    x = x.reshape(12, 1, 4, 4)
    flat = RandomizedEnsemble([nn.Sequential(nn.Flatten(), m) for m in ensemble.members], ensemble.alpha)
    ball = Ball(p, radius(p, 16, 0.2), BOX)
    result = optimum(flat, x, y, ball)
    assert result.x_adv.dtype == dtype and result.x_adv.shape == x.shape
    assert float(ball.violation(x, result.x_adv).max()) == 0
    at_point = flat.expected_accuracy(result.x_adv, y)
    assert torch.equal(at_point[result.realised], result.accuracy[result.realised])
    assert float(result.realised.double().mean()) >= (1 if dtype == torch.float32 else 0.8)


def test_a_set_foolable_only_between_two_floats_is_reported_as_not_realised() -> None:
    below, above = binary([1.0], -0.7), binary([-1.0], 0.7 - 1e-8)  # fooled for x < 0.7; for x > 0.7 - 1e-8
    wide = RandomizedEnsemble([lambda x: below(x.double()), lambda x: above(x.double())])
    x, y = torch.ones(1, 1), torch.ones(1, dtype=torch.long)
    for p in NORMS:
        result = optimum(wide, x, y, Ball(p, 0.5, BOX))
        assert result.accuracy.item() == 0 and not result.realised.item()
    assert check_point(wide, x.double(), y, Ball("linf", 0.5, BOX)).item() == 0


def test_nearly_equal_and_nearly_opposite_members() -> None:
    g = torch.Generator().manual_seed(19)
    w = torch.randn(10, generator=g, dtype=torch.float64)
    for noise in (0.0, 1e-6, 1e-3):
        signs = [1, 1, 1, -1, -1]
        rows = [s * w + noise * torch.randn(10, generator=g, dtype=torch.float64) for s in signs]
        ensemble = RandomizedEnsemble([binary(row.tolist(), 0.1) for row in rows])
        x, y = 0.1 * torch.randn(4, 10, generator=g, dtype=torch.float64), torch.ones(4, dtype=torch.long)
        for p in (1, math.inf):
            ball = Ball(p, 1.0, None)
            assert torch.equal(check_point(ensemble, x, y, ball), solved(ensemble, x, y, ball, milp=True).accuracy)
        check_point(ensemble, x, y, Ball(2, 1.0, None))


def test_all_norms_agree_on_a_line() -> None:
    rng = np.random.default_rng(31)
    masses = set()
    for gap in [1e-2, 1e-5, 1e-8, 1e-10] * 3:  # intervals that overlap, or miss each other, by about the gap
        edges = 0.4 + gap * rng.normal(size=5)
        members = [binary([s], -s * e) for s, e in zip((1.0, -1.0, 1.0, -1.0, 1.0), edges)]
        ensemble = RandomizedEnsemble(members, [0.3, 0.3, 0.2, 0.1, 0.1])
        x, y = torch.tensor([[0.9], [0.1]]).double(), torch.ones(2, dtype=torch.long)
        accuracy = [check_point(ensemble, x, y, Ball(p, 0.7, box)).tolist() for p in NORMS for box in (None, BOX)]
        assert all(values == accuracy[0] for values in accuracy)
        masses.add(accuracy[0][0])
    assert len(masses) >= 3


def test_ties_are_not_fooled() -> None:
    x = torch.zeros(1, 2, dtype=torch.float64)
    constant, wrong = linear(torch.zeros(2, 2).double(), torch.zeros(2).double()), binary([0.0, 0.0], -1.0)
    label = torch.ones(1, dtype=torch.long)
    assert optimum(RandomizedEnsemble([constant]), x, label, Ball("linf", 1.0, None)).accuracy.item() == 1
    assert check_point(RandomizedEnsemble([wrong]), x, label, Ball("linf", 1.0, None)).item() == 0
    assert check_point(RandomizedEnsemble([binary([1.0, 0.0], 0.0)]), x, label, Ball(2, 1e-3, None)).item() == 0


def test_nothing_is_changed() -> None:
    ensemble, x, y = random_case(2, 4, 2, 3, seed=23)
    ensemble.train()
    before = x.clone()
    x.requires_grad_()
    result = optimum(ensemble, x, y, Ball("linf", 0.2, BOX))
    assert not result.x_adv.requires_grad and torch.equal(x, before) and x.grad is None
    assert ensemble.training and all(m.training for m in ensemble.members)
    assert all(p.requires_grad and p.grad is None for p in ensemble.parameters())


def test_empty_batch() -> None:
    ensemble, x, y = random_case(2, 4, 2, 3, seed=23)
    result = optimum(ensemble, x[:0], y[:0], Ball("linf", 0.2, BOX))
    assert result.accuracy.shape == (0,) and result.x_adv.shape == (0, 4) and result.fooled.shape == (2, 0)


def test_bad_input() -> None:
    ensemble, x, y = random_case(2, 4, 3, 3, seed=29)
    ball = Ball("linf", 0.1, BOX)
    deep = RandomizedEnsemble([ensemble.members[0], nn.Sequential(ensemble.members[1], nn.ReLU())])
    with pytest.raises(InputError, match="member 1: it is not affine"):
        optimum(deep, x, y, ball)
    with pytest.raises(InputError, match=r"not for l1\.5"):
        optimum(ensemble, x, y, Ball(1.5, 0.1, BOX))
    with pytest.raises(InputError, match=r"labels span 3\.\.3"):
        optimum(ensemble, x, torch.full_like(y, 3), ball)
    with pytest.raises(InputError, match="expected one label per sample"):
        optimum(ensemble, x, y[:2], ball)
    with pytest.raises(InputError, match="outside the box"):
        optimum(ensemble, x + 1, y, ball)
    with pytest.raises(InputError, match="NaN"):
        optimum(ensemble, x * math.nan, y, ball)
    with pytest.raises(InputError, match="disagree on the number of classes"):
        optimum(RandomizedEnsemble([ensemble.members[0], binary([1.0] * 4, 0.0)]), x, y, ball)
