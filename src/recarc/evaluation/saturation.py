"""Saturation: what one more round of a search would bring, from the independent rounds that were made.

Good and Turing's argument: rounds that differ in random numbers only are exchangeable, so what the last of R rounds
adds to the others is, in expectation, what any of them adds to the others; and the next one adds no more than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from recarc.evaluation.intervals import poisson_limit

if TYPE_CHECKING:
    from recarc.evaluation.result import Evaluation

ROUND = "round_"  # the stages of `Tight` that are rounds, all from where the stage "climb" ended
SATURATED = 0.0025  # a quarter of a point: half the gap at which a verdict is conclusive


@dataclass(frozen=True)
class Saturation:
    """How much R independent rounds lowered the expected accuracy, and what another one would; means over all samples.

    `curve`: the decrease after 0, 1, ..., R rounds, averaged over the order in which they are taken. `only_one`: the
    samples whose lowest value a single round reached; only through such samples does one round add to the others.
    """

    improved: tuple[int, ...]  # how many samples each round improved
    only_one: int
    curve: tuple[float, ...]
    limit: float  # upper 95 % confidence limit of what another round brings

    @classmethod
    def of(cls, evaluation: Evaluation) -> Saturation | None:
        """That of a run with a floor and with rounds; None for any other."""
        rounds = [evaluation.score(bits) for name, bits in evaluation.stages.items() if name.startswith(ROUND)]
        if not rounds or evaluation.floor_scores is None:
            return None
        return cls.from_scores(evaluation.score(evaluation.stages["climb"]), np.stack(rounds), evaluation.floor_scores)

    @classmethod
    def from_scores(cls, start: np.ndarray, rounds: np.ndarray, floors: np.ndarray) -> Saturation:
        """From the scores (N,) before the rounds, (R, N) after each of them alone, and the floors (N,)."""
        count, samples = rounds.shape
        values = np.sort(np.minimum(rounds, start), axis=0)  # lowest first
        curve = [0.0]
        for k in range(1, count + 1):  # the lowest of k rounds is the j-th lowest of all with probability:
            shares = np.array([comb(count - j, k - 1) / comb(count, k) for j in range(1, count + 1)])
            curve.append(float((start - shares @ values).sum()) / samples)
        second = values[1] if count > 1 else start
        only_one = int((values[0] < second).sum())
        most = float(np.max(start - floors, initial=0.0))  # by which any sample can fall
        left = float((values[0] - floors).sum()) / samples
        limit = min(poisson_limit(only_one) * most / (count * samples), max(left, 0.0))
        return cls(tuple(int(n) for n in (rounds < start).sum(1)), only_one, tuple(curve), limit)

    @property
    def rounds(self) -> int:
        return len(self.improved)

    @property
    def estimate(self) -> float:
        """What another round is expected to bring, or a little more: what the last one of these did."""
        return self.curve[-1] - self.curve[-2]

    @property
    def saturated(self) -> bool:
        return self.limit <= SATURATED

    def __str__(self) -> str:
        limit = f"another round: at most {100 * self.limit:.2f} points"
        return f"the search is {'' if self.saturated else 'not '}saturated ({limit})"

    def to_json(self) -> dict[str, Any]:
        return {
            "rounds": self.rounds,
            "improved": list(self.improved),
            "only_one": self.only_one,
            "curve": list(self.curve),
            "estimate": self.estimate,
            "limit": self.limit,
            "saturated": self.saturated,
        }
