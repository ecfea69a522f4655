"""What was measured, on disk: figures with intervals, and for each row the command, commit, hardware and date.

Tables, figures and benchmarks share this format.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recarc import provenance
from recarc.atomic import Lock, write_bytes
from recarc.errors import InputError
from recarc.provenance import short

if TYPE_CHECKING:
    from paper.recipe import Difference

FORMAT = 1


@dataclass(frozen=True)
class Figure:
    """One measured figure in its unit, and the paper's. `interval`: 95 %; of a time, the fastest and the slowest."""

    column: str
    measured: float
    interval: tuple[float, float] | None = None
    paper: float | None = None
    x: float | None = None
    unit: str = "%"
    extra: bool = False


@dataclass(frozen=True)
class RowResult:
    """A row with everything needed to trust it or to measure it again."""

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
    precision: str = ""  # of the search; its result is judged in float32
    attacks: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    command: str = ""
    commit: str | None = None
    hardware: str = ""
    date: str = ""
    note: str = ""  # what one must know about this measurement
    stale: dict[str, str] = field(default_factory=dict)  # columns that are out of date, and why

    @property
    def alpha_saw_test(self) -> bool:
        """Whether alpha was searched for on images that are scored, as rows measured by older versions did."""
        return self.alpha_chosen_by.startswith("grid") and "training images" not in self.alpha_chosen_by

    @property
    def current(self) -> RowResult:
        """Without the columns that are out of date."""
        return replace(self, figures=tuple(f for f in self.figures if f.column not in self.stale))

    def figure(self, column: str, x: float | None = None) -> Figure | None:
        return next((f for f in self.figures if f.column == column and f.x == x), None)

    def curve(self, column: str) -> list[tuple[float, float]]:
        """(x, measured) in order."""
        return sorted((f.x, f.measured) for f in self.figures if f.column == column and f.x is not None)


@dataclass(frozen=True)
class ItemResult:
    """All measured rows of an item; of a benchmark, those of one machine."""

    item: str
    title: str
    rows: tuple[RowResult, ...] = ()

    def row(self, name: str) -> RowResult | None:
        return next((row for row in self.rows if row.row == name), None)

    def with_row(self, new: RowResult, order: list[str]) -> ItemResult:
        """Add or replace a row; rows are in the recipe's order."""
        rows = {row.row: row for row in self.rows} | {new.row: new}
        placed = sorted(rows.values(), key=lambda r: order.index(r.row) if r.row in order else len(order))
        return replace(self, rows=tuple(placed))


def path_of(folder: Path, item: str) -> Path:
    return folder / f"{item}.json"


def read(folder: Path, item: str, title: str = "") -> ItemResult:
    """What has been measured; an empty result if nothing has."""
    path = path_of(folder, item)
    if not path.exists():
        return ItemResult(item, title)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}, expected {FORMAT}")
        rows = tuple(_row(row) for row in document["rows"])
        return ItemResult(document["item"], document["title"], rows)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a results file of `python -m paper`: {error}") from None


def write(folder: Path, result: ItemResult) -> Path:
    path = path_of(folder, result.item)
    document = {"format": FORMAT, **asdict(result)}
    write_bytes(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    return path


def add_row(folder: Path, item: str, title: str, new: RowResult, order: list[str]) -> ItemResult:
    """Put a row into the item's file; several processes may do so at the same time."""
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / f".{item}.lock", wait=True):
        check_replaceable(folder, item, {new.row: new.images}, any(f.column == "tight" for f in new.figures))
        result = read(folder, item, title).with_row(new, order)
        write(folder, result)
    return result


def add_columns(folder: Path, item: str, new: RowResult, differences: Sequence[Difference] = ()) -> ItemResult:
    """Put the columns of `new` into the row that is there; the row's note says how they were measured.

    A difference of one of them and an older column follows, but the samples cannot be paired: it loses its interval.
    """
    with Lock(folder / f".{item}.lock", wait=True):
        result = read(folder, item)
        old = mergeable(folder, item, new.row, new.images)
        for name in ("ensemble", "data", "split", "norm", "eps", "alpha"):
            if getattr(new, name) not in (None, getattr(old, name)):  # alpha None: the columns have their own
                raise InputError(
                    f"{path_of(folder, item)} holds {old.row} with {name} {getattr(old, name)!r}, this run has "
                    f"{getattr(new, name)!r}: measure the whole row"
                )
        fresh = {(f.column, f.x): f for f in new.figures}
        columns = list(dict.fromkeys(f.column for f in new.figures))
        kept = [fresh.pop((f.column, f.x), f) for f in old.figures]
        half_new = {d.column: d for d in differences if {d.plus, d.minus} & set(columns) and d.column not in columns}
        kept = [unpaired(f, half_new[f.column], kept) if f.column in half_new else f for f in kept]
        commit = f" at {short(new.commit)}" if new.commit else ""
        took = f"{new.date}, {new.seconds:.0f} s on {new.hardware}"
        note = f"{', '.join(columns)}: measured later by `{new.command}`{commit}, {took}"
        merged = replace(
            old,
            figures=(*kept, *fresh.values()),
            attacks={**old.attacks, **new.attacks},
            note=". ".join(text for text in (old.note, note) if text),
            stale={column: why for column, why in old.stale.items() if column not in columns},
        )
        result = result.with_row(merged, [row.row for row in result.rows])
        write(folder, result)
    return result


def unpaired(old: Figure, wanted: Difference, figures: Sequence[Figure]) -> Figure:
    """The difference of two figures that were measured at different times."""
    found = {(f.column, f.x): f.measured for f in figures}
    value = found[wanted.plus, wanted.plus_x] - found[wanted.minus, wanted.minus_x]
    return replace(old, measured=round(value, 4), interval=None)


def mergeable(folder: Path, item: str, row: str, images: int) -> RowResult:
    """The row that columns are to be put into, if it was measured on as many images."""
    old = read(folder, item).row(row)
    if old is None:
        raise InputError(f"{path_of(folder, item)} holds no row {row} to put columns into: leave out --column")
    if old.images != images:
        raise InputError(
            f"{path_of(folder, item)} holds {row} measured on {old.images} images, this run has {images}: "
            f"use --limit {old.images}, or measure the whole row"
        )
    return old


def check_replaceable(folder: Path, item: str, images: dict[str, int], tight: bool = True) -> None:
    """Refuse to replace a row by one on fewer images, unless it is out of date, or without the columns of tight."""
    for old in read(folder, item).rows:
        existing = f"{path_of(folder, item)} holds {old.row} measured"
        outdated = all(figure.column in old.stale for figure in old.figures)
        if old.row in images and old.images > images[old.row] and not outdated:
            raise InputError(
                f"{existing} on {old.images} images; this run has only {images[old.row]}: choose another --results"
            )
        if old.row in images and not tight and any(f.column == "tight" for f in old.figures):
            raise InputError(f"{existing} with tight; this run leaves it out: choose another --results")


def commit() -> str | None:
    """Of recarc and of this folder."""
    return provenance.commit(Path(__file__).parent)


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def hardware_of(device: torch.device) -> str:
    """The GPU, or the CPU and how many threads of it are used."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{threads} CPU thread{'s' * (threads > 1)} ({_cpu_name()}), torch {torch.__version__}"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _row(document: dict[str, Any]) -> RowResult:
    figures = tuple(Figure(**{**f, "interval": f["interval"] and tuple(f["interval"])}) for f in document["figures"])
    alpha = document.get("alpha")
    return RowResult(**{**document, "figures": figures, "alpha": None if alpha is None else tuple(alpha)})
