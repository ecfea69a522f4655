"""What was measured, on disk: figures with intervals, and for each row the command, commit, hardware and date."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from recarc.atomic import Lock, write_bytes
from recarc.errors import InputError

FORMAT = 1


@dataclass(frozen=True)
class Figure:
    """One measured figure in percent (points for a difference, minutes for a time), and the paper's."""

    column: str
    measured: float
    interval: tuple[float, float] | None = None
    paper: float | None = None
    x: float | None = None
    unit: str = "%"
    extra: bool = False


@dataclass(frozen=True)
class RowResult:
    """A row with everything one needs to trust it or to measure it again."""

    row: str
    figures: tuple[Figure, ...]
    images: int
    data: str = ""
    split: str = ""
    norm: str = ""
    eps: str = ""
    axis: str = ""
    alpha: tuple[float, ...] | None = None
    alpha_chosen_by: str = ""
    ensemble: str = ""
    recipe: str = ""
    precision: str = ""  # of the search; what it finds is judged in float32
    attacks: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    command: str = ""
    commit: str | None = None
    hardware: str = ""
    date: str = ""
    note: str = ""  # what one must know of this measurement

    def figure(self, column: str, x: float | None = None) -> Figure | None:
        return next((f for f in self.figures if f.column == column and f.x == x), None)

    def curve(self, column: str) -> list[tuple[float, float]]:
        """(x, measured) in order."""
        return sorted((f.x, f.measured) for f in self.figures if f.column == column and f.x is not None)


@dataclass(frozen=True)
class ItemResult:
    """All measured rows of an item."""

    item: str
    title: str
    rows: tuple[RowResult, ...] = ()

    def row(self, name: str) -> RowResult | None:
        return next((row for row in self.rows if row.row == name), None)

    def with_row(self, new: RowResult, order: list[str]) -> ItemResult:
        """The row added or replaced; rows in the recipe's order."""
        rows = {row.row: row for row in self.rows} | {new.row: new}
        placed = sorted(rows.values(), key=lambda r: order.index(r.row) if r.row in order else len(order))
        return ItemResult(self.item, self.title, tuple(placed))


def path_of(folder: Path, item: str) -> Path:
    return folder / f"{item}.json"


def read(folder: Path, item: str, title: str = "") -> ItemResult:
    """What is there; an empty result where nothing is."""
    path = path_of(folder, item)
    if not path.exists():
        return ItemResult(item, title)
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        if told["format"] != FORMAT:
            raise ValueError(f"format {told['format']!r}, expected {FORMAT}")
        return ItemResult(told["item"], told["title"], tuple(_row(row) for row in told["rows"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a result of recarc reproduce: {error}") from None


def write(folder: Path, result: ItemResult) -> Path:
    path = path_of(folder, result.item)
    document = {"format": FORMAT, **asdict(result)}
    write_bytes(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    return path


def add_row(folder: Path, item: str, title: str, new: RowResult, order: list[str]) -> ItemResult:
    """The row put into the item's file; several processes may do so at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / f".{item}.lock", wait=True):
        check_replaceable(folder, item, {new.row: new.images}, any(f.column == "tight" for f in new.figures))
        result = read(folder, item, title).with_row(new, order)
        write(folder, result)
    return result


def check_replaceable(folder: Path, item: str, images: dict[str, int], tight: bool = True) -> None:
    """A row measured on more images, or with our own columns, is not thrown away for one on fewer or without."""
    for old in read(folder, item).rows:
        here = f"{path_of(folder, item)} holds {old.row} measured"
        if old.row in images and old.images > images[old.row]:
            raise InputError(
                f"{here} on {old.images} images; this run has only {images[old.row]}: choose another --results"
            )
        if old.row in images and not tight and any(f.column == "tight" for f in old.figures):
            raise InputError(f"{here} with tight; this run leaves it out: choose another --results")


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _row(told: dict[str, Any]) -> RowResult:
    figures = tuple(Figure(**{**f, "interval": f["interval"] and tuple(f["interval"])}) for f in told["figures"])
    alpha = told.get("alpha")
    return RowResult(**{**told, "figures": figures, "alpha": None if alpha is None else tuple(alpha)})
