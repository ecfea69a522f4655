"""Items that are no attacks on trained members: the picture of Figure 2, and this machine's throughput."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from recarc.experiments import results
from recarc.experiments.pictures import auxiliary_classifiers
from recarc.experiments.recipe import Item
from recarc.experiments.results import ItemResult, RowResult
from recarc.experiments.throughput import NETS, measure
from recarc.experiments.workshop import Workshop


def _plane(item: Item, workshop: Workshop, keep: Path) -> list[RowResult]:
    keep.mkdir(parents=True, exist_ok=True)
    return auxiliary_classifiers(keep, item.name)


def _speed(item: Item, workshop: Workshop, keep: Path) -> list[RowResult]:
    tiny = workshop.scale.name == "toy"
    command = f"recarc reproduce {item.name} --device {workshop.device.type}"
    return [measure(row, workshop.device, command, 1 if tiny else 10, tiny) for row in NETS]


SPECIAL: dict[str, Callable[[Item, Workshop, Path], list[RowResult]]] = {"figure2": _plane, "throughput": _speed}


def special_rows(item: Item, workshop: Workshop, keep: Path) -> ItemResult:
    for row in SPECIAL[item.name](item, workshop, keep):
        results.add_row(keep, item.name, item.title, row, [])
    return results.read(keep, item.name, item.title)
