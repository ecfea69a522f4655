"""The challenge: which pairs are drawn, and what those that fell say about the others."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import shorten_tight
from torch import Tensor

from paper.gallery import Masked, digits, trained
from recarc import AutoPGD, Ball, InputError, RandomizedEnsemble, Restarts, Tight, Verdict, evaluate
from recarc.attacks import challenge as challenges
from recarc.attacks.challenge import CHALLENGED, draw
from recarc.attacks.tight import PRESETS
from recarc.attacks.unmasking import smoothed
from recarc.evaluation.floor_error import Challenged, most_fallible
from tiny import mlp_ensemble, points


@pytest.mark.parametrize("fell", [0, 1, 4])
@pytest.mark.parametrize("share", [0.03, 0.3, 0.9])
def test_the_limit_is_where_five_per_cent_are_left(fell: int, share: float) -> None:
    """The largest N at which `fell` or fewer are caught with 5 % probability, one pair being drawn as a fraction."""
    limit = most_fallible(fell, share)
    whole, fraction = int(limit), limit - int(limit)
    chances = [math.comb(whole, k) * share**k * (1 - share) ** (whole - k) for k in range(fell + 1)]
    last = 1 - (1 - share) ** fraction
    assert sum(chances) - last * chances[-1] == pytest.approx(0.05)


def test_all_or_none_challenged() -> None:
    assert most_fallible(3, 1.0) == 3 and most_fallible(0, 0.0) == math.inf
    assert most_fallible(0, 0.5) == pytest.approx(math.log(20) / math.log(2))


@pytest.mark.parametrize("alpha", [[1.0], [0.5, 0.5], [0.9, 0.1], [0.5, 0.3, 0.2]])
def test_the_limit_covers_however_the_fallible_pairs_are_spread(alpha: list[float]) -> None:
    """Over all ways to spread pairs over the members: the limit fails in at most 5 % of the draws, exactly."""
    share, weights = 0.2, np.array(alpha)
    chances = 1 - (1 - share) ** (weights / weights.max())
    limits = np.array([most_fallible(k, share) * weights.max() for k in range(46)])
    worst = 0.0
    for counts in itertools.product((0, 1, 4, 15), repeat=len(alpha)):
        caught = np.ones(1)
        for chance, count in zip(chances, counts):
            for _ in range(count):
                caught = np.convolve(caught, [1 - chance, chance])
        truth = float(weights @ np.array(counts))
        worst = max(worst, float(caught[limits[: len(caught)] < truth - 1e-9].sum()))
    assert 0.01 < worst <= 0.05, "and it is not far too wide"


def test_pairs_are_drawn_as_often_as_their_member_weighs() -> None:
    ensemble, x = mlp_ensemble(3, [0.6, 0.3, 0.1]), points(20_000, 6)
    drawn = draw(ensemble, x, 0.36, seed=3)
    expected = torch.tensor([0.36, 1 - 0.8, 1 - 0.64 ** (1 / 6)], dtype=torch.float64)
    assert torch.allclose(drawn.double().mean(1), expected, atol=0.012)
    assert torch.equal(drawn[:, 50:90], draw(ensemble, x[50:90], 0.36, seed=3)), "the same in any batch"
    both = (drawn[0] & drawn[1]).double().mean()
    assert float(both) == pytest.approx(0.36 * 0.2, abs=0.006), "independently"
    assert bool(draw(ensemble, x[:9], 1.0, 0).all()) and not bool(draw(ensemble, x[:9], 0.0, 0).any())


def test_the_share_is_what_the_samples_need() -> None:
    standard, thorough = PRESETS["standard"].challenge, PRESETS["thorough"].challenge
    assert standard is not None and thorough is not None and PRESETS["quick"].challenge is None
    for challenge, samples in ((standard, 20_000), (thorough, 700)):
        share = challenge.share(samples, 0.5)
        assert 0.5 * most_fallible(0, share) / samples == pytest.approx(challenge.allowed, rel=1e-3)
    assert standard.share(100, 0.5) == standard.most and thorough.share(3, 1.0) == 1.0
    with pytest.raises(InputError, match="challenge is 2; it must be a share"):
        Tight(challenge=2)


def run(attack: object, batch_size: int | str = "auto", count: int = 48) -> tuple[Verdict, np.ndarray, np.ndarray]:
    ensemble = RandomizedEnsemble([trained(0), trained(1)], [0.6, 0.4])
    x, y = (part[:count] for part in digits("test"))
    result = evaluate(ensemble, attack, (x, y), Ball("linf", 0.06), batch_size=batch_size, progress=False)
    assert result.alone is not None and result.records.challenged is not None
    return Verdict.of(result), result.records.challenged, result.alone


def test_what_falls_to_the_challenge_lowers_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    standard = PRESETS["standard"]
    climb = replace(standard.climb, rounds=0)
    weak = replace(standard, members=(AutoPGD(steps=1),), queries=0, climb=climb, lattice_steps=0)
    monkeypatch.setitem(PRESETS, "standard", weak)
    found, status, alone = run(Tight(challenge=0.5, steps=1))
    drawn = status == CHALLENGED
    assert found.challenge is not None and found.challenge.fell == (drawn & ~alone).sum()
    assert 0 < found.challenge.fell < found.challenge.drawn < found.challenge.pairs
    assert "The floor is too high" in found.sentence and not found.conclusive
    before, spared, without = run(Tight(challenge=0.0, steps=1))
    assert (spared < CHALLENGED).all() and before.robust.value > found.robust.value > found.floor - 1e-9
    assert without[drawn].all() and np.array_equal(without[~drawn], alone[~drawn])


def test_the_same_pairs_in_any_batch_and_within_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_tight(monkeypatch)
    _, whole, alone = run(Tight(steps=2, challenge=0.5), count=10)
    _, parts, again = run(Tight(steps=2, challenge=0.5), batch_size=4, count=10)
    assert np.array_equal(whole, parts) and np.array_equal(alone, again) and whole.max() == CHALLENGED
    twice, first, _ = run(Restarts(Tight(steps=2, challenge=0.5), 2), count=10)
    assert np.array_equal(first, whole) and twice.challenge is not None


def test_nobody_withstood() -> None:
    status, alone = np.zeros((2, 5), np.int8), np.zeros((2, 5), bool)
    assert Challenged.of(status, alone, np.array([0.5, 0.5]), 0.1) == Challenged(0, 0, 0, 0.1, 0.0)


def test_a_challenge_that_took_much_from_the_floor_forbids_conclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one of all pairs: attacks that missed so many may well have missed others."""
    shorten_tight(monkeypatch)
    x, y = (part[:270] for part in digits("test"))
    found = Verdict.of(evaluate(trained(0), Tight(steps=2, challenge=1), (x, y), Ball("linf", 0.1), progress=False))
    assert found.conclusive and found.challenge is not None and found.challenge.lowered <= 0.005
    status, alone = np.full((1, 270), CHALLENGED), np.arange(270)[None] >= 2
    broken = replace(found, challenge=Challenged.of(status, alone, np.ones(1), 1.0))
    assert broken.challenge is not None and broken.challenge.lowered == pytest.approx(2 / 270)
    assert not broken.conclusive and "2 of the 270 pairs that were challenged fell" in " ".join(broken.doubts)


def firm(u: Tensor) -> Tensor:
    """A denoiser: nothing below 0.05, everything above 0.1."""
    return u * ((u - 0.05) / 0.05).clamp(0, 1)


def test_a_member_that_does_not_see_faint_values_falls_to_the_challenge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient is 0 at faint values, and a ball in l2 is too small to leave them at random."""
    shorten_tight(monkeypatch)
    x, y = (part[:120] for part in digits("test"))
    member, ball = Masked(trained(0), before=firm), Ball("l2", 0.5)
    found = Verdict.of(evaluate(member, Tight(steps=5, challenge=1), (x, y), ball, progress=False))
    monkeypatch.setattr(challenges, "smoothed", lambda ensemble, ball, wide=False: smoothed(ensemble, ball))
    missed = Verdict.of(evaluate(member, Tight(steps=5, challenge=1), (x, y), ball, progress=False))
    assert found.challenge is not None and missed.challenge is not None
    assert found.challenge.fell > missed.challenge.fell and found.robust.value < missed.robust.value
