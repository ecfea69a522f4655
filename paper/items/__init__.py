"""Every item of the paper. An item is one decorated function in one of these modules, and one line of a test."""

from __future__ import annotations

from collections.abc import Iterable

from paper.items import figures, machine, quoted, tables
from paper.recipe import ITEMS, EnsembleRecipe, Item, Row
from recarc.errors import InputError, unknown

__all__ = ["ITEMS", "command_for", "ensembles", "figures", "item_named", "machine", "quoted", "rows_of", "tables"]


def item_named(name: str) -> Item:
    if name not in ITEMS:
        raise unknown("item", name, ITEMS)
    return ITEMS[name]


def rows_of(item: Item, only: Iterable[str] = ()) -> list[Row]:
    """The requested rows; all of them if none is named."""
    wanted, known = list(only), {row.name: row for row in item.rows}
    if wanted and not known:
        raise InputError(f"{item.name} has no rows to choose from: leave out --only")
    for name in wanted:
        if name not in known:
            raise unknown(f"row of {item.name}", name, known)
    return [row for row in item.rows if not wanted or row.name in wanted]


def ensembles() -> list[EnsembleRecipe]:
    """Every ensemble that some item needs."""
    found = {recipe.name: recipe for item in ITEMS.values() for recipe in item.ensembles}
    return [found[name] for name in sorted(found)]


def command_for(ensemble: EnsembleRecipe, recipe: str = "fast") -> str:
    """The command that trains an ensemble and stops there."""
    for item in ITEMS.values():
        for row in item.rows:
            if row.ensemble.name == ensemble.name:
                return f"python -m paper {item.name} --only {row.name} --recipe {recipe} --train-only"
    raise unknown("ensemble", ensemble.name, (known.name for known in ensembles()))
