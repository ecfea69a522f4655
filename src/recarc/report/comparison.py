"""Several ensembles side by side: on the same samples, with paired intervals of their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from recarc.errors import InputError, unknown
from recarc.evaluation.intervals import holm, p_value, paired_interval
from recarc.evaluation.result import Estimate, Evaluation, Points, Share, estimate, html_table
from recarc.evaluation.verdict import Verdict
from recarc.report.runs import PALETTE, Given, Run, as_runs, numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Difference:
    """The robust accuracy of one ensemble minus that of another on the same samples, with a paired 95 % interval.

    `clear`: it is not 0, at 95 % for all differences of the comparison together (Holm). `between`: where it lies if any
    stronger attack may come and the floors hold; None where one has no floor.
    """

    value: float
    low: float
    high: float
    clear: bool
    between: tuple[float, float] | None

    def __str__(self) -> str:
        return f"{100 * self.value:+.2f} [{100 * self.low:+.2f}, {100 * self.high:+.2f}]"


@dataclass(frozen=True)
class Entry:
    """One ensemble; its figures are those of the common samples, its verdict that of its whole run."""

    name: str
    run: Run
    clean: Estimate
    robust: Estimate
    floor: Estimate | None
    conclusive: bool | None
    difference: Difference | None  # to the reference; None for the reference itself
    role: str

    @property
    def verdict(self) -> str:
        """Whether it is conclusive, in a word."""
        return {None: "no floor", True: "yes", False: "no"}[self.conclusive]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; `notes` say what the reader should know before trusting a difference."""

    entries: list[Entry]
    reference: str
    samples: int
    notes: list[str]

    @property
    def head(self) -> list[str]:
        return ["ensemble", "alpha", "clean %", "robust %", "floor %", "conclusive", f"minus {self.reference}, points"]

    @property
    def rows(self) -> list[list[str]]:
        return [
            [
                e.name,
                e.run.alpha_text,
                _percent(e.clean),
                f"{_percent(e.robust)} [{100 * e.robust.low:.2f}, {100 * e.robust.high:.2f}]",
                "" if e.floor is None else _percent(e.floor),
                e.verdict,
                "" if e.difference is None else str(e.difference),
            ]
            for e in self.entries
        ]

    def __str__(self) -> str:
        """The table as text, and what it amounts to."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([*table, *self.sentences, *self.notes])

    @property
    def sentences(self) -> list[str]:
        """What each difference amounts to."""
        return [_sentence(e, e.difference, self) for e in self.entries if e.difference is not None]

    @property
    def caption(self) -> str:
        data = self.entries[0].run.data
        return f"{data.get('name')} {data.get('split') or ''}".strip() + f", {self.samples:,} common samples"

    def to_json(self) -> dict[str, Any]:
        ensembles = [
            {
                "name": e.name,
                "run": e.run.name,
                "attack": e.run.label,
                "ball": e.run.ball_text,
                "alpha": e.run.alpha,
                "clean_accuracy": e.clean.value,
                "robust_accuracy": e.robust.value,
                "robust_interval": [e.robust.low, e.robust.high],
                "floor": None if e.floor is None else e.floor.value,
                "conclusive": e.conclusive,
            }
            for e in self.entries
        ]
        differences = [
            {"ensemble": e.name, "reference": self.reference, "value": d.value, "interval": [d.low, d.high]}
            | {"clear": d.clear, "between": None if d.between is None else list(d.between)}
            for e in self.entries
            if (d := e.difference) is not None
        ]
        return {
            "reference": self.reference,
            "samples": self.samples,
            "ensembles": ensembles,
            "differences": differences,
            "sentences": self.sentences,
            "notes": self.notes,
        }

    def to_latex(self) -> str:
        """The table for LaTeX (booktabs)."""
        from recarc.report.writing import comparison_table

        return comparison_table(self).latex()

    def plot(self) -> Figure:
        """The forest plot as a matplotlib figure."""
        from recarc.report.figures import forest_figure

        return forest_figure(self)

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{escape(text)}</li>" for text in (*self.sentences, *self.notes))
        table = html_table([[escape(cell) for cell in row] for row in (self.head, *self.rows)])
        return f"<p>{escape(self.caption)}</p>{table}<ul>{items}</ul>"


def compare(runs: Mapping[str, Given] | Sequence[Given], reference: str | None = None) -> Comparison:
    """Compare evaluations of several ensembles on the samples that they share.

    `runs`: evaluations, or run folders, by the name of their ensemble. Differences are to the first one, or to
    `reference`.
    """
    listed = as_runs(runs)
    if len(listed) < 2:
        raise InputError(f"a comparison needs at least two runs; there is {len(listed)}")
    named = _names(listed)
    reference = next(iter(named)) if reference is None else reference
    if reference not in named:
        raise unknown("reference", reference, named)
    common = _common(named)
    rows = {name: np.searchsorted(run.evaluation.records.index, common) for name, run in named.items()}
    base = named[reference].evaluation
    gaps = {n: r.evaluation.robust_scores[rows[n]] - base.robust_scores[rows[reference]] for n, r in named.items()}
    others = [name for name in named if name != reference]
    clear = dict(zip(others, holm([p_value(*paired_interval(gaps[name])) for name in others])))
    entries = []
    for k, (name, run) in enumerate(named.items()):
        found, at = run.evaluation, rows[name]
        between = _between(found, at, base, rows[reference])
        ends = float(gaps[name].mean()), *paired_interval(gaps[name])
        difference = Difference(*ends, clear[name], between) if name in clear else None
        entries.append(
            Entry(
                name,
                run,
                estimate(found.clean_scores[at]),
                estimate(found.robust_scores[at]),
                None if found.floor_scores is None else estimate(found.floor_scores[at]),
                None if found.alone is None else Verdict.of(found).conclusive,
                difference,
                PALETTE[k % len(PALETTE)],
            )
        )
    return Comparison(entries, reference, len(common), _notes(named, len(common)))


def _names(runs: list[Run]) -> dict[str, Run]:
    """Each run by its ensemble, and by its folder too where that alone is ambiguous."""
    ensembles = [run.subject for run in runs]
    return numbered((e if ensembles.count(e) == 1 else f"{e}, {run.name}", run) for e, run in zip(ensembles, runs))


def _common(named: Mapping[str, Run]) -> np.ndarray:
    """The indices of the samples that every run has; refuses runs on different data."""
    (first_name, first), *others = named.items()
    for name, run in others:
        if (run.data.get("name"), run.data.get("split")) != (first.data.get("name"), first.data.get("split")):
            raise InputError(
                f"{name} was evaluated on {run.data_text}, {first_name} on {first.data_text}: evaluate them on the "
                "same data to compare them"
            )
    common: np.ndarray = reduce(np.intersect1d, (run.evaluation.records.index for run in named.values()))
    if not len(common):
        raise InputError("the runs have no sample in common: evaluate them on the same samples")
    labels = [run.evaluation.labels[np.searchsorted(run.evaluation.records.index, common)] for run in named.values()]
    for name, own, run in zip(named, labels, named.values()):
        whole = run.data.get("samples") == first.data.get("samples") or run.data.get("split") is None
        other_pixels = whole and run.data.get("fingerprint") != first.data.get("fingerprint")
        if other_pixels or not np.array_equal(own, labels[0]):
            raise InputError(f"{name} and {first_name} were evaluated on different samples of the same name")
    return common


def _between(found: Evaluation, at: np.ndarray, base: Evaluation, there: np.ndarray) -> tuple[float, float] | None:
    if found.floor_scores is None or base.floor_scores is None:
        return None
    low = found.floor_scores[at] - base.robust_scores[there]
    high = found.robust_scores[at] - base.floor_scores[there]
    return float(low.mean()), float(high.mean())


def _notes(named: Mapping[str, Run], common: int) -> list[str]:
    notes = []
    for about, texts in {
        "ball": {name: run.ball_text for name, run in named.items()},
        "attack": {name: run.label for name, run in named.items()},
    }.items():
        if len(set(texts.values())) > 1:
            listed = ", ".join(f"{name}: {text}" for name, text in texts.items())
            notes.append(f"not like for like, the {about} differs ({listed})")
    for name, run in named.items():
        if not run.evaluation.complete:
            notes.append(f"{name} is not finished: {len(run.evaluation)} of {run.evaluation.expected_samples} samples")
        elif len(run.evaluation) > common:
            notes.append(f"of the {len(run.evaluation):,} samples of {name} only the {common:,} common ones count here")
    single = [name for name, run in named.items() if _only_its_own_floor(run.evaluation)]
    if single:
        notes.append(f"one classifier each, whose floor is its own figure, not conclusive here: {', '.join(single)}")
    return notes


def _only_its_own_floor(found: Evaluation) -> bool:
    """Whether figure and floor agree whatever the attack misses: a vote, an average or a network, in doubt."""
    return len(found.alpha) == 1 and found.alone is not None and not Verdict.of(found).conclusive


def _sentence(entry: Entry, found: Difference, comparison: Comparison) -> str:
    size = f"{Points(abs(found.value))} {'more' if found.value > 0 else 'less'} than {comparison.reference}"
    if not found.value:
        size = f"as much as {comparison.reference}"
    if not found.clear and found.value:
        size += ", which these samples cannot tell from zero"
    held = ""
    if found.between is not None:
        low, high = (f"{100 * end:+.2f}" for end in found.between)
        moved = "cannot move it" if low == high else f"can move it only between {low} and {high}"
        held = f"; stronger attacks {moved}, if the floors hold"
    return f"{entry.name} keeps {Share(entry.robust.value)}, {size} {str(found).partition(' ')[2]}{held}."


def _percent(figure: Estimate) -> str:
    return f"{100 * figure.value:.2f}"
