"""Square against closed forms, members without useful gradients, and the formulas of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from recarc import AutoPGD, Ball, InputError, RandomizedEnsemble, Restarts, Square
from recarc.attacks import Best
from recarc.attacks.problem import frozen_problem
from recarc.attacks.square import Picture, two_bumps
from tiny import Recorder, binary, cnn, labels_of, mlp_ensemble, points

RADIUS = {1: 0.8, 1.5: 0.5, 2: 0.4, 50: 0.1, math.inf: 0.1}
every_norm = pytest.mark.parametrize("p", [1, 2, math.inf])


def cnns(count: int = 12) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    ensemble = RandomizedEnsemble([cnn(i) for i in range(3)], [0.3, 0.5, 0.2])
    x = points(count, 2, 4, 4)
    return ensemble, x, labels_of(ensemble, x)


class Unfoolable(nn.Module):
    """Always right, with a margin that depends on the input: the search goes on to its last query."""

    def forward(self, x: Tensor) -> Tensor:
        score = 1 + x.flatten(1).sin().sum(1).square()
        return torch.stack([score, torch.zeros_like(score)], dim=1)


# Feasible


@pytest.mark.parametrize("shape", [(5,), (1,), (6, 7), (3, 9, 9), (2, 12, 5), (2, 2, 4, 4)])
@pytest.mark.parametrize("p", RADIUS)
def test_every_query_is_in_ball_and_box(p: float, shape: tuple[int, ...]) -> None:
    member = Recorder(Unfoolable())
    x = points(6, *shape)
    x[0], x[1] = 0.0, 1.0
    ball = Ball(p, RADIUS[p] * torch.tensor([1.0, 1.0, 0.0, 0.1, 3.0, 30.0], dtype=torch.float64))
    Square(queries=40)(member, x, torch.zeros(6, dtype=torch.long), ball)
    clean, *queries = member.seen
    assert torch.equal(clean, x) and len(queries) == 40
    for u in queries:
        assert u.shape == x.shape and bool(torch.isfinite(u).all())
        assert float(ball.violation(x, u).max()) <= 1e-12
        assert torch.equal(u[2], x[2])
    moved = torch.stack([ball.norm.norm(u - x) for u in queries])
    if p != math.inf:  # what the box takes is spent elsewhere, where there is an elsewhere
        assert shape == (1,) or bool((moved[:, 3] > 0.9 * ball.radius(x)[3]).all())
    else:
        assert bool((moved[:, 3:] > 0).all())


@every_norm
def test_never_worse_than_clean(p: float) -> None:
    ensemble, x, y = cnns(40)
    y[::3] = (y[::3] + 1) % 5  # some are wrong at x
    clean = ensemble.expected_accuracy(x, y)
    attacked = ensemble.expected_accuracy(Square(queries=20)(ensemble, x, y, Ball(p, RADIUS[p])), y)
    assert bool((attacked <= clean).all()) and float(attacked.mean()) < float(clean.mean()) - 0.1


# Closed form


@pytest.mark.parametrize(("p", "enough"), [(math.inf, 1.02), (2, 1.3), (1, 1.3)])
def test_fools_a_linear_member_just_beyond_its_distance(p: float, enough: float) -> None:
    """Without a box member <w, x> + b falls at eps > |<w, x> + b| / ||w||_q, and nothing fools it below."""
    w = torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    member = binary(w, 0.1)
    x = points(30, 16, seed=3)
    y = member(x).argmax(1)
    norm = Ball(p, 1).norm
    distance = (x @ w + 0.1).abs() / norm.dual(w[None])
    for factor, queries, fooled in ((enough, 1500, True), (0.98, 200, False)):
        x_adv = Square(queries=queries)(member, x, y, Ball(p, factor * distance, box=None))
        assert bool(((member(x_adv).argmax(1) != y) == fooled).all())


# What gradients do not see


class Quantised(nn.Module):
    """A linear member on inputs in 8 levels, with a faint leak whose gradient points the wrong way."""

    def __init__(self, w: Tensor, leak: float) -> None:
        super().__init__()
        self.w, self.leak = w, leak

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1) - 0.5
        levels = ((flat * 8).floor() + 0.5) / 8
        score = (levels.detach() - self.leak * flat) @ self.w
        return torch.stack([-score, score], dim=1)


@pytest.mark.parametrize("leak", [0.0, 1e-3])
def test_finds_what_gradients_do_not_see(leak: float) -> None:
    w = torch.randn(3 * 8 * 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    member = Quantised(w, leak)
    x = points(20, 3, 8, 8)
    y, ball = member(x).argmax(1), Ball("linf", 0.25)
    by_gradient = member(AutoPGD(steps=50, random_init=False)(member, x, y, ball)).argmax(1) == y
    by_search = member(Square(queries=300)(member, x, y, ball)).argmax(1) == y
    assert float(by_gradient.double().mean()) >= 0.9
    assert not bool(by_search.any())


# The search


@every_norm
def test_more_queries_find_more(p: float) -> None:
    ensemble, x, y = cnns(60)
    ball = Ball(p, RADIUS[p] / 2)
    found = [
        float(ensemble.expected_accuracy(Square(queries=n)(ensemble, x, y, ball), y).mean()) for n in (1, 10, 100, 400)
    ]
    assert found == sorted(found, reverse=True) and found[-1] < found[1] - 0.02


@every_norm
def test_the_result_is_the_best_point_that_was_queried(p: float) -> None:
    ensemble, x, y = cnns(1)
    recorder = Recorder(ensemble.members[0])
    watched = RandomizedEnsemble([recorder, *ensemble.members[1:]], ensemble.alpha)
    x_adv = Square(queries=50)(watched, x, y, Ball(p, RADIUS[p] / 2))
    seen = torch.cat(recorder.seen)
    values = ensemble.expected_accuracy(seen, y.expand(len(seen)))
    assert float(ensemble.expected_accuracy(x_adv, y)) == float(values.min())
    assert torch.equal(x_adv[0], seen[int(values.argmin())])  # the first of them


@every_norm
def test_neither_batch_nor_order_matters(p: float) -> None:
    ensemble, x, y = cnns(9)
    eps = torch.linspace(0.2, 1, 9, dtype=torch.float64) * RADIUS[p]
    attack = Square(queries=60)
    whole = attack(ensemble, x, y, Ball(p, eps))
    alone = torch.cat([attack(ensemble, x[[n]], y[[n]], Ball(p, eps[[n]])) for n in range(9)])
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-12)
    order = torch.tensor([3, 1, 4, 5, 2, 6, 8, 7, 0])
    shuffled = attack(ensemble, x[order], y[order], Ball(p, eps[order]))
    torch.testing.assert_close(shuffled, whole[order], rtol=0, atol=1e-12)


def test_works_on_survivors_of_one_member() -> None:
    """As a stage would use it: one member, the samples that still stand, the same points as on all samples."""
    ensemble, x, y = cnns()
    attack, ball = Square(queries=30, member=2), Ball("linf", 0.05)
    with frozen_problem(ensemble, x, y, ball) as problem:
        best, standing = Best.clean(problem), torch.tensor([1, 4, 5, 9])
        part = attack.perturb(problem.take(standing))
        best.consider(problem, part, standing)
    torch.testing.assert_close(part, attack(ensemble, x, y, ball)[standing], rtol=0, atol=1e-12)


def test_finished_samples_and_members_of_probability_zero_are_not_asked() -> None:
    ensemble, x, y = cnns(20)
    recorders = [Recorder(member) for member in ensemble.members]
    watched = RandomizedEnsemble(recorders, [0.5, 0.0, 0.5])
    Square(queries=200)(watched, x, y, Ball("linf", 0.3))
    asked = [sum(map(len, recorder.seen)) for recorder in recorders]
    assert asked[1] == 20 and asked[0] == asked[2] < 20 * 50


def test_the_scale_of_a_members_logits_does_not_matter() -> None:
    class Louder(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return 1024 * self.inner(x)

    ensemble, x, y = cnns()
    first, *others = ensemble.members
    louder = RandomizedEnsemble([Louder(first), *others], ensemble.alpha)
    ball = Ball("linf", 0.03)
    x_adv = Square(queries=100)(ensemble, x, y, ball)
    assert torch.equal(Square(queries=100)(louder, x, y, ball), x_adv)
    assert 0 < float(ensemble.expected_accuracy(x_adv, y).mean()) < 0.9


def test_restarts_draw_other_windows() -> None:
    ensemble, x, y = cnns(40)
    ball = Ball("l2", 0.2)
    once, again = (Square(queries=20, seed=s)(ensemble, x, y, ball) for s in (0, 1))
    both = Restarts(Square(queries=20), 2)(ensemble, x, y, ball)
    v_once, v_again, v_both = (ensemble.expected_accuracy(u, y) for u in (once, again, both))
    assert not torch.equal(once, again) and torch.equal(v_both, torch.minimum(v_once, v_again))


# The formulas


def test_the_schedule_is_the_papers() -> None:
    attack = Square(queries=10_000, p_init=0.8)
    assert [attack._share(k) for k in (1, 10, 11, 50, 51, 8000, 8001)] == [0.8 / 2**n for n in (0, 0, 1, 1, 2, 8, 9)]
    short = Square(queries=500, p_init=0.8)
    assert all(short._share(k) == attack._share(20 * k) for k in range(1, 500))


def test_windows() -> None:
    assert Picture.of(points(2, 3, 32, 32)) == Picture(3, 32, 32)
    assert Picture.of(points(2, 7)) == Picture(1, 1, 7) and Picture.of(points(2, 4, 5)) == Picture(1, 4, 5)
    assert Picture(3, 32, 32).sides(0.8, 1) == (29, 29) and Picture(3, 32, 32).sides(1e-4, 1) == (1, 1)
    assert Picture(3, 32, 32).sides(1e-4, 3) == (3, 3) and Picture(1, 2, 2).sides(1e-4, 3) == (2, 2)
    assert Picture(1, 1, 100).sides(0.8, 1) == (1, 80) and Picture(1, 100, 4).sides(0.5, 1) == (50, 4)
    picture = Picture(2, 5, 4)
    corners = torch.tensor([[1e-9, 1e-9], [1 - 1e-9, 1 - 1e-9]], dtype=torch.float64)
    places = picture.window(corners, 2, 3)
    assert places.shape == (2, 2, 6)
    assert places[0, 1].tolist() == [0, 1, 2, 4, 5, 6] and places[1, 0].tolist() == [13, 14, 15, 17, 18, 19]


def literal_bump(h1: int, h2: int, power: int) -> Tensor:
    """eta^(h1, h2) as the paper prints it, with indices from 1."""
    n = h1 // 2
    eta = torch.zeros(h1, h2, dtype=torch.float64)
    for r in range(1, h1 + 1):
        for s in range(1, h2 + 1):
            steps = n - max(abs(r - h1 // 2 - 1), abs(s - h2 // 2 - 1))
            eta[r - 1, s - 1] = sum(1 / (n + 1 - k) ** power for k in range(steps + 1))
    return eta


@pytest.mark.parametrize("side", [3, 4, 5, 8, 13])
@pytest.mark.parametrize(("p", "power"), [(2, 2), (1, 4)])
def test_bumps_are_the_papers(side: int, p: float, power: int) -> None:
    left = side // 2
    expected = torch.cat([literal_bump(side, left, power), -literal_bump(side, side - left, power)], dim=1)
    expected /= torch.linalg.vector_norm(expected, p)
    torch.testing.assert_close(two_bumps(side, side, p), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"queries": 0}, "queries is 0; it must be a whole number of at least 1"),
        ({"p_init": 0.0}, "p_init is 0.0; it must be a share of the picture, > 0 and at most 1"),
        ({"p_init": 1.5}, "p_init is 1.5"),
        ({"p_init": math.nan}, "p_init is nan"),
    ],
)
def test_bad_knobs(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Square(**knobs)


def test_a_member_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"member 3 does not exist; the ensemble has members 0\.\.2"):
        Square(member=3)(mlp_ensemble(3), points(2, 6), torch.tensor([0, 1]), Ball("l2", 0.3))
