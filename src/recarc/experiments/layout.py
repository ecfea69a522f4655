"""Results as grids of text: for the terminal and for Markdown, the paper's number beside each of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recarc.experiments.results import Figure, ItemResult, RowResult

CROSS = re.compile(r"f(\d+) under f(\d+)")
SKEWED = 0.1  # of an interval's width
Cells = list[list[str]]


@dataclass(frozen=True)
class Grid:
    title: str
    header: list[str]
    cells: Cells

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def grids(result: ItemResult) -> list[Grid]:
    """A table for all plain rows together, one for every sweep, one for every matrix."""
    plain = [row for row in result.rows if not _is_sweep(row) and not is_matrix(row)]
    found = [_table(plain)] if plain else []
    return found + [_matrix(row) if is_matrix(row) else _sweep(row) for row in result.rows if row not in plain]


def is_matrix(row: RowResult) -> bool:
    return any(CROSS.fullmatch(f.column) for f in row.figures)


def matrix_of(row: RowResult) -> list[list[float]]:
    """[i][j]: accuracy of member i on the perturbations made for member j."""
    entries = {}
    for f in row.figures:
        match = CROSS.fullmatch(f.column)
        if match:
            entries[int(match[1]) - 1, int(match[2]) - 1] = f.measured
    size = 1 + max(max(place) for place in entries)
    return [[entries[i, j] for j in range(size)] for i in range(size)]


def point(axis: str, x: float) -> str:
    """A point of a sweep in words."""
    return f"eps {x:g}/255" if axis == "255 eps" else f"{axis} {x:g}"


def _is_sweep(row: RowResult) -> bool:
    return any(f.x is not None for f in row.figures)


def _columns(figures: list[Figure]) -> list[str]:
    """In the order of appearance, our own last."""
    names = list(dict.fromkeys(f.column for f in figures if not f.extra))
    return names + list(dict.fromkeys(f.column for f in figures if f.extra))


def _headers(figures: list[Figure], columns: list[str]) -> list[str]:
    """A column and, where the paper prints a number, the paper's beside it."""
    printed = {f.column for f in figures if f.paper is not None}
    return [text for name in columns for text in ([name, "(paper)"] if name in printed else [name])]


def _line(figures: list[Figure], columns: list[str], printed: set[str]) -> list[str]:
    cells = []
    for name in columns:
        figure = next((f for f in figures if f.column == name), None)
        cells.append("" if figure is None else _cell(figure))
        if name in printed:
            cells.append("" if figure is None or figure.paper is None else f"{figure.paper:.2f}")
    return cells


def _cell(figure: Figure) -> str:
    """A figure with half its interval; the interval itself where the figure is not in its middle."""
    if figure.interval is None:
        return f"{figure.measured:.2f}"
    low, high = figure.interval
    if abs(figure.measured - (low + high) / 2) > SKEWED * (high - low):
        return f"{figure.measured:.2f} [{low:.2f}, {high:.2f}]"
    return f"{figure.measured:.2f} ± {(high - low) / 2:.2f}"


def _table(rows: list[RowResult]) -> Grid:
    figures = [f for row in rows for f in row.figures]
    columns = _columns(figures)
    printed = {f.column for f in figures if f.paper is not None}
    cells = []
    for row in rows:
        alpha = ", ".join(f"{a:.3g}" for a in row.alpha or ())
        cells.append([row.row, str(row.images), alpha, *_line(list(row.figures), columns, printed)])
    return Grid("", ["row", "images", "alpha", *_headers(figures, columns)], cells)


def _sweep(row: RowResult) -> Grid:
    figures = [f for f in row.figures if f.x is not None]
    columns = _columns(figures)
    printed = {f.column for f in figures if f.paper is not None}
    places = sorted({f.x for f in figures if f.x is not None})
    cells = [[f"{x:g}", *_line([f for f in figures if f.x == x], columns, printed)] for x in places]
    return Grid(f"{row.row} ({row.images} images)", [row.axis or "x", *_headers(figures, columns)], cells)


def _matrix(row: RowResult) -> Grid:
    values = matrix_of(row)
    header = ["accuracy of", *(f"under PGD on f{j + 1}" for j in range(len(values)))]
    cells = [[f"f{i + 1}", *(f"{v:.2f}" for v in line)] for i, line in enumerate(values)]
    return Grid(f"{row.row} ({row.images} images)", header, cells)
