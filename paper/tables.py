"""The one table writer: results as grids of text for the terminal and for Markdown, the paper's numbers beside ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paper.results import Figure, ItemResult, RowResult

CROSS = re.compile(r"f(\d+) under f(\d+)")
SKEWED = 0.1  # of an interval's width
WIDE = 200  # columns of a table that does not go to a terminal
FORMATS = {
    "x": ".1f",
    "s": ".3g",
    "ms": ".3g",
    "passes": ".0f",
    "gradients": ".0f",
    "share": ".1f",
    "images": ".0f",
}  # by unit; .2f otherwise
Cells = list[list[str]]


@dataclass(frozen=True)
class Grid:
    title: str
    header: list[str]
    cells: Cells

    def markdown(self) -> str:
        lines = [self.header, ["---"] * len(self.header), *self.cells]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def print(self, title: str) -> None:
        """To the terminal; transposed where it is too narrow, so that nothing is cut off."""
        from rich.console import Console
        from rich.table import Table

        console = Console()
        if not console.is_terminal:
            console.width = WIDE
        lines = [self.header, *self.cells]
        if 1 + sum(3 + max(map(len, column)) for column in zip(*lines)) > console.width:
            lines = [list(column) for column in zip(*lines)]
        table = Table(*lines[0], title=self.title or title)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)


def grids(result: ItemResult) -> list[Grid]:
    """A table for all plain rows together, one for every sweep, one for every matrix."""
    plain = [row for row in result.rows if not positions(row) and not is_matrix(row)]
    tables = [_table(plain)] if plain else []
    return tables + [_grid(row) for row in result.rows if row not in plain]


def _grid(row: RowResult) -> Grid:
    if is_matrix(row):
        return _matrix(row)
    return _gradients(row) if counts_gradients(row) else _sweep(row)


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


def counts_gradients(row: RowResult) -> bool:
    """Whether the row shows accuracy against the number of gradients: what matters is not K but what K costs."""
    return any(f.unit == "gradients" for f in row.figures)


def gradients_of(column: str) -> str:
    """The column that holds how many gradients those of `column` took."""
    return f"gradients of {column}"


def against_gradients(row: RowResult, column: str) -> list[tuple[float, Figure]]:
    """(gradients per image, accuracy) of an attack at each of its budgets, by increasing gradients."""
    found = [(row.figure(gradients_of(column), f.x), f) for f in row.figures if f.column == column]
    return sorted(((cost.measured, f) for cost, f in found if cost is not None), key=lambda pair: pair[0])


def point(axis: str, x: float) -> str:
    """A point of a sweep, in words."""
    return f"eps {x:g}/255" if axis == "255 eps" else f"{axis} {x:g}"


def positions(row: RowResult) -> list[float]:
    """Where on its axis a sweep was measured; empty for a plain row."""
    return sorted({f.x for f in row.figures if f.x is not None})


def _columns(figures: list[Figure]) -> list[str]:
    """In the order of appearance, those that are not in the paper last."""
    names = list(dict.fromkeys(f.column for f in figures if not f.extra))
    return names + list(dict.fromkeys(f.column for f in figures if f.extra))


def _headers(figures: list[Figure], columns: list[str]) -> list[str]:
    """Every column and, where the paper prints a number, the paper's beside it."""
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
    """A figure with half its interval (the interval itself if it is lopsided); a time or ratio with its two ends."""
    form = FORMATS.get(figure.unit, ".2f")
    if figure.interval is None:
        return format(figure.measured, form)
    low, high = figure.interval
    if figure.unit in ("s", "ms", "x"):
        return f"{figure.measured:{form}} ({low:{form}}-{high:{form}})"
    if abs(figure.measured - (low + high) / 2) > SKEWED * (high - low):
        return f"{figure.measured:.2f} [{low:.2f}, {high:.2f}]"
    return f"{figure.measured:.2f} ± {(high - low) / 2:.2f}"


def _table(rows: list[RowResult]) -> Grid:
    fullest_first = sorted(rows, key=lambda row: -len(row.figures))  # a row that lacks some leaves columns in order
    figures = [f for row in fullest_first for f in row.figures]
    columns = _columns(figures)
    printed = {f.column for f in figures if f.paper is not None}
    with_alpha = any(row.alpha for row in rows)
    cells = []
    for row in rows:
        alpha = [", ".join(f"{a:.3g}" for a in row.alpha or ())] if with_alpha else []
        cells.append([row.row, str(row.images), *alpha, *_line(list(row.figures), columns, printed)])
    header = ["row", "images", *(["alpha"] if with_alpha else []), *_headers(figures, columns)]
    return Grid("", header, cells)


def _sweep(row: RowResult) -> Grid:
    figures = [f for f in row.figures if f.x is not None]
    columns = _columns(figures)
    printed = {f.column for f in figures if f.paper is not None}
    cells = [[f"{x:g}", *_line([f for f in figures if f.x == x], columns, printed)] for x in positions(row)]
    others = [f"{f.column} {_cell(f)}" for f in row.figures if f.x is None]
    title = ", ".join([f"{row.row} ({row.images} images)", *others])
    return Grid(title, [row.axis or "x", *_headers(figures, columns)], cells)


def _gradients(row: RowResult) -> Grid:
    """One line per attack, one column per budget: accuracy, and in parentheses the gradients per image."""
    columns = [name for name in _columns(list(row.figures)) if against_gradients(row, name)]
    budgets: list[float | None] = [*positions(row)]
    if any(f.x is None for f in row.figures if f.column in columns):
        budgets.append(None)
    cells = []
    for name in columns:
        line = [name]
        for x in budgets:
            figure, cost = row.figure(name, x), row.figure(gradients_of(name), x)
            line.append("" if figure is None or cost is None else f"{figure.measured:.2f} ({cost.measured:.0f})")
        cells.append(line)
    others = [
        f"{f.column} {_cell(f)}" for f in row.figures if f.x is None and f.unit == "%" and f.column not in columns
    ]
    title = ", ".join([f"{row.row} ({row.images} images)", *others])
    return Grid(title, ["attack", *("no budget" if x is None else f"{row.axis} = {x:g}" for x in budgets)], cells)


def _matrix(row: RowResult) -> Grid:
    values = matrix_of(row)
    header = ["accuracy of", *(f"under PGD on f{j + 1}" for j in range(len(values)))]
    cells = [[f"f{i + 1}", *(f"{v:.2f}" for v in line)] for i, line in enumerate(values)]
    return Grid(f"{row.row} ({row.images} images)", header, cells)
