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
    page = template.render(board=board, title=TITLE, span=span, gain_svg=gain_svg)
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
