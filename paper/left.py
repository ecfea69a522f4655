"""What is left to measure, in words, with the GPU minutes that it would take on one H200."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paper.costs import attack_seconds, training_seconds
from paper.queue import GIVEN, START, planned
from paper.recipe import EnsembleRecipe, Item, Row
from paper.results import ItemResult
from paper.schedule import blocks, length
from paper.settings import AT_HAND
from paper.tables import Grid


def absent(rows: Sequence[Row]) -> list[str]:
    """Paragraphs that name these rows with their minutes, those whose data is not at hand apart."""
    here, away = ([row for row in rows if (row.data in AT_HAND) is at_hand] for at_hand in (True, False))
    found = [f"Not measured yet: {_named(here)}.\n"] if here else []
    return found + (
        [f"Not at hand ({', '.join(dict.fromkeys(r.data for r in away))}): {_named(away)}.\n"] if away else []
    )


def absent_items(items: Sequence[Item]) -> str:
    """Items of which nothing was measured."""
    named = [f"{item.name} ({_minutes(list(item.rows)) if item.rows else item.cost})" for item in items]
    return f"{', '.join(named)}: `python -m paper ITEM` measures them."


def plan(measured: Mapping[str, Sequence[ItemResult]]) -> str:
    """The open jobs as a table; empty if there is none."""
    jobs = planned(measured)
    if not jobs:
        return ""
    cut = blocks(jobs)
    total = sum(map(length, cut)) / 60
    cells = []
    for number, block in enumerate(cut, 1):
        cells += [[str(number), job.job, f"{job.seconds / 60:.1f}", job.note] for job in block]
    table = Grid("", ["block", "job", "minutes alone", "why"], cells).markdown()
    return (
        f"{total:.0f} minutes of one H200 in {len(cut)} blocks, with jobs side by side; `python -m paper --queue` has "
        f"the commands. Computed from passes and measured speeds, attacks in full.\n\n{table}\n"
    )


def _named(rows: Sequence[Row]) -> str:
    each = ", ".join(f"{row.name} ({_minutes([row])})" for row in rows)
    return f"{each}; in all {_minutes(rows)}, each training once" if len(rows) > 1 else each


def _minutes(rows: Sequence[Row]) -> str:
    """GPU time for these rows, with the trainings they need: the recipe of the plan, or the paper's for other data."""
    trainings = {row.ensemble.name: _training(row.ensemble) for row in rows}
    seconds = sum(START + attack_seconds(row) for row in rows) + sum(trainings.values())
    return f"{max(1, round(seconds / 60)):,} min"


def _training(ensemble: EnsembleRecipe) -> float:
    if ensemble.name in GIVEN:
        return 0.0
    return training_seconds(ensemble, "fast" if ensemble.data in AT_HAND else "paper")
