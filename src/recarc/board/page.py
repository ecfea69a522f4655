"""The board as one static page that needs no network: sortable, with filters by norm and number of members."""

from __future__ import annotations

import shlex
from pathlib import Path

from markupsafe import Markup

from recarc.board.answer import answer, comparisons, own, rivals
from recarc.board.boards import Board
from recarc.board.kinds import BROKEN
from recarc.board.names import alpha_name
from recarc.board.rows import Row, in_words
from recarc.report.writing import environment, write_files

TITLE = "Does any randomized ensemble help?"
SORTS = (  # what the page can be sorted by, as its headings say
    *(("method", "ensemble"), ("clean", "clean"), ("apgd", "AdaptivePGD"), ("arc", "ARC"), ("tight", "tight")),
    *(("floor", "floor"), ("best", "best member"), ("gain", "gain"), ("most", "most"), ("vote", "vote")),
    *(("average", "average"), ("flops", "MFLOPs"), ("minutes", "GPU minutes")),
)
SPAN = 2.0  # points: the gains that matter fit; an arrow stands for what lies further out


def write_board(board: Board, path: str | Path) -> Path:
    """Write the page completely or not at all."""
    marks = gain_marks(board)
    rows = sorted(board.rows, key=lambda row: sort_key(row, marks[row.name]))
    page = (
        environment()
        .get_template("board.html")
        .render(
            board=board,
            rows=[(row, marks[row.name], sort_key(row, marks[row.name])[0]) for row in rows],
            sorts=SORTS,
            title=TITLE,
            answer=answer(board),
            own=own(board),
            rivals=rivals(board),
            comparisons=comparisons(board),
            span=SPAN,
            broken=BROKEN,
            gain_svg=gain_svg,
            alpha_svg=alpha_svg,
            in_words=in_words,
            alpha_name=alpha_name,
            quoted=shlex.quote,
        )
    )
    return write_files({Path(path): page.encode()})[0]


def gain_marks(board: Board) -> dict[str, str]:
    """What the answer makes of the gain of each row: up, down, none (cannot be told apart) or out (not counted)."""
    kinds = {"out": board.kinds, "none": board.counted, "up": board.helping(), "down": board.hurting()}
    found = {row.name: mark for mark, some in kinds.items() for kind in some for row in kind.rows}
    return {row.name: found.get(row.name, "single") for row in board.rows}


def sort_key(row: Row, mark: str) -> tuple[int, float]:
    """By gain; after these what the answer leaves out, which may gain much of nothing, and what has no gain."""
    return {"out": 1, "single": 2}.get(mark, 0), -float(row.gain["value"])


def gain_svg(row: Row, mark: str, span: float = SPAN) -> Markup:
    """The gain with its interval on a line from -span to +span points; an arrow if it lies further out."""
    points = {end: 100 * row.gain[end] for end in ("low", "value", "high")}
    low, value, high = (110 + 100 * min(max(at / span, -1.0), 1.0) for at in points.values())
    side = 1 if points["value"] > 0 else -1
    arrow = f"{value + 10 * side:.1f},14 {value - 8 * side:.1f},4 {value - 8 * side:.1f},24"
    shape = Markup('<polygon class="gain-{mark}" points="{arrow}"/>').format(mark=mark, arrow=arrow)
    if abs(points["value"]) <= span:
        shape = Markup('<circle class="gain-{mark}" cx="{value:.1f}" cy="14" r="9"/>').format(mark=mark, value=value)
    return Markup(
        '<svg class="plot" viewBox="0 0 220 28" role="img" aria-label="{label}">'
        '<line class="gain-zero" x1="110" x2="110" y1="0" y2="28"/>'
        '<line class="gain-line" x1="{low:.1f}" x2="{high:.1f}" y1="14" y2="14"/>{shape}</svg>'
    ).format(label=f"gain {points['value']:+.2f} points", low=low, high=high, shape=shape)


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
