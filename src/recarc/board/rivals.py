"""The deterministic rivals of a row, made of the same members: their average and their vote, each with its own run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from recarc.board.boards import Board, changed_board
from recarc.board.checks import check_members
from recarc.board.rows import Json, Row, unpacked
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.fingerprint import module_hash
from recarc.evaluation.samples import Samples
from recarc.report.runs import Run

RIVALS: dict[str, Callable[[RandomizedEnsemble], RandomizedEnsemble]] = {
    "average": RandomizedEnsemble.averaged,
    "vote": RandomizedEnsemble.voted,
}


@dataclass(frozen=True)
class Rival:
    """What a rival of some rows keeps at each sample, (N,), and how that was measured."""

    name: str
    rows: tuple[str, ...]
    scores: np.ndarray
    provenance: Json

    def beside(self, row: Row) -> Row:
        """The row with this figure; a vote is wrong, too, where the row's attack fooled all members that vote."""
        scores, provenance = self.scores, self.provenance
        if self.name == "vote" and row.kept:
            voting = np.array(row.alpha) > 0
            scores = scores * unpacked(row.kept, len(row.alpha), row.samples)[voting].any(0)
            lost = f"{int((self.scores - scores).sum())} samples more are lost there"
            provenance = provenance | {"checked": {**provenance["checked"], "points_of_the_row": lost}}
        rivals = row.rivals | {self.name: provenance}
        figures: Json = {self.name: float(scores.mean()), "provenance": row.provenance | {"rivals": rivals}}
        return replace(row, **figures)


def is_rival(run: Run, rec: RandomizedEnsemble) -> bool:
    """Whether a run attacked one classifier that is made of several members."""
    return len(run.alpha) == 1 < len(rec)


def rows_of_rival(
    run: Run, rec: RandomizedEnsemble, samples: Samples, board: Board
) -> tuple[str, list[Row], RandomizedEnsemble]:
    """Which rival a run attacked, the rows of the same members that it belongs to, and the rival itself.

    A vote is the same for every alpha, so several rows may have it.
    """
    hashes = [module_hash(member) for member in rec.members if isinstance(member, nn.Module)]
    alike = [row for row in board.rows if row.norm == run.ball["norm"] and row.provenance.get("weights") == hashes]
    rows = [row for row in alike if row.samples == len(run.evaluation)]
    if not rows:
        others = " or ".join(sorted({f"{row.samples:,}" for row in alike}))
        raise InputError(
            f"{run.name} attacked one classifier made of {len(rec)} members, and no row of these members in "
            f"{run.ball['norm']} on {len(run.evaluation):,} images is on the board"
            + (f", but one on {others}" if others else "; add the run in which one of them is drawn first")
        )
    for name, combined in RIVALS.items():
        rivals = [(row, combined(rec.with_alpha(row.alpha))) for row in rows]
        attacked = [(row, rival) for row, rival in rivals if _is_of(run, rival, samples)]
        if attacked:
            return name, [row for row, _ in attacked], attacked[0][1]
    raise InputError(
        f"{run.name} attacked neither the vote of these members nor their average at the alpha of a row; evaluate the "
        "ensemble of the row with --average or --vote"
    )


def add_rival(path: str | Path, rival: Rival) -> Board:
    """Put the figure of a rival into its rows of a board file, as they are by now."""

    def change(board: Board) -> Board:
        rows = [rival.beside(row) if row.name in rival.rows else row for row in board.rows]
        return replace(board, rows=tuple(rows))

    return changed_board(path, change)


def _is_of(run: Run, rival: RandomizedEnsemble, samples: Samples) -> bool:
    try:
        check_members(run, rival, samples)
    except InputError:
        return False
    return True
