"""The board as one static page that needs no network: sortable, with filters by norm and number of members."""

from __future__ import annotations

import math
from pathlib import Path

from markupsafe import Markup

from recarc.board.rows import Board, Row
from recarc.report.writing import environment, write_files

TITLE = "Does any randomized ensemble help?"


def write_board(board: Board, path: str | Path) -> Path:
    """Write the page completely or not at all."""
    ends = [abs(100 * row.gain[end]) for row in board.rows for end in ("low", "high")]
    span = float(max(1, math.ceil(max(ends, default=1))))
    template = environment().get_template("board.html")
    page = template.render(board=board, title=TITLE, span=span, gain_svg=gain_svg, alpha_svg=alpha_svg)
    return write_files({Path(path): page.encode()})[0]


def gain_svg(row: Row, span: float) -> Markup:
    """The gain with its interval on a line from -span to +span points."""
    low, value, high = (110 + 105 * 100 * row.gain[end] / span for end in ("low", "value", "high"))
    colour = "gain-up" if row.gain["low"] > 0 else "gain-down" if row.gain["high"] < 0 else "gain-none"
    return Markup(
        '<svg class="plot" viewBox="0 0 220 28" role="img" aria-label="{label}">'
        '<line class="gain-zero" x1="110" x2="110" y1="0" y2="28"/>'
        '<line class="gain-line" x1="{low:.1f}" x2="{high:.1f}" y1="14" y2="14"/>'
        '<circle class="{colour}" cx="{value:.1f}" cy="14" r="6"/></svg>'
    ).format(label=f"gain {100 * row.gain['value']:+.2f} points", low=low, high=high, value=value, colour=colour)


def alpha_svg(row: Row) -> Markup:
    """Accuracy less what the best member keeps alone, at the points found and at the floor, against its probability."""
    points = [(t, 100 * (found - row.best_member), 100 * (floor - row.best_member)) for t, found, floor in row.curve]
    values = [value for _, found, floor in points for value in (found, floor)]
    top, bottom = max(1.0, *values), min(-1.0, *values)

    def line(column: int) -> str:
        return " ".join(f"{at_x(point[0]):.1f},{at_y(point[column]):.1f}" for point in points)

    def at_x(t: float) -> float:
        return 60 + 480 * t

    def at_y(value: float) -> float:
        return 14 + 140 * (top - value) / (top - bottom)

    return Markup(
        '<svg class="plot over-alpha" viewBox="0 0 560 200" role="img" aria-label="{label}">'
        '<line class="gain-zero" x1="60" x2="540" y1="{zero:.1f}" y2="{zero:.1f}"/>'
        '<polyline class="floor-line" points="{floor}"/><polyline class="found-line" points="{found}"/>'
        '<line class="gain-here" x1="{here:.1f}" x2="{here:.1f}" y1="14" y2="154"/>'
        '<text class="tick end" x="52" y="{zero_text:.1f}">0</text>'
        '<text class="tick end" x="52" y="19">{top:+.1f}</text>'
        '<text class="tick end" x="52" y="159">{bottom:+.1f}</text>'
        '<text class="tick" x="60" y="174">0</text><text class="tick end" x="540" y="174">1</text>'
        '<text class="label middle" x="300" y="192">probability of the best member</text></svg>'
    ).format(
        label="Points gained over the best member alone against its probability: at the points found, and at the floor",
        zero=at_y(0),
        zero_text=at_y(0) + 5,
        floor=line(2),
        found=line(1),
        here=at_x(row.alpha[row.best]),
        top=top,
        bottom=bottom,
    )
