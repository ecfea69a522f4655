"""Gains of the board under a stronger attack: the preset `thorough` on the first images, paired with the rows there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paper import results
from paper.items.alphas import Case, ensemble_folder, figure_of, in_words, made
from paper.recipe import measured_item, radius
from paper.results import ItemResult, RowResult, hardware_of
from paper.settings import budget
from paper.setup import HERE, Setup
from paper.tables import Grid
from recarc.board import Board, Row
from recarc.board.entry import one_run, without_folders
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.engine import evaluate
from recarc.evaluation.intervals import paired_interval
from recarc.evaluation.result import Estimate, estimate
from recarc.geometry import Ball
from recarc.models import load_ensemble
from recarc.report.runs import Run

IMAGES = 1000
ROW, KEPT, LOST, BEST, GAIN = "the row keeps", "thorough leaves", "lost", "best member keeps", "gain"
CASES = {
    "IAT, linf, M = 3": Case(ensemble_folder("iat3-cifar10-resnet20-linf")),
    "IAT, linf, M = 4": Case(ensemble_folder("iat4-cifar10-resnet20-linf")),
    "MRBoost, linf, M = 3": Case(ensemble_folder("mrboost-cifar10-resnet20-linf")),
    "BARRE, linf, M = 4": Case(ensemble_folder("barre4-cifar10-resnet20-linf")),
    "IAT, l2, M = 8": Case(ensemble_folder("iat8-cifar10-resnet20-l2"), "l2"),
}


@measured_item(
    "thorough",
    "Gains of the board under the preset thorough",
    cost="1 to 8 minutes of a GPU per ensemble",
    parts=tuple(CASES),
    page="board",
)
def thorough(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    board = Board.read(HERE / "results" / "board.json")
    for name in parts:
        yield attacked_again(name, CASES[name], board, setup)


def attacked_again(name: str, case: Case, board: Board, setup: Setup) -> RowResult:
    """What more steps, rounds and restarts take from a row."""
    out, loaded = setup.out / case.folder.name, load_ensemble(case.folder, setup.device)
    rec = loaded if case.members is None else RandomizedEnsemble(loaded.members[: case.members])
    images = setup.images(case.data, "test").limit(min(IMAGES, setup.limit or IMAGES))
    attack, ball = setup.scale.attack(budget(case.data).tight("thorough")), Ball(case.norm, radius(case.eps))
    evaluate(rec, attack, images, ball, out=out, precision=setup.precision)
    run = one_run(out)
    evaluation, row = run.evaluation, row_of_run(run, board)
    alone, before = evaluation.alone, row.scores
    assert alone is not None and before is not None
    after, best = evaluation.robust_scores, alone[row.best].astype(float)
    before = before[: len(after)]
    return RowResult(
        name,
        (
            figure_of(ROW, estimate(before)),
            figure_of(KEPT, evaluation.robust),
            figure_of(LOST, _paired(before - after), "points"),
            figure_of(BEST, estimate(best)),
            figure_of(GAIN, _paired(after - best), "points"),
        ),
        images=len(after),
        data=case.data,
        split="test",
        norm=case.norm,
        eps=case.eps,
        alpha=tuple(run.alpha),
        ensemble=case.folder.name,
        precision=run.configuration["precision"],
        attacks={KEPT: str(run.attack), ROW: str(row.provenance["run"])},
        seconds=round(evaluation.seconds, 1),
        command=without_folders(run.command) or "",
        commit=run.environment.get("commit"),
        hardware=run.environment.get("hardware") or hardware_of(setup.device),
        date=results.now(),
    )


def row_of_run(run: Run, board: Board) -> Row:
    """The row of the board that a run attacks again."""
    for row in board.rows:
        same = row.provenance.get("weights") == run.configuration["members"] and row.norm == run.ball["norm"]
        if same and np.allclose(row.alpha, run.alpha):
            return row
    raise InputError(f"{run.name}: no row of the board has these weights with alpha {run.alpha_text}")


def thorough_table(measured: Sequence[ItemResult]) -> str:
    """A line for each ensemble."""
    rows = [row for result in measured for row in result.rows]
    if not rows:
        return "Not measured yet: `python -m paper thorough`, then `--render`."
    columns = (ROW, KEPT, LOST, BEST, GAIN)
    cells = [[row.row, *in_words(row, columns), f"{row.images:,}", f"{row.seconds / 60:.1f}"] for row in rows]
    grid = Grid("", ["ensemble", *columns, "images", "minutes"], cells)
    return f"{grid.markdown()}\n\n`python -m paper thorough` ({made(rows)})."


def _paired(differences: np.ndarray) -> Estimate:
    return Estimate(float(differences.mean()), *paired_interval(differences))
