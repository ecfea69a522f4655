"""What a challenge says about the pairs that were spared: a bound on how far the floor is still too high.

The only chance in it is the draw of the pairs, which is ours: nothing is assumed about members, samples or attacks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from recarc.attacks.challenge import CHALLENGED, FELL, SPARED
from recarc.evaluation.intervals import binomial_cdf

LEVEL = 0.95


@dataclass(frozen=True)
class Challenged:
    """The outcome of a challenge: of `pairs` that had withstood everything, so many were `drawn`, so many `fell`.

    `limit`: with 95 % confidence, the floor is at most this much higher than if every pair had been challenged.
    """

    pairs: int
    drawn: int
    fell: int
    share: float  # the probability with which a pair of the heaviest member was drawn
    limit: float
    lowered: float = 0.0  # by how much the pairs that fell lowered the floor

    @classmethod
    def of(cls, status: np.ndarray, alone: np.ndarray, alpha: np.ndarray, share: float) -> Challenged:
        """From (M, n) what the attack says happened to each pair, and (M, n) which withstood in the judge's eyes."""
        weights = np.broadcast_to(alpha[:, None], status.shape)
        counted = weights > 0
        drawn = (status == CHALLENGED) & counted
        fell = drawn & ~alone
        # Withstood for the judge, but not for the attack (which may round more): never drawn, so nothing is known.
        missed = weights[(status == FELL) & alone].sum()
        spared = weights[(status == SPARED) & alone].sum()
        total = alpha.max() * most_fallible(int(fell.sum()), share)
        limit = min(max(total - weights[fell].sum(), 0.0), spared) + missed
        pairs, samples = int(((status != FELL) & counted).sum()), max(alone.shape[1], 1)
        lowered = float(weights[fell].sum()) / samples
        return cls(pairs, int(drawn.sum()), int(fell.sum()), share, float(limit) / samples, lowered)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    def __str__(self) -> str:
        if self.drawn == self.pairs and not self.limit:
            fell = f"the {self.fell} that fell count as fooled" if self.fell else "none fell"
            return f"all {self.pairs} pairs that had withstood were attacked again, {fell}"
        return (
            f"{self.drawn} of the {self.pairs} pairs that had withstood were attacked again, {self.fell} fell: "
            f"at 95 % confidence the floor is too high by at most {100 * self.limit:.2f} points"
        )


def most_fallible(fell: int, share: float) -> float:
    """How many pairs can fall at most, at 95 % confidence, if `fell` of those drawn with probability `share` did.

    The largest N with P(Binomial(N, share) <= fell) >= 5 %; between two whole numbers, one pair is drawn with
    probability 1 - (1 - share)^fraction. Pairs of a lighter member are drawn in just this way, as fractions of one of
    the heaviest. Splitting a pair into lighter ones can only let more of them be caught, so what this gives, times the
    largest alpha, bounds the weight of the pairs that can fall, however it is spread over the members.
    """
    if share <= 0:
        return math.inf
    if share >= 1:
        return float(fell)

    def caught_as_few(n: int) -> float:
        return binomial_cdf(fell, n, share)

    low, high = fell, fell + 1
    while caught_as_few(high) >= 1 - LEVEL:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if caught_as_few(middle) >= 1 - LEVEL else (low, middle)
    one_fewer = caught_as_few(low) - caught_as_few(low + 1)  # what a whole pair more would take away
    left = math.log1p(-share * (caught_as_few(low) - (1 - LEVEL)) / one_fewer) / math.log1p(-share)
    return low + min(left, 1.0)
