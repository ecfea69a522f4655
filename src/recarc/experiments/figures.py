"""The paper's figures drawn from results files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recarc.experiments.costs import MMACS
from recarc.experiments.layout import is_matrix, matrix_of
from recarc.experiments.pictures import pyplot, save
from recarc.experiments.recipe import Item
from recarc.experiments.results import ItemResult, RowResult

STYLES = {
    "AT: PGD": ("o", "tab:blue"),
    "PGD": ("o", "tab:blue"),
    "PGD-1": ("o", "tab:cyan"),
    "APGD": ("<", "tab:green"),
    "APGD-L": ("<", "tab:olive"),
    "C&W": ("s", "tab:purple"),
    "C&W-1": ("s", "tab:pink"),
    "AC&W": (">", "tab:orange"),
    "AC&W-L": (">", "tab:brown"),
    "ARC": ("*", "tab:red"),
    "tight": ("v", "black"),
}
WIDE = 4  # panels a line
NEAR = 1.25  # times the multiply-adds of another net
MANY = 5  # curves whose names hide none of them


def draw(item: Item, result: ItemResult, folder: Path) -> Path | None:
    """The item's figure as FOLDER/ITEM.png; nothing for tables and for pictures that were drawn while measuring."""
    if item.drawing not in ("scatter", "lines", "matrix") or not result.rows:
        return None
    plt = pyplot()
    panels = [result.rows]
    if item.drawing != "scatter":
        panels = [(row,) for row in result.rows if is_matrix(row) or any(f.x is not None for f in row.figures)]
    if not panels:
        return None
    lines = -(-len(panels) // WIDE)
    shape = (lines, min(WIDE, len(panels)))
    figure, axes = plt.subplots(*shape, squeeze=False, figsize=(3.6 * shape[1], 3.2 * lines))
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    for place, rows in zip(axes.flat, panels):
        if item.drawing == "scatter":
            _scatter(place, rows)
        elif is_matrix(rows[0]):
            _matrix(place, rows[0])
        else:
            _lines(place, rows[0])
    return save(figure, folder / f"{item.name}.png")


def _scatter(place: Any, rows: tuple[RowResult, ...]) -> None:
    """Robust accuracy against multiply-adds of one query, which a randomized ensemble does not raise."""
    nets = {row.row: row.row.rpartition("-")[0] for row in rows}
    for column, (marker, colour) in STYLES.items():
        points = [(MMACS[nets[row.row]], f.measured) for row in rows if (f := row.figure(column))]
        if points:
            place.plot(*zip(*sorted(points)), marker, color=colour, label=column)
    place.set(xscale="log", xlabel="million multiply-adds a query", ylabel="robust accuracy [%]")
    marks: dict[float, list[str]] = {}
    for net in sorted(set(nets.values()), key=lambda net: MMACS[net]):
        at = next((at for at in marks if MMACS[net] < NEAR * at), MMACS[net])  # names would lie on each other
        marks.setdefault(at, []).append(f"{net}: {MMACS[net]:g}")
    place.set_xticks(list(marks), ["\n".join(names) for names in marks.values()], rotation=60, ha="right", fontsize=7)
    place.minorticks_off()
    place.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, columnspacing=0.8, frameon=False)


def _lines(place: Any, row: RowResult) -> None:
    columns = [c for c in dict.fromkeys(f.column for f in row.figures if f.unit == "%") if c != "floor"]
    for column in columns:
        marker, colour = STYLES.get(column, (".", None))
        points = row.curve(column)
        if points:
            place.plot(*zip(*points), marker=marker, color=colour, label=column, linewidth=1, markersize=4)
    floor = row.curve("floor")
    if floor:
        place.plot(*zip(*floor), ":", color="0.5", label="floor", linewidth=1)
    if row.axis in ("K", "G"):
        place.set_xscale("log")
    place.set(xlabel="eps [1/255]" if row.axis == "255 eps" else row.axis, ylabel="robust accuracy [%]")
    place.set_title(f"{row.row} ({row.images} images)", fontsize=8)
    if len(columns) > MANY:
        place.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=4)
    else:
        place.legend(fontsize=6)


def _matrix(place: Any, row: RowResult) -> None:
    values = matrix_of(row)
    place.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            place.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=6, color="w" if value < 50 else "k")
    names = [f"f{i + 1}" for i in range(len(values))]
    place.set_xticks(range(len(values)), names, fontsize=7)
    place.set_yticks(range(len(values)), names, fontsize=7)
    place.set(xlabel="perturbed for", ylabel="accuracy of")
    place.set_title(f"{row.row} ({row.images} images)", fontsize=8)
