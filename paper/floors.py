"""Does the tight attack meet its floor? Asked of every ensemble: tables, sweeps, the head to head and the board."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paper.judging import NEAR, SINGLE, Case, Evidence, Finding, Missing, Pair, counted, is_quick, label, named, split
from paper.recipe import radius
from paper.results import Figure, ItemResult, RowResult
from paper.tables import point
from recarc.board import Board, Row

BOARD = "board"
TIGHT = ("tight", "tight standard")  # the columns of the attack at its usual effort, of which a row has one
ALONE = ("autoattack", "gallery")  # single models, whose robust accuracy is their floor
FORM = "{row}: {a:.2f}, floor {b:.2f} ({n})"


def meets_floor(found: Evidence) -> Finding:
    """On the images at hand, by the attack at its usual effort; the quick preset is shown as well."""
    measured, single = split(_once(found))
    pairs = [pair for pair in measured if not is_quick(pair[0])]
    cases = [Case(named(pair, FORM), _above(pair) <= NEAR) for pair in pairs]
    notes = [f"with the quick preset, {named(pair, FORM)}" for pair in measured if is_quick(pair[0])]
    notes += [f"not counted, because {SINGLE}: {named(pair, FORM)}" for pair in single]
    asked = [name for name in found.items if name not in ALONE]
    missing = [found.missing({tight, "floor"}, *asked) for tight in TIGHT]
    return Finding(_summary(pairs), cases, sum(missing, Missing()), notes)


def _above(pair: Pair) -> float:
    return pair[1].measured - pair[2].measured


def _summary(pairs: list[Pair]) -> str:
    wide = [pair for pair in pairs if _above(pair) > NEAR]
    least = max((_above(pair) for pair in pairs if _above(pair) <= NEAR), default=None)
    others = "" if least is None else f"it stays at most {least:.2f} points above the floor"
    if not wide:
        return f"On {counted(len(pairs), 'row')} {others}." if others else ""
    most = max(wide, key=_above)
    text = f"It stays {_above(most):.2f} points above the floor on {label(most[0])}, and more than {NEAR} on "
    return text + f"{len(wide)} of {counted(len(pairs), 'row')}" + (f"; on the others {others}." if others else ".")


def _once(found: Evidence) -> list[Pair]:
    """Every ensemble, ball and alpha once: at the usual effort rather than quick, on most images, the latest."""
    everything = [*_plain(found), *_widest_in_sweeps(found)]
    order = sorted(range(len(everything)), key=lambda i: everything[i][0].date, reverse=True)
    best: dict[tuple[object, ...], int] = {}
    for i in sorted(order, key=lambda i: (is_quick(everything[i][0]), -everything[i][0].images)):
        best.setdefault(_place(everything[i][0]), i)
    return [everything[i] for i in sorted(best.values())]


def _place(row: RowResult) -> tuple[object, ...]:
    name = row.ensemble.removeprefix("given (").removesuffix(")").rpartition("/")[2] or row.row
    alpha = None if row.alpha is None else tuple(round(a, 3) for a in row.alpha)
    return name, row.norm, round(radius(row.eps), 6) if row.eps else "", alpha


def _plain(found: Evidence) -> Iterator[Pair]:
    for row in found.rows(*(name for name in found.results if name not in ALONE)):
        floor = row.figure("floor")
        for column in TIGHT:
            tight = row.figure(column)
            if tight is not None and floor is not None:
                yield row, tight, floor


def _widest_in_sweeps(found: Evidence) -> Iterator[Pair]:
    """The point of every sweep at which tight stays farthest above the floor."""
    for row in found.rows(*found.results):
        points = [(f, row.figure("floor", f.x)) for f in row.figures if f.column == "tight" and f.x is not None]
        pairs = [(row, tight, floor) for tight, floor in points if floor is not None]
        if pairs:
            _, tight, floor = max(pairs, key=_above)
            yield _at(row, tight.x or 0.0), tight, floor


def _at(row: RowResult, x: float) -> RowResult:
    """One point of a sweep as a row."""
    changes = {
        "255 eps": {"eps": f"{x:g}/255"},
        "alpha": {"alpha": (x, 1 - x)},
        "M": {"alpha": (1 / x,) * int(x) if x else None},
    }
    return replace(row, row=f"{row.ensemble} at {point(row.axis, x)}", **changes.get(row.axis, {}))  # type: ignore[arg-type]


def of_board(board: Board) -> ItemResult:
    """The randomized ensembles of the board as rows of an item."""
    return ItemResult(BOARD, "", tuple(_row_of(row, board.data) for row in board.rows if row.drawn > 1))


def _row_of(row: Row, data: str) -> RowResult:
    tight = Figure("tight", 100 * row.tight["value"], (100 * row.tight["low"], 100 * row.tight["high"]))
    command = str(row.provenance.get("command", "")).split()
    return RowResult(
        f"board: {row.name}",
        (tight, Figure("floor", 100 * row.floor)),
        row.samples,
        data=data,
        norm=row.norm,
        eps=str(row.eps),
        alpha=tuple(row.alpha),
        ensemble=command[2] if command[:2] == ["recarc", "evaluate"] else "",
    )
