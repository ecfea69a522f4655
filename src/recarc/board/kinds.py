"""Rows taken together: the seeds of one kind of ensemble, and one kind against another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recarc.board.rows import Row
from recarc.evaluation.intervals import paired_interval

BROKEN = 0.1  # below, an ensemble keeps too little for its gains to mean anything


@dataclass(frozen=True)
class Kind:
    """Rows that differ in the seed alone."""

    rows: tuple[Row, ...]

    @property
    def gain(self) -> tuple[float, float, float]:
        """Value, low, high: means over the seeds, as if they erred alike; of the images, not the chance in training."""
        value, low, high = (mean(row.gain[end] for row in self.rows) for end in ("value", "low", "high"))
        return value, low, high

    @property
    def tight(self) -> float:
        return mean(row.tight["value"] for row in self.rows)

    def rival(self, name: str) -> float | None:
        """What the average or the vote keeps; None if it is not known for every seed."""
        known = [value for row in self.rows if (value := getattr(row, name)) is not None]
        return mean(known) if len(known) == len(self.rows) else None

    def network(self, name: str) -> object:
        """What the average or the vote is made of: a vote is the same for every alpha that draws the same members."""
        row = self.rows[0]
        weights = row.provenance.get("weights")
        if name != "vote" or not weights:
            return row.kind
        return row.norm, row.samples, tuple(w for w, a in zip(weights, row.alpha) if a > 0)

    def over_drawing(self, name: str) -> tuple[float, float, float] | None:
        """Value, low, high of what the average or the vote keeps more than drawing one, paired over the samples."""
        pairs = [(row.rival_scores(name), row.scores) for row in self.rows]
        known = [kept - drawn for kept, drawn in pairs if kept is not None and drawn is not None]
        if len(known) < len(self.rows):
            return None
        difference = np.mean(known, axis=0)
        return float(difference.mean()), *paired_interval(difference)

    def rival_masked(self, name: str) -> bool:
        """Whether the run of the average or the vote shows signals of masked gradients."""
        return any(row.rival_signals(name) for row in self.rows)

    @property
    def conclusive(self) -> bool:
        return all(row.verdict == "conclusive" for row in self.rows)

    @property
    def masked(self) -> bool:
        """Whether a member shows signals of masked gradients: the figures may be what attacks miss."""
        return any(row.signals for row in self.rows)

    @property
    def counts(self) -> bool:
        """Whether its gain means something: it keeps enough, and hides no gradients."""
        return self.tight >= BROKEN and not self.masked

    @property
    def sentence(self) -> str:
        value, low, high = (100 * end for end in self.gain)
        gains = [100 * row.gain["value"] for row in self.rows]
        seeds = f"mean of {len(gains)} seeds ({min(gains):+.2f} to {max(gains):+.2f})" if gains[1:] else "one seed"
        return (
            f"{value:+.2f} points [{low:+.2f}, {high:+.2f}], of {self.rows[0].kind}, on {self.rows[0].samples:,} "
            f"images, {seeds}"
        )


@dataclass(frozen=True)
class Over:
    """A difference in accuracy between two kinds of ensembles, means over their seeds."""

    kind: str
    rival: str
    seeds: int
    rival_seeds: int
    adaptive_pgd: float
    arc: float
    tight: tuple[float, float, float]  # value, low, high, paired over the samples
    versions: tuple[str, ...] = ()  # of recarc: where they differ, so may the strength of the attack

    @property
    def sentence(self) -> str:
        value, low, high = (100 * end for end in self.tight)
        return (
            f"{self.kind} ({counted(self.seeds)}): {abs(value):.2f} points {'below' if value < 0 else 'above'} "
            f"{self.rival} with as many members ({counted(self.rival_seeds)}) under tight [{low:+.2f}, {high:+.2f}]; "
            f"by AdaptivePGD it would be {100 * self.adaptive_pgd:+.2f}, by ARC {100 * self.arc:+.2f}{self.caution}."
        )

    @property
    def caution(self) -> str:
        """That the two were not attacked by the same version."""
        return f" (not the same attack: recarc {' and '.join(self.versions)})" if self.versions[1:] else ""


def paired_difference(mine: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, float, float] | None:
    """Value, low, high of what some rows keep more than others in the mean, paired over the samples.

    None if there are none, or if one does not hold its samples.
    """
    scores = [[row.scores for row in rows if row.scores is not None] for rows in (mine, theirs)]
    if not all(scores) or [*map(len, scores)] != [len(mine), len(theirs)]:
        return None
    difference = np.mean(scores[0], axis=0) - np.mean(scores[1], axis=0)
    return float(difference.mean()), *paired_interval(difference)


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def counted(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"
