"""Confidence intervals for an accuracy: a mean of bits, or of the scores in [0, 1] of a randomized ensemble."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist

import numpy as np

LEVEL = 0.95
HALVINGS = 30  # of a bisection in [0, 1]: finer than any digit that is printed
EDGE = 1e-9
NEGLIGIBLE = 1e-17  # a term of a sum


def wilson(mean: float, count: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a proportion `mean` seen in `count` trials (a fractional count is fine)."""
    if count <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + level / 2)
    shrink = 1 + z * z / count
    centre = (mean + z * z / (2 * count)) / shrink
    half = z / shrink * math.sqrt(max(0.0, mean * (1 - mean) / count + z * z / (4 * count * count)))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Interval for the mean of independent values in [0, 1]; Wilson's if they are bits.

    Otherwise the hull of two intervals, since each is too short where the other is not. (a) Wilson's, with the number
    of coin flips that would vary as much as these values do, n p (1 - p) / s^2: good for many values where rare ones do
    not matter. (b) All means of distributions on [0, 1] whose likelihood is within exp(-z^2 / 2) of the best (the
    nonparametric likelihood ratio with both end points as possible values): leaves room for values that matter but
    were not seen, e.g. a few zeros among many values of 0.9.
    """
    n = len(values)
    if n == 0:
        return 0.0, 1.0
    mean = float(np.mean(values))
    if bool(np.isin(values, (0.0, 1.0)).all()):
        return wilson(mean, n, level)
    low, high = _as_coin_flips(values, level)
    plausible = _Plausible(values, level)
    return min(low, _last(plausible, mean, EDGE)), max(high, _last(plausible, mean, 1 - EDGE))


def paired_interval(gap: np.ndarray) -> tuple[float, float]:
    """95 % interval for the mean of differences in [-1, 1].

    If all are equal, gains and losses each get an interval, which leaves room for values that were not seen.
    """
    if len(gap) > 1 and np.ptp(gap) > 0:
        half = 1.96 * float(gap.std(ddof=1)) / len(gap) ** 0.5
        return float(gap.mean()) - half, float(gap.mean()) + half
    gains, losses = mean_interval(gap.clip(0, 1)), mean_interval((-gap).clip(0, 1))
    return max(-1.0, gains[0] - losses[1]), min(1.0, gains[1] - losses[0])


def p_value(low: float, high: float) -> float:
    """Two-sided, of the hypothesis that a figure with this 95 % interval is 0: the normal one that belongs to it."""
    half = (high - low) / 2
    return 2 * NormalDist().cdf(-1.96 * abs((high + low) / 2) / half) if half > 0 else 1.0


def holm(p_values: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which of many null hypotheses are rejected when, at most, one in twenty such lists may hold a false rejection.

    Holm 1979: the smallest p-value is compared with (1 - level) / m, the next with (1 - level) / (m - 1), and so on up
    to the first that is too large.
    """
    rejected = [False] * len(p_values)
    for left, k in zip(range(len(p_values), 0, -1), np.argsort(p_values, kind="stable")):
        if p_values[k] > (1 - level) / left + EDGE:
            break
        rejected[k] = True
    return rejected


def binomial_cdf(most: int, count: int, share: float) -> float:
    """P(X <= most) for the number X of successes in `count` trials, each with probability 0 < share < 1."""
    odds = share / (1 - share)
    return _share_up_to(most, min(int((count + 1) * share), count), lambda k: (count + 1 - k) / k * odds)


def poisson_limit(count: int, level: float = LEVEL) -> float:
    """Upper confidence limit of the expected number of rare independent events of which `count` happened.

    The mean with P(Poisson <= count) = 1 - level: 3.0 at 95 % where none happened. For events that are not so rare it
    is on the safe side.
    """

    def plausible(mean: float) -> bool:
        return _share_up_to(count, int(mean), lambda k: mean / k) >= 1 - level

    low, high = float(count), count + 1.0
    while plausible(high):
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if plausible(middle) else (low, middle)
    return low


def _share_up_to(last: int, peak: int, ratio: Callable[[int], float]) -> float:
    """The terms 0, ..., last of a series as a share of them all: ratio(k) is term k over term k - 1, peak the largest.

    Terms are taken as multiples of the largest, which need not be known: logarithms of factorials would lose digits.
    """
    total, up_to_last = 1.0, float(peak <= last)
    term = 1.0
    for k in range(peak - 1, -1, -1):
        term /= ratio(k + 1)
        total += term
        up_to_last += term if k <= last else 0.0
        if term <= NEGLIGIBLE * up_to_last:
            break
    term = 1.0
    for k in itertools.count(peak + 1):
        term *= ratio(k)
        total += term
        up_to_last += term if k <= last else 0.0
        if term <= NEGLIGIBLE * total:
            break
    return up_to_last / total


def _as_coin_flips(values: np.ndarray, level: float) -> tuple[float, float]:
    """(a): Wilson's interval with the effective number of flips; n flips if the values do not vary at all."""
    n, mean, spread = len(values), float(np.mean(values)), float(np.var(values))
    bits = mean * (1 - mean)  # the largest variance that this mean allows
    return wilson(mean, n if spread <= 1e-12 else n * bits / min(spread, bits), level)


class _Plausible:
    """(b): whether a mean is within the likelihood ratio's threshold."""

    def __init__(self, values: np.ndarray, level: float) -> None:
        self.values, counts = np.unique(values, return_counts=True)
        self.shares = counts / len(values)
        self.threshold = NormalDist().inv_cdf(0.5 + level / 2) ** 2 / 2 / len(values)

    def __call__(self, mean: float) -> bool:
        return _kl_inf(self.values, self.shares, mean) <= self.threshold


def _kl_inf(values: np.ndarray, shares: np.ndarray, mean: float) -> float:
    """Smallest Kullback-Leibler divergence from the sample to a distribution on [0, 1] with this mean.

    Its dual (Honda and Takemura 2010): max over -1/(1 - mean) <= t <= 1/mean of E log(1 + t (v - mean)).
    """
    gap = values - mean
    low, high = -(1 - EDGE) / (1 - mean), (1 - EDGE) / mean
    for _ in range(HALVINGS):
        t = (low + high) / 2
        if float((shares * gap / (1 + t * gap)).sum()) > 0:
            low = t
        else:
            high = t
    return float((shares * np.log1p(low * gap)).sum())


def _last(plausible: Callable[[float], bool], inner: float, outer: float) -> float:
    """The last plausible mean on the way from `inner` to `outer`."""
    for _ in range(HALVINGS):
        middle = (inner + outer) / 2
        if plausible(middle):
            inner = middle
        else:
            outer = middle
    return inner
