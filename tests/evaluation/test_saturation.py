"""What one more round would bring: against simulated searches whose truth is known, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from recarc.evaluation.saturation import Saturation

SAMPLES = 400


def chances(kind: str, rng: np.random.Generator) -> np.ndarray:
    """The probability with which a round succeeds on each sample."""
    if kind == "none":
        return np.zeros(SAMPLES)
    if kind == "rare":
        return np.where(rng.random(SAMPLES) < 0.2, 0.05, 0.0)
    return rng.beta(0.2, 1.0, SAMPLES)  # many hopeless, some easy, all in between


@pytest.mark.parametrize("kind", ["none", "rare", "mixed"])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_limit_covers_what_the_next_round_brings(kind: str, rounds: int) -> None:
    """A success lowers a sample by 1/3, two kinds of success by 2/3. 400 simulated searches, each with one more round
    whose expected gain is known: the limit is above it in at least 95 % (93 % for chance), and not absurdly high."""
    rng = np.random.default_rng(7)
    start, floors = np.full(SAMPLES, 2 / 3), np.zeros(SAMPLES)
    covered, truths, last, estimates, limits = [], [], [], [], []
    for _ in range(400):
        light, deep = chances(kind, rng), chances(kind, rng) / 4
        hits = rng.random((rounds, SAMPLES)) < light, rng.random((rounds, SAMPLES)) < deep
        scores = np.where(hits[1], 0.0, np.where(hits[0], 1 / 3, 2 / 3))
        found = Saturation.from_scores(start, scores, floors)
        expected = [_expected(light, deep, k) for k in (rounds - 1, rounds, rounds + 1)]
        truths.append(expected[1] - expected[2])
        last.append(expected[0] - expected[1])
        covered.append(found.limit >= truths[-1])
        estimates.append(found.estimate)
        limits.append(found.limit)
    assert np.mean(covered) >= 0.93
    assert np.mean(estimates) == pytest.approx(np.mean(last), rel=0.1, abs=1e-12)
    assert np.mean(estimates) >= np.mean(truths)
    assert np.mean(limits) <= 3 * np.mean(last) + 4 / (SAMPLES * rounds)


def _expected(light: np.ndarray, deep: np.ndarray, rounds: int) -> float:
    """The mean score after so many rounds: 0 after a deep success, 1/3 after only light ones, else 2/3."""
    no_deep, no_light = (1 - deep) ** rounds, (1 - light) ** rounds
    return float((no_deep * (1 / 3 + no_light / 3)).mean())


def test_by_hand() -> None:
    """Four samples, three rounds; the first falls in every round, the second in one, the third in two by different
    amounts, the fourth is at its floor."""
    start = np.array([0.9, 0.9, 0.9, 0.3])
    rounds = np.array([[0.5, 0.9, 0.5, 0.3], [0.5, 0.6, 0.4, 0.3], [0.5, 0.9, 0.9, 0.3]])
    found = Saturation.from_scores(start, rounds, np.array([0.3, 0.3, 0.3, 0.3]))
    assert found.improved == (2, 3, 1)
    assert found.only_one == 2
    decrease = (0.4 + 0.3 + 0.5) / 4
    without_one = (0.4 + 0.3 * 2 / 3 + (0.5 + 0.5 + 0.4) / 3) / 4
    alone = (0.4 + 0.3 / 3 + (0.4 + 0.5) / 3) / 4
    assert found.curve == pytest.approx([0.0, alone, without_one, decrease])
    assert found.estimate == pytest.approx(decrease - without_one)
    assert found.limit == pytest.approx((0.2 + 0.3 + 0.1) / 4), "never more than what is left above the floor"
    assert not found.saturated and "not saturated (another round: at most 15.00 points)" in str(found)


def test_nothing_found_in_any_round() -> None:
    """Rule of three: at most three samples expected to fall in all rounds together, by two thirds each."""
    start = np.full(1000, 2 / 3)
    found = Saturation.from_scores(start, np.stack([start] * 4), np.zeros(1000))
    assert found.only_one == 0 and found.estimate == 0
    assert found.limit == pytest.approx(2.9957 * 2 / 3 / 4 / 1000, rel=1e-3)
    assert str(found) == "the search is saturated (another round: at most 0.05 points)"
    assert found.to_json()["improved"] == [0, 0, 0, 0]


def test_no_rounds_needed_where_all_are_at_the_floor() -> None:
    start = np.full(10, 0.5)
    assert Saturation.from_scores(start, np.stack([start, start]), start).limit == 0
