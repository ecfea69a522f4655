"""Every item of the paper by name, in the order of its appearance."""

from __future__ import annotations

from collections.abc import Iterable

from recarc.errors import InputError, unknown
from recarc.experiments.curves import FIGURES
from recarc.experiments.recipe import Item, Made, Row
from recarc.experiments.tables import TABLES

PLANE = Item(
    "figure2",
    "The auxiliary classifier that adaptive PGD attacks instead of either member",
    (),
    "plane",
    ("APGD's perturbation fools neither classifier, while others fool the ensemble half the time",),
)
SPEED = Item("throughput", "Passes a second on this machine, from which docs/full_size.md computes costs", ())
_ORDER = [
    *("figure1", "table1", "table2", "table3", "table4", "table5", "table5-cifar10", "table5-imagenet-sample"),
    *("figure2", "figure3", "figure4", "figure5", "figure6", "figure7", "figure8", "figure9", "figure10", "figure11"),
    *("imagenet-sample", "throughput"),
]
_ALL = {item.name: item for item in (*TABLES, PLANE, *FIGURES, SPEED)}
ITEMS: dict[str, Item] = {name: _ALL[name] for name in _ORDER}


def item_named(name: str) -> Item:
    if name not in ITEMS:
        raise unknown("item", name, ITEMS)
    return ITEMS[name]


def rows_of(item: Item, only: Iterable[str] = ()) -> list[Row]:
    """The rows that are asked for; all of them if none is named."""
    wanted, known = list(only), {row.name: row for row in item.rows}
    if wanted and not known:
        raise InputError(f"{item.name} has no rows to choose from: leave out --only")
    for name in wanted:
        if name not in known:
            raise unknown(f"row of {item.name}", name, known)
    return [row for row in item.rows if not wanted or row.name in wanted]


def ensembles() -> list[Made]:
    """Every ensemble that some item needs."""
    found = {made.name: made for item in ITEMS.values() for made in item.ensembles}
    return [found[name] for name in sorted(found)]


def command_for(made: Made, recipe: str = "fast") -> str:
    """The command that trains an ensemble and stops there."""
    for item in ITEMS.values():
        for row in item.rows:
            if row.made.name == made.name:
                return f"recarc reproduce {item.name} --only {row.name} --recipe {recipe} --train-only"
    raise unknown("ensemble", made.name, (known.name for known in ensembles()))
