"""The deterministic rivals of a row, made of the same members: their average and their vote, each with its own run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from recarc.board.boards import Board, changed_board
from recarc.board.checks import members_agree
from recarc.board.rows import Json, Row, packed
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
    rows: tuple[Row, ...]
    scores: np.ndarray
    provenance: Json

    def beside(self, row: Row) -> Row:
        """The row with this figure, which a new run of the row can inherit."""
        return row.with_rival(self.name, self.provenance | {"kept": packed(self.scores[None] > 0)})


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
    attacked = run.configuration.get("members")
    if attacked in [[own] for own in hashes]:
        raise InputError(
            f"{run.name} attacked one member alone, members[{hashes.index(attacked[0])}], which is neither their "
            "average nor their vote; to add that network as a row, give a folder of it alone with --ensemble"
        )
    alike = [row for row in board.rows if row.norm == run.ball["norm"] and row.provenance.get("weights") == hashes]
    rows = [row for row in alike if row.samples == len(run.evaluation)]
    if not rows:
        others = " or ".join(sorted({f"{row.samples:,}" for row in alike}))
        first = "first add the run in which one of them is drawn, again if its row is of another version of recarc"
        raise InputError(
            f"{run.name} attacked one classifier made of {len(rec)} members, and no row of these members in "
            f"{run.ball['norm']} on {len(run.evaluation):,} images is on the board"
            + (f", but one on {others}" if others else f"; {first}")
        )
    for name, combined in RIVALS.items():
        rivals = [(row, combined(rec.with_alpha(row.alpha))) for row in rows]
        found = [(row, rival) for row, rival in rivals if members_agree(run, rival, samples)]
        if found:
            return name, [row for row, _ in found], found[0][1]
    raise InputError(
        f"{run.name} attacked neither the vote of these members nor their average at the alpha of a row, but perhaps "
        "one member alone; evaluate the ensemble of the row with --average or --vote"
    )


def add_rival(path: str | Path, rival: Rival) -> Board:
    """Put the figure of a rival into its rows of a board file, if they are still of the same members and images."""

    def change(board: Board) -> Board:
        for old in rival.rows:
            if not any(row.name == old.name and row.same_ensemble(old) for row in board.rows):
                raise InputError(
                    f"{old.name} was replaced or removed while its {rival.name} was checked; add the run again"
                )
        names = {old.name for old in rival.rows}
        return replace(board, rows=tuple(rival.beside(row) if row.name in names else row for row in board.rows))

    return changed_board(path, change)


def lost_rivals(before: Board, row: Row) -> str:
    """That the row whose place this one took had rivals that this one does not have; nothing if it had none."""
    for old in before.rows:
        lost = [name for name in RIVALS if getattr(old, name) is not None and getattr(row, name) is None]
        if old.name == row.name and lost:
            return (
                f"{row.name}: its {' and '.join(lost)} on {old.samples:,} images left the board with the row that was "
                f"there; add runs on these {row.samples:,} images"
            )
    return ""
