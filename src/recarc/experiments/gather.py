"""All that was measured: a row that one item measured counts for every item that asks for the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recarc.experiments import results
from recarc.experiments.catalog import ITEMS
from recarc.experiments.recipe import Row
from recarc.experiments.results import ItemResult, RowResult


def gathered(folder: Path) -> dict[str, ItemResult]:
    """Every item by name. Of several measurements of the same the one on most images counts, the item's own first."""
    own = {name: results.read(folder, name, item.title) for name, item in ITEMS.items()}
    measured: dict[str, list[RowResult]] = {}
    for name, item in ITEMS.items():
        for row in item.rows:
            found = own[name].row(row.name)
            measured.setdefault(_question(row), []).extend([found] if found is not None else [])
    for name, item in ITEMS.items():
        order = [row.name for row in item.rows]
        for row in item.rows:
            mine = own[name].row(row.name)
            candidates = [*([mine] if mine is not None else []), *measured[_question(row)]]
            if candidates:
                best = max(candidates, key=lambda candidate: candidate.images)  # the first of equals
                own[name] = own[name].with_row(replace(best, row=row.name), order)
    return own


def _question(row: Row) -> str:
    """What a row asks, whatever it is called."""
    return repr(replace(row, name=""))
