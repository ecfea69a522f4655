"""The average and the vote of a row's members: runs of their own, which find their rows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recarc import Ball, InputError, RandomizedEnsemble, Tight, evaluate, load_ensemble, save_ensemble
from recarc.board import entry
from recarc.board.answer import rivals
from recarc.board.boards import Board
from recarc.board.rivals import Rival, add_rival
from recarc.board.rows import Row, packed
from recarc.cli.app import run
from recarc.data import load
from recarc.evaluation import Evaluation
from recarc.evaluation.masking import Signal
from recarc.evaluation.run_folder import RunFolder

SAMPLES = 12
DIGITS = Board("digits", "test", {"linf": 0.1})
PROBLEM = ["--data", "digits", "--norm", "linf", "--eps", "0.1", "--limit", f"{SAMPLES}", "--quiet"]
pytestmark = [
    pytest.mark.xdist_group("rivals"),
    pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "Tight", lambda: Tight("quick", steps=4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble, runs of its members drawn, averaged and voting, and a board with its row at two alphas."""
    folder = tmp_path_factory.mktemp("rivals")
    rec, data = load_ensemble("zoo:bat-cnn-digits"), load("digits", "test", limit=SAMPLES)
    save_ensemble(rec, folder / "mine", made_by={"method": "bat", "seed": 0})
    DIGITS.write(folder / "board.json")
    for name, alpha in (("drawn", rec.alpha), ("halves", [0.5, 0.5])):
        evaluate(rec.with_alpha(alpha), Tight(), data, Ball("linf", 0.1), out=folder / name, progress=False)
        assert added(folder, name) == 0
    for name in ("average", "vote"):
        options = [f"--{name}", "--save-inputs", "--out", f"{folder / name}"]
        assert run(["evaluate", f"{folder / 'mine'}", *PROBLEM, *options]) == 0
    return folder


def added(folder: Path, name: str, board: Path | None = None, ensemble: Path | None = None, *more: str) -> int:
    ensemble, board = ensemble or folder / "mine", board or folder / "board.json"
    add = ["board", "add", f"{folder / name}", "--ensemble", f"{ensemble}", "--board", f"{board}"]
    return run([*add, *more])


def rows_of(board: Path) -> dict[str, Row]:
    return {"halves" if row.alpha == [0.5, 0.5] else "drawn": row for row in Board.read(board).rows}


@pytest.fixture()
def board(folder: Path, tmp_path: Path) -> Path:
    """A copy of the board without rivals."""
    return Board.read(folder / "board.json").write(tmp_path / "board.json")


def test_an_average_belongs_to_the_row_of_its_alpha(folder: Path, board: Path, capsys: Any) -> None:
    assert added(folder, "average", board) == 0
    kept = Evaluation.load(folder / "average").robust_accuracy
    rows = rows_of(board)
    assert (rows["drawn"].average, rows["halves"].average) == (kept, None)
    assert "BAT, linf, M = 2, alpha 0.7, 0.3, seed 0: average" in capsys.readouterr().out
    known = rows["drawn"].rivals["average"]
    assert "--average" in known["command"] and known["checked"]["inputs"].endswith("again")
    assert known["checked"]["weights"] == "the hashes agree" and known["run"]["class"] == "Tight"


def test_a_vote_belongs_to_every_row_of_its_members(folder: Path, board: Path, capsys: Any) -> None:
    assert all(row.vote is None for row in rows_of(board).values())
    assert added(folder, "vote", board) == 0 and added(folder, "average", board) == 0
    kept = Evaluation.load(folder / "vote").robust_accuracy
    for row in rows_of(board).values():
        assert row.vote is not None and row.vote <= kept and "--vote" in row.rivals["vote"]["command"]
    assert [*rows_of(board)["drawn"].rivals] == ["vote", "average"]
    assert run(["board", "show", "--board", f"{board}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["rows"][0]["provenance"]["rivals"]["vote"]["checked"]["points_of_the_row"].endswith("row's own points")


def test_a_new_run_of_a_row_keeps_its_rivals(folder: Path, board: Path) -> None:
    for name in ("average", "vote", "drawn"):
        assert added(folder, name, board) == 0
    row = rows_of(board)["drawn"]
    assert row.average is not None and row.vote is not None and row.rivals["vote"]["checked"]
    stronger = replace(row, vote=None, average=None, kept=packed(np.zeros((2, SAMPLES), dtype=bool)))
    stronger = replace(stronger, provenance={k: v for k, v in row.provenance.items() if k != "rivals"}).inheriting(row)
    assert (stronger.vote, stronger.average) == (0, row.average), "the new row's points fool all that vote"
    known = row.provenance | {"rivals": {"vote": {"checked": {}}}}  # as boards of older date have it
    old = replace(stronger, provenance=row.provenance | {"rivals": {}}).inheriting(replace(row, provenance=known))
    assert old.vote == row.vote and "an earlier run" in old.rivals["vote"]["checked"]["points_of_the_row"]
    other = replace(row, provenance=row.provenance | {"weights": ["another's"] * 2, "rivals": {}}, average=None)
    assert other.inheriting(row) == other and replace(other, samples=9).inheriting(other).average is None


def test_a_rival_of_no_row_is_refused(folder: Path, board: Path, tmp_path: Path, capsys: Any) -> None:
    changed = load_ensemble(folder / "mine")
    with torch.no_grad():
        next(changed.modules_of_members[1].parameters()).mul_(1.0001)
    save_ensemble(changed, tmp_path / "changed")
    assert added(folder, "vote", board, tmp_path / "changed") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no row of these members in linf on 12 images is on the board; first add the run" in line
    assert line.endswith("again if its row is of another version of recarc")
    content = Board.read(board)
    longer = [replace(row, samples=SAMPLES + 1, kept="") for row in content.rows]
    replace(content, rows=tuple(longer)).write(board)
    assert added(folder, "vote", board) == 2
    assert "on 12 images is on the board, but one on 13" in capsys.readouterr().err
    replace(content, rows=tuple(row for row in content.rows if row.alpha == [0.5, 0.5])).write(board)
    assert added(folder, "average", board) == 2
    assert "attacked neither the vote of these members nor their average at the alpha of a row" in (
        capsys.readouterr().err
    )


def test_signals_of_a_rival_are_named_and_it_counts_only_where_it_keeps_less(
    folder: Path, board: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    shutil.copytree(folder / "vote", tmp_path / "vote")
    vote = RunFolder.open(tmp_path / "vote")
    vote.write_summary({**vote.summary(), "signals": [Signal(0, "margin_jumps", 0.5).to_json()]})
    assert run(["board", "show", "--board", f"{board}"]) == 0 and "majority vote" not in capsys.readouterr().out
    assert added(folder, "vote", board) == 0
    assert run(["board", "show", "--board", f"{board}"]) == 0 and "majority vote" in capsys.readouterr().out
    assert added(tmp_path, "vote", board, folder / "mine") == 0
    assert "; signals of masked gradients: margin jumps" in capsys.readouterr().out
    assert all(row.rivals["vote"]["signals"] == ["margin_jumps"] for row in rows_of(board).values())
    assert run(["board", "show", "--board", f"{board}", "--page", f"{tmp_path / 'page.html'}"]) == 0
    shown, content = capsys.readouterr().out, Board.read(board)
    assert "(margin jumps)" in shown and "majority vote of the members, which costs all of them" in shown
    assert all(row.vote is not None and row.vote < row.tight["value"] for row in content.rows), "less than drawing"
    page = (tmp_path / "page.html").read_text()
    assert "<dt>vote, signals of masked gradients</dt><dd>margin jumps</dd>" in page
    more = tuple(replace(row, vote=1.0) for row in content.rows)
    assert not any("majority vote" in said for said in rivals(replace(content, rows=more))), "which may be the attack's"


def test_a_row_that_was_replaced_meanwhile_gets_no_rival(board: Path) -> None:
    row = rows_of(board)["drawn"]
    rival = Rival("vote", (row,), np.ones(SAMPLES), {"checked": {}})
    add_rival(board, rival)
    assert rows_of(board)["drawn"].vote is not None
    for changed in (
        replace(row, samples=SAMPLES + 9, kept="", kept_alone=""),
        replace(row, alpha=[row.alpha[0] + 1e-6, row.alpha[1] - 1e-6], kept="", kept_alone=""),
        replace(row, provenance=row.provenance | {"weights": ["another's"] * 2}),
        replace(row, method="X"),
    ):
        replace(Board.read(board), rows=(changed,)).write(board)
        before = board.read_bytes()
        with pytest.raises(InputError, match="was replaced or removed while its vote was checked; add the run again"):
            add_rival(board, rival)
        assert board.read_bytes() == before


def test_a_rival_takes_name_and_alpha_of_its_row(folder: Path, board: Path, capsys: Any) -> None:
    for option in ("--method", "--alpha-by"):
        assert added(folder, "vote", board, None, option, "x") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "vote of a row, whose name and alpha it has" in line and line.endswith(f"omit {option}")


def test_what_a_folder_of_runs_leaves_out_is_named(folder: Path, board: Path, tmp_path: Path, capsys: Any) -> None:
    for name in ("average", "drawn"):
        shutil.copytree(folder / name, tmp_path / "runs" / name)
    assert added(tmp_path, "runs", board, folder / "mine") == 0
    shown = capsys.readouterr().out
    assert "over its best member alone" in shown
    assert f"not added, as one run is added at a time: {tmp_path / 'runs' / 'average'}" in shown


def test_a_row_on_more_images_says_what_it_drops(folder: Path, board: Path, capsys: Any) -> None:
    content, fewer = Board.read(board), []
    for row in content.rows:
        row = replace(row, samples=SAMPLES - 2, kept="", average=0.5)
        fewer.append(row.with_rival("vote", {"checked": {}}, 0.5))
    replace(content, rows=tuple(fewer)).write(board)
    assert added(folder, "drawn", board) == 0
    words = "its average and vote on 10 images left the board with the row that was there; add runs on these 12 images"
    assert words in capsys.readouterr().out
    assert added(folder, "drawn", board) == 0 and "left the board" not in capsys.readouterr().out


def test_a_run_of_one_member_is_no_rival(folder: Path, board: Path, tmp_path: Path, capsys: Any) -> None:
    one = RandomizedEnsemble(load_ensemble(folder / "mine").members[1:])
    evaluate(one, Tight(), load("digits", "test", limit=SAMPLES), Ball("linf", 0.1), out=tmp_path / "one")
    assert added(tmp_path, "one", board, folder / "mine") == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "alone" in line]
    assert "one attacked one member alone, members[1], which is neither their average nor their vote" in line


def test_a_weak_attack_on_a_rival_is_refused(folder: Path, board: Path, tmp_path: Path, capsys: Any) -> None:
    weak = ["--vote", "--preset", "quick", "--out", f"{tmp_path / 'weak'}"]
    assert run(["evaluate", f"{folder / 'mine'}", *PROBLEM, *weak]) == 0
    assert added(tmp_path, "weak", board, folder / "mine") == 2
    assert "used the preset quick; a row needs standard or thorough" in capsys.readouterr().err


def test_a_vote_is_lost_where_the_row_fools_every_member_that_votes() -> None:
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    right = np.array([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]], dtype=bool)
    row = Row(
        "m", "linf", 0.1, 3, [0.5, 0.5, 0.0], 4, 1, 1, 1, figure, 0, "open", 0, figure, 0, 0, 0.9, kept=packed(right)
    )
    rival = Rival("vote", (row,), np.ones(4), {"checked": {}})
    changed = rival.beside(row)
    assert changed.vote == 0.75 and changed.rivals["vote"]["checked"]["points_of_the_row"].startswith(
        "1 sample more is"
    )
    assert rival.beside(replace(row, kept="")).vote == 1
    assert replace(rival, name="average").beside(row).average == 1, "an average may be right where no member is"


def test_average_and_vote_exclude_each_other(folder: Path, capsys: Any) -> None:
    assert run(["evaluate", f"{folder / 'mine'}", *PROBLEM, "--average", "--vote"]) == 2
    assert "--average and --vote are two classifiers; evaluate one at a time" in capsys.readouterr().err


def test_a_board_with_rivals_of_another_kind_is_refused(board: Path, capsys: Any) -> None:
    document = json.loads(board.read_text())
    for given in ({"vote": 1}, {"other": {"checked": {}}}, [1], {"vote": {"checked": 1}}):
        document["rows"][0]["provenance"]["rivals"] = given
        board.write_text(json.dumps(document))
        assert run(["board", "show", "--board", f"{board}"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_members_without_a_vote_do_not_change_it() -> None:
    members = [torch.nn.Linear(3, 4) for _ in range(3)]
    one, other = (RandomizedEnsemble(members, alpha).voted() for alpha in ([0.2, 0.0, 0.8], [0.9, 0.0, 0.1]))
    assert torch.equal(one.logits(torch.ones(2, 3)), other.logits(torch.ones(2, 3)))
    assert len(one.members[0].combines) == 2  # type: ignore[attr-defined]


def test_a_vote_is_attacked_through_its_members_and_rivals_look_honest(folder: Path) -> None:
    for name in ("drawn", "average", "vote"):
        result = Evaluation.load(folder / name)
        assert ("members_apart" in result.stages) is (name == "vote") and not result.signals


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_a_vote_is_counted(count: int, classes: int) -> None:
    """Against votes counted one by one; no other class ties, so that the first one has no advantage."""
    logits = 3 * torch.randn(count, 300, classes, generator=torch.manual_seed(count), dtype=torch.float64)
    found = RandomizedEnsemble([lambda x, own=own: own[x] for own in logits]).voted().logits(torch.arange(300))[0]
    assert bool(((found == 0).sum(1) == 1).all()) and bool((found <= 0).all())
    for sample in range(300):
        votes = logits[:, sample].argmax(1).bincount(minlength=classes)
        mean = logits[:, sample].softmax(1).mean(0)
        best = max((c for c in range(classes) if votes[c] == votes.max()), key=lambda c: float(mean[c]))
        assert int(found[sample].argmax()) == best


def test_the_margin_of_a_vote_is_small_where_its_answer_changes() -> None:
    """On straight ways between random points, between two classes that win in turn."""
    rec = RandomizedEnsemble([torch.nn.Linear(5, 4, dtype=torch.float64) for _ in range(5)]).voted()
    start, end = torch.randn(2, 200, 5, dtype=torch.float64)
    for _ in range(40):
        middle = (start + end) / 2
        same = (rec.predictions(middle) == rec.predictions(start))[0, :, None]
        start, end = torch.where(same, middle, start), torch.where(same, end, middle)
    before, after = (rec.logits(x)[0].detach() for x in (start, end))
    other = after.argmax(1)[:, None]
    assert float(before.gather(1, other).abs().max()) < 1e-6
