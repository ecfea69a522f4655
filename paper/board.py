"""The board as a part of docs/board.md, from the file that only `recarc board add` writes."""

from __future__ import annotations

from pathlib import Path

from paper.tables import Grid
from recarc.board import Board, Row
from recarc.board.answer import answer, comparisons, own, rivals

HEADER = [
    *("ensemble", "clean", "AdaptivePGD", "ARC", "tight", "floor", "best member", "gain", "most", "P(R)", "verdict"),
    *("average", "vote", "one network", "MFLOPs", "GPU minutes"),
]
MISSING = "Not measured yet: `recarc board add`, then `--render`."
IMAGES = 10_000  # of a row that says nothing else


def board_answer(path: Path) -> str:
    """What the board says to its question."""
    return answer(Board.read(path)) if path.exists() else MISSING


def board_table(path: Path) -> str:
    """One line per row, and what other methods gain over independent members."""
    if not path.exists():
        return MISSING
    board = Board.read(path)
    cells = [board_cells(row, board.single(row)) for row in board.rows]
    parts = [Grid("", HEADER, cells).markdown(), *rivals(board), *filter(None, [own(board)])]
    against = []
    for over in comparisons(board):
        figures = [signed(*over.tight), signed(over.adaptive_pgd), signed(over.arc)]
        against.append([f"{over.kind}{over.caution}", f"{over.seeds}, {over.rival_seeds}", *figures])
    if against:
        titles = ["against IAT with as many members", "seeds, of IAT", "under tight", "by AdaptivePGD", "by ARC"]
        parts.append(Grid("", titles, against).markdown())
    return "\n\n".join(parts).rstrip()


def board_cells(row: Row, one: Row | None) -> list[str]:
    """A line of the board's table; the number of images where it is not the usual one."""
    figures = [row.clean, row.adaptive_pgd, row.arc, row.tight["value"], row.floor, row.best_member]
    several, images = row.members > 1, "" if row.samples == IMAGES else f", {row.samples:,} images"
    return [
        f"{row.name}{images}{' (ours)' if row.ours else ''}",
        *(f"{100 * value:.2f}" for value in figures),
        row.gain_text if several else "",
        row.most_text,
        row.joint_text,
        row.verdict_text,
        *(row.rival_text(name) for name in ("average", "vote")),
        "" if one is None else f"{100 * one.tight['value']:.2f}",
        "" if row.flops is None else f"{row.flops / 1e6:.0f}",
        "" if row.minutes is None else f"{row.minutes:.1f}",
    ]


def signed(value: float, *ends: float) -> str:
    """Points, with their interval if it is known."""
    return f"{100 * value:+.2f}" + (f" [{', '.join(f'{100 * end:+.2f}' for end in ends)}]" if ends else "")
