"""All that was measured: a row that one item measured counts for every item that asks for the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recarc.experiments import results
from recarc.experiments.catalog import ITEMS
from recarc.experiments.recipe import Row
from recarc.experiments.results import ItemResult, RowResult


def gathered(folder: Path) -> dict[str, ItemResult]:
    """Every item by name. A row of the item's own stays; else the one on most images of those that ask the same."""
    own = {name: results.read(folder, name, item.title) for name, item in ITEMS.items()}
    measured: dict[str, list[RowResult]] = {}
    for name, item in ITEMS.items():
        for row in item.rows:
            found = own[name].row(row.name)
            measured.setdefault(_question(row), []).extend([found] if found is not None else [])
    for name, item in ITEMS.items():
        order = [row.name for row in item.rows]
        for row in item.rows:
            others = measured[_question(row)]
            if own[name].row(row.name) is None and others:
                best = max(others, key=lambda other: other.images)
                own[name] = own[name].with_row(replace(best, row=row.name), order)
    return own


def _question(row: Row) -> str:
    """What a row asks, whatever it is called."""
    return repr(replace(row, name=""))
