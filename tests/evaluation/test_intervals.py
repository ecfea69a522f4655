"""Confidence intervals: closed forms, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import betaincc, gammaincinv

from recarc.evaluation.intervals import (
    LEVEL,
    _as_coin_flips,
    _kl_inf,
    _Plausible,
    binomial_cdf,
    holm,
    mean_interval,
    poisson_limit,
    wilson,
)


def test_wilson_against_published_values() -> None:
    """Newcombe (1998), table I, method 3: 81/263, 15/148, 0/20 and 1/29."""
    for successes, trials, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        assert wilson(successes / trials, trials) == pytest.approx((low, high), abs=6e-5)


def test_bits_give_wilson() -> None:
    bits = np.array([1.0] * 30 + [0.0] * 70)
    assert mean_interval(bits) == wilson(0.3, 100)


def test_divergence_of_bits_is_the_binomial_one() -> None:
    p, m = 0.3, 0.42
    expected = p * math.log(p / m) + (1 - p) * math.log((1 - p) / (1 - m))
    assert _kl_inf(np.array([0.0, 1.0]), np.array([1 - p, p]), m) == pytest.approx(expected, abs=1e-9)


def test_never_outside_and_never_empty() -> None:
    for values in (np.zeros(50), np.ones(50), np.full(50, 0.4), np.array([0.5] * 49 + [1.0]), np.array([0.3])):
        low, high = mean_interval(values)
        assert 0 <= low <= values.mean() <= high <= 1
        assert high - low > 0.001
    assert mean_interval(np.array([])) == (0.0, 1.0)


ORDINARY = {
    "alpha 0.9, 0.1": ([0.0, 0.1, 0.9, 1.0], [0.55, 0.1, 0.05, 0.3]),
    "three equal members": ([0.0, 1 / 3, 2 / 3, 1.0], [0.3, 0.3, 0.2, 0.2]),
    "rarely more than a half": ([0.5, 1.0], [0.98, 0.02]),
    "bits": ([0.0, 1.0], [0.56, 0.44]),
}
# Rare values carry the mean: an interval from the variance alone covers as little as 65 % here.
EXTREME = {
    "near zero": ([0.0, 1 / 3, 1.0], [0.985, 0.01, 0.005]),
    "near one": ([0.0, 2 / 3, 1.0], [0.01, 0.01, 0.98]),
    "a few zeros": ([0.0, 0.9, 1.0], [0.01, 0.05, 0.94]),
    "a few ones": ([0.0, 0.1, 1.0], [0.98, 0.018, 0.002]),
}


def holds(values: np.ndarray, mean: float) -> bool:
    """Whether the interval holds this mean, without bisecting for its ends."""
    if set(values) <= {0.0, 1.0}:
        low, high = wilson(values.mean(), len(values))
        return low <= mean <= high
    low, high = _as_coin_flips(values, LEVEL)
    return low <= mean <= high or _Plausible(values, LEVEL)(mean)


@pytest.mark.parametrize("case", [*ORDINARY, *EXTREME])
def test_the_interval_is_the_set_of_means_it_holds(case: str) -> None:
    support, probabilities = (np.array(part) for part in {**ORDINARY, **EXTREME}[case])
    values = np.repeat(support, np.random.default_rng(1).multinomial(200, probabilities))
    low, high = mean_interval(values)
    assert all(holds(values, m) for m in np.linspace(low + 1e-6, high - 1e-6, 20))
    assert not any(holds(values, m) for m in (low - 1e-5, high + 1e-5) if 0 < m < 1)


@pytest.mark.parametrize("case", [*ORDINARY, *EXTREME])
@pytest.mark.parametrize("n", [100, 500])
def test_coverage(case: str, n: int) -> None:
    """Share of 3,000 simulated evaluations whose interval holds the true mean; nominal 95 %."""
    support, probabilities = (np.array(part) for part in {**ORDINARY, **EXTREME}[case])
    draws = np.random.default_rng(0).multinomial(n, probabilities, size=3000)
    truth = float(support @ probabilities)
    inside = sum(holds(np.repeat(support, row), truth) for row in draws) / len(draws)
    assert inside >= (0.935 if case in ORDINARY else 0.90)


def test_holm_by_hand() -> None:
    """Sorted: 0.005 <= 0.05 / 4, 0.01 <= 0.05 / 3, but 0.03 > 0.05 / 2, so 0.04 is not asked any more."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == [True, False, False, True]
    assert holm([]) == [] and holm([0.05]) == [True] and holm([0.051]) == [False] and holm([0.03, 0.03]) == [False] * 2


def test_holm_makes_a_false_rejection_in_one_list_of_twenty_at_most() -> None:
    generator = np.random.default_rng(0)
    lists = generator.random((2000, 10))  # all hypotheses are true
    share = np.mean([any(holm(p_values)) for p_values in lists])
    assert 0.03 < share < 0.065 and np.mean([(p_values <= 0.05).any() for p_values in lists]) > 0.3


@pytest.mark.parametrize("count", [1, 2, 7, 100, 5_000, 400_000])
@pytest.mark.parametrize("share", [1e-5, 0.001, 0.02, 0.3, 0.5, 0.9, 0.999, 1 - 1e-9])
def test_binomial_cdf_is_scipys(count: int, share: float) -> None:
    """Up to 30 standard deviations from the mean, and at both ends. (scipy's `bdtr` is good for eight digits only.)"""
    spread = math.sqrt(count * share * (1 - share))
    near = {int(count * share + z * spread) for z in (-30, -10, -3, -1, 0, 1, 3, 10)}
    for most in {0, 1, 5, count // 2, count - 1} | near:
        if 0 <= most < count:
            expected = float(betaincc(most + 1, count - most, share))
            assert binomial_cdf(most, count, share) == pytest.approx(expected, rel=1e-10, abs=1e-290)
    assert binomial_cdf(count, count, share) == 1 and binomial_cdf(-1, count, share) == 0


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_poisson_limit_is_scipys(level: float) -> None:
    for count in (0, 1, 2, 3, 5, 10, 33, 100, 1_000, 20_000):
        assert poisson_limit(count, level) == pytest.approx(float(gammaincinv(count + 1, level)), rel=1e-12)


@pytest.mark.parametrize(("count", "limit"), [(0, 2.996), (1, 4.744), (5, 10.513)])
def test_poisson_limit_in_tables(count: int, limit: float) -> None:
    assert poisson_limit(count) == pytest.approx(limit, abs=1e-3)
