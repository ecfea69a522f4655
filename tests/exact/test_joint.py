"""Joint certificates: no point fools a set that is excluded, and for linear members they are the whole truth."""

from __future__ import annotations

import itertools

import pytest
import torch

from exact.random_networks import points_of, relu_mlp
from recarc import Ball, RandomizedEnsemble
from recarc.exact import joint, optimum
from recarc.exact.bounds import margins
from recarc.exact.joint import Certified, joint_certificates, sets_of, vacuous
from recarc.exact.network import network_of
from tiny import linear


def certified(rec: RandomizedEnsemble, x: torch.Tensor, y: torch.Tensor, ball: Ball, steps: int = 5) -> Certified:
    found = [margins(network_of(member, x), x, y, ball, steps) for member in rec.members]
    return Certified(joint_certificates(found), ~rec.correct(x, y))


def linear_ensemble(members: int, dim: int, classes: int, seed: int) -> RandomizedEnsemble:
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return RandomizedEnsemble([linear(draw(classes, dim), 0.3 * draw(classes)) for _ in range(members)])


@pytest.mark.parametrize("ball", [Ball("linf", 0.12), Ball("l2", 0.2), Ball("l1", 0.5)], ids=str)
def test_no_point_fools_an_excluded_set(ball: Ball) -> None:
    rec = RandomizedEnsemble([relu_mlp(i, dim=4, classes=3, steep=2.5) for i in range(3)])
    x = torch.rand(40, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = rec.predictions(x)[0]
    found = certified(rec, x, y, ball)
    points = torch.cat([points_of(ball, x, y, member, 60, seed=i, steps=2) for i, member in enumerate(rec.members)])
    wrong = ~rec.correct(points.flatten(0, 1), y.repeat(len(points))).reshape(3, len(points), 40)
    for s, bits in zip(found.sets, found.excluded):
        assert not bool((wrong[list(s)].all(0) & bits).any()), s
    excluded = dict(zip(found.sets, found.excluded))
    pairs = torch.stack([excluded[s] & ~excluded[s[:1]] & ~excluded[s[1:]] for s in found.sets if len(s) == 2])
    assert bool(pairs.any()), "no pair is excluded that its members are not: nothing was tested"
    for s, t in itertools.product(found.sets, repeat=2):
        assert not set(s) <= set(t) or bool((excluded[t] | ~excluded[s]).all()), "excluded sets are closed upwards"


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_linear_members_are_certified_exactly(norm: str) -> None:
    """Their bounds are exact, so the floor is the optimum: certificates lose nothing by themselves."""
    rec = linear_ensemble(3, 5, 3, seed=2).with_alpha([0.5, 0.3, 0.2])
    x = torch.rand(40, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    y, ball = rec.predictions(x)[0], Ball(norm, {"linf": 0.1, "l2": 0.2, "l1": 0.25}[norm])
    found, truth = certified(rec, x, y, ball).floor(rec.alpha), optimum(rec, x, y, ball).accuracy
    assert bool((found.per_sample <= truth + 1e-9).all())
    assert float((found.per_sample < truth - 1e-9).double().mean()) <= 0.025  # one set within a hair of the ball
    assert bool((found.upper >= truth - 1e-9).all())
    assert found.mean > float(rec.score(certified(rec, x, y, ball).alone).mean()) + 1e-9


def test_too_many_choices_exclude_less(monkeypatch: pytest.MonkeyPatch) -> None:
    rec = linear_ensemble(3, 5, 4, seed=4)
    x = torch.rand(20, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y, ball = rec.predictions(x)[0], Ball("linf", 0.1)
    full = certified(rec, x, y, ball)
    monkeypatch.setattr(joint, "MOST_CHOICES", 1)
    few = certified(rec, x, y, ball)
    assert bool((few.excluded <= full.excluded).all()) and bool((few.excluded != full.excluded).any())
    for s, bits in zip(few.sets, few.excluded):
        assert bool((bits >= few.alone[list(s)].any(0)).all())


def test_beyond_eight_members_pairs_give_a_bound() -> None:
    """Greedy packing of excluded pairs never exceeds the maximum over all sets that contain none of them."""
    members, g = 9, torch.Generator().manual_seed(6)
    excluded = torch.rand(len(sets_of(members)), 50, generator=g) < 0.15
    alpha = torch.rand(members, generator=g, dtype=torch.float64)
    alpha = alpha / alpha.sum()
    found = Certified(excluded, torch.zeros(members, 50, dtype=torch.bool)).floor(alpha).per_sample
    assert len(excluded) == 45
    for n in range(50):
        bad = [set(s) for s, bit in zip(sets_of(members), excluded[:, n]) if bit]
        subsets = (set(s) for k in range(members + 1) for s in itertools.combinations(range(members), k))
        heaviest = max(float(alpha[list(s)].sum()) for s in subsets if not any(b <= s for b in bad))
        assert float(found[n]) <= 1 - heaviest + 1e-9
    assert float(found.mean()) > 0.1


def test_a_ball_that_is_too_large_makes_certificates_vacuous() -> None:
    rec = RandomizedEnsemble([relu_mlp(i) for i in range(2)])
    x = torch.rand(5, 6, dtype=torch.float64)
    assert vacuous(certified(rec, x, rec.predictions(x)[0], Ball("linf", 1.0)).excluded)
