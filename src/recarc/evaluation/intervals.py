"""Confidence intervals for an accuracy: of bits, and of the [0, 1] values that a randomized ensemble scores."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

LEVEL = 0.95


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
    """Interval for the mean of independent values in [0, 1].

    Wilson's interval with the effective number of trials n p (1 - p) / s^2: how many coin flips would vary as little
    as these n values do. Bits give Wilson itself. Values inside (0, 1) vary less and give a tighter interval; where
    all values are equal nothing is known of their spread, and n flips are assumed. Unlike mean +- 1.96 s / sqrt(n) it
    never leaves [0, 1] and has a width at 0 and 1, where robust accuracies like to be.
    """
    n = len(values)
    if n == 0:
        return 0.0, 1.0
    mean = float(np.mean(values))
    bits = mean * (1 - mean)  # the largest variance that values in [0, 1] of this mean can have
    spread = float(np.var(values))
    if spread <= 1e-12 or bits <= 1e-12:
        return wilson(mean, n, level)
    return wilson(mean, n * bits / min(spread, bits), level)
