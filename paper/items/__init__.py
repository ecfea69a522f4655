"""Every item of the paper. An item is one decorated function in one of these modules, and one line of a test."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from paper.recipe import ITEMS, EnsembleRecipe, Item, Row
from recarc.errors import InputError, unknown

# In the order of the documents; importing a module registers its items.
MODULES = (
    *("paper.items.tables", "paper.items.figures", "paper.items.head_to_head", "paper.items.quoted"),
    *("paper.items.second_member", "paper.items.autoattack", "paper.items.gallery", "paper.items.certificates"),
    *("paper.items.alphas", "paper.items.thorough"),
    *("paper.bench.throughput", "paper.bench.attacks", "paper.bench.networks", "paper.bench.planes"),
    *("paper.bench.scaling", "paper.bench.command", "paper.bench.training"),
)
for name in MODULES:
    import_module(name)


def item_named(name: str) -> Item:
    if name not in ITEMS:
        raise unknown("item", name, ITEMS)
    return ITEMS[name]


def rows_of(item: Item, only: Iterable[str] = ()) -> list[Row]:
    """The requested rows; all of them if none is named."""
    chosen = parts_of(item, only)
    return [row for row in item.rows if row.name in chosen]


def parts_of(item: Item, only: Iterable[str] = ()) -> list[str]:
    """The names of the requested rows, or parts of a benchmark; all of them if none is named."""
    wanted, known = list(only), item.parts or [row.name for row in item.rows]
    if wanted and not known:
        raise InputError(f"{item.name} has no rows to choose from: leave out --only")
    for name in wanted:
        if name not in known:
            raise unknown(f"row of {item.name}", name, known)
    return wanted or list(known)


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
