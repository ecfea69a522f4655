"""How a claim is judged: by comparisons with 95 % intervals, corrected for their number, and by what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from paper.recipe import Item
from paper.results import Figure, ItemResult, RowResult
from paper.settings import AT_HAND
from recarc.evaluation.intervals import LEVEL, holm

Results = Mapping[str, ItemResult]
Pair = tuple[RowResult, Figure, Figure]
Gap = tuple[float, float]  # in points, with half its 95 % interval (0: none is known, and the figure decides)
NEAR = 0.5  # points by which two attacks may differ and still count as equal; the verdict's own limit
SINGLE = "the search for alpha chose one member alone"
Z = NormalDist().inv_cdf(0.5 + LEVEL / 2)


@dataclass(frozen=True)
class Case:
    """One row or sweep of a claim: what was measured, in a line, and whether the claim holds there (None: open)."""

    line: str
    holds: bool | None


@dataclass(frozen=True)
class Missing:
    """Rows without the figures, by name: those that could be measured, and those whose data is not at hand."""

    rows: tuple[str, ...] = ()
    not_at_hand: tuple[str, ...] = ()

    def __add__(self, other: Missing) -> Missing:
        return Missing(self.rows + other.rows, self.not_at_hand + other.not_at_hand)


@dataclass(frozen=True)
class Finding:
    """What the measurements say of a claim. `notes` and rows whose data is not at hand are shown, but not counted."""

    summary: str
    cases: list[Case]
    missing: Missing = Missing()
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Confirmed only if every row holds that can be measured, refuted if some row does not."""
        total = len(self.cases) + len(self.missing.rows)
        failing = sum(case.holds is False for case in self.cases)
        undecided = len(self.missing.rows) + sum(case.holds is None for case in self.cases)
        open_ = f"undecided for {undecided} of {counted(total, 'row')}"
        if failing:
            return f"refuted for {failing} of {counted(total, 'row')}" + (f", {open_}" if undecided else "")
        if not undecided:
            return "confirmed on the data at hand" if self.missing.not_at_hand else "confirmed"
        return f"{open_}, confirmed for the others" if undecided < total else open_

    @property
    def evidence(self) -> tuple[str, ...]:
        marks = {True: "", False: "does not hold: ", None: "open: "}
        missing = {"not measured": self.missing.rows, "not at hand": self.missing.not_at_hand}
        named = [f"{why}: {', '.join(rows)}" for why, rows in missing.items() if rows]
        return (*(marks[case.holds] + case.line for case in self.cases), *self.notes, *named)


@dataclass(frozen=True)
class Judged:
    claim: str
    verdict: str
    summary: str = ""
    evidence: tuple[str, ...] = ()

    def markdown(self) -> str:
        head = f"- **{self.claim}** {self.verdict.capitalize()}. {self.summary}".rstrip()
        return "\n".join([head, *(f"    - {line}" for line in self.evidence)])


@dataclass(frozen=True)
class Evidence:
    """The results, and the items whose rows should be there."""

    results: Results
    items: Mapping[str, Item]

    def rows(self, *items: str) -> Iterator[RowResult]:
        for item in items:
            yield from self.results[item].rows if item in self.results else ()

    def missing(self, columns: set[str], *items: str, axis: str | None = None) -> Missing:
        """The rows of these items that ask for the columns and lack one; what two items ask is one row.

        With `axis` only sweeps over it.
        """
        lacking: dict[str, tuple[str, bool]] = {}
        for item in items:
            for row in self.items[item].rows if item in self.items else ():
                found = self.results[item].row(row.name) if item in self.results else None
                known = {figure.column for figure in found.figures} if found else set()
                known |= {c for c in columns - known if found and found.stale and self.elsewhere(found, c)}
                if columns <= row.columns and not columns <= known and axis in (None, row.axis):
                    lacking.setdefault(row.question, (f"{item} {row.name}", row.data in AT_HAND))
        here, away = (tuple(name for name, at_hand in lacking.values() if at_hand is here) for here in (True, False))
        return Missing(here, away)

    def elsewhere(self, row: RowResult, column: str) -> Figure | None:
        """The same column of the same ensemble in the same ball and on the same images, measured for another item."""
        place = (row.ensemble, row.norm, row.eps, row.alpha, row.images)
        for other in self.rows(*self.results):
            figure = other.figure(column)
            if figure is not None and (other.ensemble, other.norm, other.eps, other.alpha, other.images) == place:
                return figure
        return None

    def both(self, one: str, other: str, *items: str) -> list[tuple[RowResult, Figure, Figure]]:
        """Rows with both columns; an ensemble that is in two tables with the same figures counts once."""
        unique: dict[tuple[object, ...], tuple[RowResult, Figure, Figure]] = {}
        for row in self.rows(*items):
            a, b = row.figure(one), row.figure(other)
            if a is not None and b is not None:
                unique.setdefault((row.ensemble or row.row, row.norm, a.measured, b.measured), (row, a, b))
        return list(unique.values())


def reach(limit: float, gaps: list[Gap]) -> list[bool | None]:
    """Whether each gap reaches the limit; None where that is open at 95 % for all of them together (Holm)."""
    p_values = [2 * NormalDist().cdf(-Z * abs(gap - limit) / half) if half else 0.0 for gap, half in gaps]
    return [gap >= limit if sure else None for (gap, _), sure in zip(gaps, holm(p_values))]


def all_of(decided: list[bool | None]) -> bool | None:
    """Whether all hold: False if one does not, otherwise None if one is open."""
    return False if False in decided else None if None in decided else True


def half_width(*figures: Figure) -> float:
    """Half the width of the 95 % interval of a sum or difference, as if its terms were independent."""
    return math.hypot(*((f.interval[1] - f.interval[0]) / 2 if f.interval else 0.0 for f in figures))


def gap_of(row: RowResult, plus: Figure, minus: Figure, paired: str = "") -> Gap:
    """plus - minus; with the interval of the column `paired` if it was measured, which is narrower."""
    known = row.figure(paired) if paired else None
    return plus.measured - minus.measured, half_width(known) if known else half_width(plus, minus)


def is_single(row: RowResult) -> bool:
    """Whether the search for alpha chose one member alone, so that there is no randomized ensemble."""
    return row.alpha is not None and max(row.alpha) == 1


def label(row: RowResult) -> str:
    """A row's name, preceded by its data set if it is named after its norm alone."""
    return f"{row.data} {row.row}" if row.row in ("l2", "linf") else row.row


def basis(row: RowResult) -> str:
    """What a figure rests on: how many images, and how the members were trained."""
    return f"n = {row.images}, {row.recipe}" if row.recipe else f"n = {row.images}"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def split(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    """The real ensembles, and those for which the search for alpha chose one member alone."""
    return [pair for pair in pairs if not is_single(pair[0])], [pair for pair in pairs if is_single(pair[0])]


def named(pair: Pair, form: str) -> str:
    row, a, b = pair
    return form.format(row=label(row), n=basis(row), a=a.measured, b=b.measured)


def is_quick(row: RowResult) -> bool:
    """Whether tight ran with less than its usual effort."""
    return "quick" in row.attacks.get("tight", "")


def span(gaps: list[Gap]) -> str:
    values = [gap for gap, _ in gaps]
    return f"{min(values):.2f} to {max(values):.2f} points over {counted(len(gaps), 'ensemble')}"
