"""The board: rows that follow from the records, and entries that are checked before they count."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recarc import Ball, InputError, RandomizedEnsemble, Tight, evaluate, load_ensemble, save_ensemble
from recarc.board import checks, entry
from recarc.board.boards import Board, add_row
from recarc.board.names import LABELS, method_name, trained_name
from recarc.board.rows import Row, packed, unpacked
from recarc.board.scoring import row_of
from recarc.cli.app import run
from recarc.data import load
from recarc.evaluation import Evaluation
from recarc.evaluation.masking import Signal
from recarc.evaluation.records import joined, taken
from recarc.evaluation.verdict import Verdict
from recarc.exact.floors import Floor
from recarc.report.runs import load_runs
from recarc.training import methods

DIGITS = Board("digits", "test", {"linf": 0.1})
SAMPLES = 12


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is attacked again here needs no strong attack."""
    monkeypatch.setattr(entry, "Tight", lambda: Tight("quick", steps=4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board on digits, an ensemble and its run with saved inputs."""
    folder = tmp_path_factory.mktemp("board")
    DIGITS.write(folder / "board.json")
    rec = load_ensemble("zoo:bat-cnn-digits")
    save_ensemble(rec, folder / "mine", made_by={"method": "bat", "seconds": 30.0, "seed": 0})
    data = load("digits", "test", limit=SAMPLES)
    evaluate(rec, Tight(), data, Ball("linf", 0.1), out=folder / "run", save_inputs=True, progress=False)
    return folder


def added(folder: Path, board: Board = DIGITS, name: str = "run", **options: Any) -> object:
    return entry.check_entry(folder / name, board, folder / "mine", seed=1, **options)


def test_an_entry_becomes_a_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add = ["board", "add", f"{folder / 'run'}", "--ensemble", f"{folder / 'mine'}"]
    assert run([*add, "--board", f"{folder / 'board.json'}"]) == 0
    assert "saved inputs" not in capsys.readouterr().err
    (row,) = Board.read(folder / "board.json").rows
    result = Evaluation.load(folder / "run")
    assert (row.method, row.norm, row.members, row.samples) == ("BAT", "linf", 2, SAMPLES)
    assert row.tight["value"] == result.robust_accuracy and row.floor == result.floor
    assert result.alone is not None
    assert row.best_member == result.alone.mean(1).max()
    assert row.gain["low"] <= row.gain["value"] <= row.gain["high"]
    assert row.gain["value"] == pytest.approx(row.tight["value"] - row.best_member)
    assert row.most >= row.gain["value"] - 1e-9 and row.gain_at_floor <= row.gain["value"] + 1e-9
    assert row.gain_at_floor <= 1e-9, "the floor is a mean of what members keep alone: never more than the best"
    assert 0 <= row.most_ends[0] <= row.most <= row.most_ends[1] and row.most_ends[1] >= row.gain["high"] - 1e-9
    assert row.flops is not None and row.flops > 1e4 and row.minutes == 0.5
    assert row.provenance["checked"]["inputs"].endswith("again")
    assert row.alone == result.alone.mean(1).tolist() and np.shape(row.cross) == (2, 2)
    assert row.scores is not None and np.allclose(row.scores, result.robust_scores)
    at_alpha = next(found for t, found, _ in row.curve if t == pytest.approx(row.alpha[row.best]))
    assert at_alpha == pytest.approx(row.tight["value"]) and row.curve[-1][1] == pytest.approx(row.best_member)
    assert all(floor <= found + 1e-9 for _, found, floor in row.curve)

    page = folder / "board.html"
    assert run(["board", "show", "--board", f"{folder / 'board.json'}", "--page", f"{page}", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert shown["rows"][0]["method"] == "BAT" and "The best result is" in shown["answer"]
    assert "BAT, linf, M = 2" in page.read_text() and page.read_text().count("<tbody data-method") == 1


def test_a_member_that_is_never_drawn_changes_no_figure(folder: Path, tmp_path: Path) -> None:
    """Nothing attacks it, so that it is not right where it was only left alone."""
    pair, data = load_ensemble("zoo:bat-cnn-digits"), load("digits", "test", limit=SAMPLES)
    rec = RandomizedEnsemble([pair.members[0], *pair.members], [0.0, *pair.alpha.tolist()])
    evaluate(rec, Tight(), data, Ball("linf", 0.1), out=tmp_path / "run", progress=False)
    of_pair, of_three = (row_of(load_runs([path / "run"])[0], "BAT") for path in (folder, tmp_path))
    for name in ("tight", "floor", "best_member", "gain", "most", "most_ends", "joint"):
        assert getattr(of_three, name) == getattr(of_pair, name), name


def test_a_second_entry_of_the_same_name_replaces_the_first(folder: Path, tmp_path: Path) -> None:
    row = row_of(load_runs([folder / "run"])[0], "bat")
    add_row(tmp_path / "b.json", row)
    board = add_row(tmp_path / "b.json", replace(row, clean=0.5))
    assert [r.clean for r in board.rows] == [0.5]
    assert len(add_row(tmp_path / "b.json", replace(row, method="iat")).rows) == 2


def test_other_weights_replace_a_row_only_when_asked_to(folder: Path, tmp_path: Path) -> None:
    """Members without a recorded seed are all called seed 0."""
    row = added(folder, DIGITS)
    assert isinstance(row, Row)
    other = replace(row, provenance=row.provenance | {"weights": ["0" * 64] * 2})
    with pytest.raises(InputError, match="is on the board with other weights; name these otherwise with --method"):
        added(folder, replace(DIGITS, rows=(other,)))  # before anything is attacked again
    assert added(folder, replace(DIGITS, rows=(other,)), replacing=True) is not None
    add_row(tmp_path / "b.json", row)
    with pytest.raises(InputError, match="other weights"):
        add_row(tmp_path / "b.json", other)
    assert add_row(tmp_path / "b.json", other, replacing=True).rows == (other,)


def forged(folder: Path, monkeypatch: pytest.MonkeyPatch, **records: Any) -> Any:
    """The run of the folder, had it recorded something else."""
    true = load_runs([folder / "run"])[0]
    changed = replace(true.evaluation, records=replace(true.evaluation.records, **records))
    monkeypatch.setattr(entry, "one_run", lambda path: replace(true, evaluation=changed))
    return true.evaluation


def test_records_that_contradict_themselves_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that fell alone, where the ensemble is said to keep its share: what a gain could be made of."""
    true = Evaluation.load(folder / "run")
    forged(folder, monkeypatch, alone=np.zeros_like(true.records.alone))
    with pytest.raises(
        InputError, match=r"the records of run contradict themselves: on \d+ samples a member was fooled"
    ):
        added(folder)
    twice = np.repeat(true.records.adversarial, 2, axis=0)
    forged(folder, monkeypatch, adversarial=twice)
    with pytest.raises(InputError, match="has several attacked inputs for each sample"):
        added(folder)


def at(evaluation: Evaluation, rows: np.ndarray) -> Evaluation:
    """Had it been on these samples only."""
    return replace(evaluation, records=joined([taken(evaluation.records, range(row, row + 1)) for row in rows]))


def test_a_gain_that_is_not_found_again_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as 64 random samples would hardly show it; those that gain are attacked again, too."""
    true = Evaluation.load(folder / "run")
    saved = replace(load_runs([folder / "run"])[0], evaluation=true)
    alone = true.records.alone
    assert alone is not None
    lost = replace(true, records=replace(true.records, alone=np.zeros_like(alone)))
    gained = replace(saved, evaluation=lost)
    rows = entry.drawn_gains(gained, 64, 1)
    assert np.array_equal(rows, np.flatnonzero(true.robust_scores > 0)), "so that all of them gain"
    with pytest.raises(InputError, match=r"samples that gain over member 0 alone gain .* points where run says"):
        entry.gain_again(gained, rows, at(true, rows))
    assert "in the run" in entry.gain_again(gained, rows, at(lost, rows))


@pytest.mark.parametrize("changed", [{"commit": 5}, {"hardware": ["x"]}, {"trained_on": ["x"]}])
def test_a_row_that_could_not_be_read_again_is_not_written(folder: Path, tmp_path: Path, changed: Any) -> None:
    row = row_of(load_runs([folder / "run"])[0], "BAT", provenance=changed)
    with pytest.raises(InputError, match="the row of 'BAT' could not be read again: its"):
        add_row(tmp_path / "b.json", row)
    assert not (tmp_path / "b.json").exists()


def test_a_row_whose_gain_is_not_that_of_its_samples_is_refused(folder: Path, tmp_path: Path) -> None:
    row = row_of(load_runs([folder / "run"])[0], "BAT")
    flattered = [{"gain": row.gain | {"low": 0.0}}, {"gain": row.gain | {"value": 0.05}}, {"best_member": 0.1}]
    for changed in (*flattered, {"kept_alone": packed(np.zeros((2, SAMPLES), dtype=bool))}, {"alpha": [2.0, -1.0]}):
        with pytest.raises(InputError, match="could not be read again"):
            add_row(tmp_path / "b.json", replace(row, **changed))
    with pytest.raises(InputError, match="two rows have the same name"):
        Board.read(Board(rows=(row, row)).write(tmp_path / "twice.json"))


def test_one_ensemble_has_one_row(folder: Path, tmp_path: Path) -> None:
    row = added(folder, DIGITS)
    assert isinstance(row, Row)
    add_row(tmp_path / "b.json", row)
    for other in (replace(row, method="X"), replace(row, provenance=row.provenance | {"seed": 5})):
        with pytest.raises(InputError, match="these members are on the board with this alpha already, as BAT, linf"):
            add_row(tmp_path / "b.json", other)


def test_a_version_that_hashed_otherwise_needs_first_logits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, rec = load_runs([folder / "run"])[0], load_ensemble(folder / "mine")
    other = replace(run.evaluation, configuration=run.configuration | {"members": ["aa", "bb"]})
    old = replace(run, evaluation=other, environment=run.environment | {"recarc": "0.1.0"})
    data = load("digits", "test", limit=SAMPLES)
    assert "the first logits agree" in checks.members_agree(old, rec, data)
    for saved in ([], [[], []]):
        folder_of_run = SimpleNamespace(first_logits=saved)
        monkeypatch.setattr(checks.RunFolder, "open", lambda path, found=folder_of_run: found)
        assert not checks.members_agree(old, rec, data)


def test_a_shorter_run_replaces_no_longer_one(folder: Path, tmp_path: Path) -> None:
    row = replace(row_of(load_runs([folder / "run"])[0], "BAT"), samples=SAMPLES + 1, kept="")
    why = "BAT, linf, M = 2, alpha 0.7, 0.3, seed 0 is on the board with 13 images, and this run has 12; "
    with pytest.raises(InputError, match=re.escape(why)):
        added(folder, replace(DIGITS, rows=(row,)))  # before anything is attacked again
    board = add_row(tmp_path / "b.json", row)
    with pytest.raises(InputError, match=re.escape(why)):
        add_row(tmp_path / "b.json", replace(row, samples=SAMPLES))
    assert Board.read(tmp_path / "b.json") == board
    assert add_row(tmp_path / "b.json", replace(row, samples=SAMPLES + 1, clean=0.5)).rows[0].clean == 0.5


def trained(row: Row, options: str, seed: int) -> Row:
    known = {"seed": seed, "training": f"recarc train bat --members 2 {options} --seed {seed} --out FOLDER"}
    return replace(row, provenance=known)


def test_members_that_were_trained_otherwise_are_another_kind(folder: Path, tmp_path: Path) -> None:
    row = row_of(load_runs([folder / "run"])[0], "BAT")
    first = trained(row, "--arch cnn --recipe fast --epochs 20", 0)
    why = "seed 0 is on the board with members trained with --arch cnn --epochs 20, and these with --arch mlp"
    add_row(tmp_path / "b.json", first)
    for seed in (0, 3):
        with pytest.raises(InputError, match=re.escape(why)):
            add_row(tmp_path / "b.json", trained(row, "--arch mlp --recipe fast --epochs 1", seed))
    with pytest.raises(InputError, match="trained with fewer options, and these with --arch-option width=8; name it"):
        add_row(tmp_path / "b.json", trained(row, "--arch cnn --recipe fast --epochs 20 --arch-option width=8", 0))
    longer = trained(row, "--arch cnn --recipe fast --epochs 40", 0)
    assert len(add_row(tmp_path / "b.json", longer, replacing=True).rows) == 1
    add_row(tmp_path / "b.json", first, replacing=True)
    again = trained(row, "--arch cnn --recipe fast --epochs 20", 1)
    assert len(add_row(tmp_path / "b.json", again).rows) == 2
    assert len(add_row(tmp_path / "b.json", replace(row, provenance={"seed": 0})).rows) == 2, "nothing is known of it"


def test_an_entry_is_told_of_other_training_before_it_is_attacked_again(folder: Path, tmp_path: Path) -> None:
    made_by = {"command": "train", "method": "bat", "members": 2, "data": "digits", "arch": "cnn", "seed": 0}
    save_ensemble(
        load_ensemble(folder / "mine"), tmp_path / "mine", made_by=made_by | {"recipe": {"name": "fast", "epochs": 3}}
    )
    row = trained(
        row_of(load_runs([folder / "run"])[0], "BAT"), "--data digits --arch cnn --recipe fast --epochs 20", 0
    )
    with pytest.raises(InputError, match="trained with --epochs 20, and these with --epochs 3; name it otherwise"):
        entry.check_entry(folder / "run", replace(DIGITS, rows=(row,)), tmp_path / "mine")


def test_a_certificate_that_was_handed_in_is_not_believed(folder: Path) -> None:
    run = load_runs([folder / "run"])[0]
    assert run.evaluation.robust_accuracy > 0
    scores = torch.tensor(run.evaluation.robust_scores)
    claimed = SimpleNamespace(vacuous=False, floor=lambda alpha: Floor(scores, scores, scores[:2]))
    believed = replace(run.evaluation, certification=claimed)
    assert Verdict.of(believed).level == "certified"
    assert row_of(replace(run, evaluation=believed), "BAT") == row_of(run, "BAT")


def test_the_minutes_of_first_members_count() -> None:
    assert entry.training_minutes({"seconds": 60, "start_split": [{"seconds": 120.0}, {"seed": 0}]}) == 3.0
    assert entry.training_minutes({"seconds": None}) is None


def test_methods_trained_alike_have_one_name() -> None:
    assert {*methods.names()} == {*LABELS}
    assert [method_name(text) for text in ("iat", " Iat, width 8", "My method", "mrboost")] == [
        *("IAT", "IAT, width 8", "My method", "MRBoost")
    ]
    trained = {"method": "jat", "recipe": {"diversity": 0.5}, "arch_options": {"width": 8}}
    assert trained_name(trained, "folder") == "JAT, 0.5, width 8"
    assert trained_name({"method": "iat", "recipe": {"diversity": 1.0}}, "folder") == "IAT"
    assert trained_name({}, "my-folder") == "my-folder"


@pytest.mark.parametrize(
    ("board", "why"),
    [
        (Board(), "this board is on cifar10 test"),
        (replace(DIGITS, eps={"linf": 0.2}), "this board is in linf eps 0.2"),
        (replace(DIGITS, eps={"l2": 0.1}), "this board is in l2 eps 0.1"),
    ],
)
def test_entries_on_another_problem_are_refused(folder: Path, board: Board, why: str) -> None:
    with pytest.raises(InputError, match=why):
        added(folder, board)


def test_changed_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    rec = load_ensemble("zoo:bat-cnn-digits")
    with torch.no_grad():
        next(rec.modules_of_members[1].parameters()).mul_(1.0001)
    save_ensemble(rec, tmp_path / "mine")
    with pytest.raises(InputError, match="the weights are not those that run attacked"):
        entry.check_entry(folder / "run", DIGITS, tmp_path / "mine")


def test_runs_of_another_version_are_known_by_their_first_logits(folder: Path) -> None:
    given = handed_in(folder)
    given.run.configuration["members"] = ["hashed otherwise"] * 2
    with pytest.raises(InputError, match="the weights are not those"):
        checks.check_members(given.run, given.ensemble, given.samples)
    given.run.environment["recarc"] = "0.1.0"
    assert "the first logits agree" in checks.check_members(given.run, given.ensemble, given.samples)
    with torch.no_grad():
        next(given.ensemble.modules_of_members[1].parameters()).mul_(1.1)
    with pytest.raises(InputError, match="the weights are not those"):
        checks.check_members(given.run, given.ensemble, given.samples)


def test_a_weak_or_unfinished_run_is_refused(folder: Path, tmp_path: Path) -> None:
    rec, data = load_ensemble("zoo:bat-cnn-digits"), load("digits", "test", limit=4)
    evaluate(rec, Tight("quick", steps=2), data, Ball("linf", 0.1), out=tmp_path / "quick", progress=False)
    with pytest.raises(InputError, match="preset quick; a row needs standard or thorough"):
        added(folder, name=str(tmp_path / "quick"))
    given = load_runs([folder / "run"])[0]
    given.evaluation.expected_samples = SAMPLES + 1
    with pytest.raises(InputError, match="not finished"):
        checks.check_run(given, DIGITS)


def test_random_members_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = entry.RunFolder.open(folder / "run")
    opened.first_logits = [None, opened.first_logits[1]]
    monkeypatch.setattr(entry.RunFolder, "open", lambda path: opened)
    with pytest.raises(InputError, match="is random"):
        checks.check_run(load_runs([folder / "run"])[0], DIGITS)


def handed_in(folder: Path) -> entry.Entry:
    found = load_runs([folder / "run"])[0]
    return entry.Entry(found, load_ensemble(folder / "mine"), load("digits", "test", limit=SAMPLES))


def test_inputs_outside_the_ball_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry.Entry, "ball", Ball("linf", 0.09))
    with pytest.raises(InputError, match=r"leave the ball or the box, by 0\.01"):
        entry.judged_again(handed_in(folder))


def test_inputs_that_do_not_give_the_figure_are_refused(folder: Path) -> None:
    given = handed_in(folder)
    given.run.evaluation.records.adversarial[:] = given.run.evaluation.records.clean
    with pytest.raises(InputError, match="judged again, the saved inputs of run leave"):
        entry.judged_again(given)


def test_damaged_inputs_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (file,) = (tmp_path / "run").glob("*.inputs.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(InputError, match="damaged"):
        entry.check_entry(tmp_path / "run", DIGITS, folder / "mine")


def test_a_row_says_that_its_inputs_were_not_handed_in(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("*.inputs.safetensors"))
    given = replace(handed_in(folder), run=load_runs([tmp_path / "run"])[0])
    assert entry.judged_again(given) == "not handed in"


@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("adversarial", "keep"),
        ("alone", r"keep [\d.]+ % \(member 0 alone\) where the run says 0.00 %"),
        ("adaptive_pgd", r"keep [\d.]+ % \(under AdaptivePGD\) where the run says 0.00 %"),
        ("arc", r"keep [\d.]+ % \(under ARC\) where the run says 0.00 %"),
        ("clean", r"keep [\d.]+ % \(clean\) where the run says 0.00 %"),
    ],
)
def test_a_run_that_claims_other_figures_than_are_found_again_is_refused(folder: Path, part: str, what: str) -> None:
    """Members that seem to keep nothing alone would make any ensemble look like a gain."""
    given = handed_in(folder)
    found = evaluate(given.ensemble, entry.Tight(), given.samples.batch(np.arange(SAMPLES)), given.ball, progress=False)
    records = given.run.evaluation.records
    assert "12 samples (seed 7): " in entry.found_again(given.run, np.arange(SAMPLES), found, 7)
    falsified = getattr(records, part) if hasattr(records, part) else records.stages[part]
    falsified[:] = {"adversarial": given.run.evaluation.labels, "alone": False}.get(part, -1)
    with pytest.raises(InputError, match=f"attacked again, 12 samples of run {what}"):
        entry.found_again(replace(given.run, evaluation=replace(given.run.evaluation)), np.arange(SAMPLES), found, 7)


def test_a_run_without_its_signals_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match=r"the summary.json of .* is missing, or is not that of its run"):
        entry.check_entry(tmp_path / "run", DIGITS, folder / "mine")


def test_signals_that_are_found_again_mark_the_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = evaluate

    def masked(*given: Any, **options: Any) -> Evaluation:
        return replace(real(*given, **options), signals=[Signal(1, "margin_jumps", 0.5)])

    monkeypatch.setattr(entry, "evaluate", masked)
    row = added(folder)
    assert isinstance(row, Row) and row.signals == ["margin_jumps"] and row.verdict == "open"


def test_too_few_samples_to_attack_again_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="again is 1; at least 64 samples must be attacked again"):
        entry.check_entry(folder / "run", DIGITS, folder / "mine", again=1)


def test_a_row_with_half_an_interval_is_refused(folder: Path, tmp_path: Path) -> None:
    row = row_of(load_runs([folder / "run"])[0], "BAT")
    path = replace(DIGITS, rows=(replace(row, most_ends=[0.1]),)).write(tmp_path / "b.json")
    with pytest.raises(InputError, match="most_ends has 1 numbers, expected 2"):
        Board.read(path)


def test_rows_name_no_folders_of_a_machine() -> None:
    given = "recarc evaluate /home/me/my-net --eps 8/255 --out /root/runs/a --data cifar10"
    assert entry.without_folders(given) == "recarc evaluate my-net --eps 8/255 --out a --data cifar10"


def test_a_damaged_board_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("{", "[]", '{"format": 1, "rows": [{}], "data": "d", "split": "s", "eps": {}}'):
        (tmp_path / "b.json").write_text(text)
        assert run(["board", "show", "--board", f"{tmp_path / 'b.json'}"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_which_members_are_right_survives_packing() -> None:
    right = np.random.default_rng(0).random((3, 21)) < 0.5
    assert np.array_equal(unpacked(packed(right), 3, 21), right)
    for text, members in (("!", 3), ("AAAA", 3), (packed(right), 2), (packed(right), 4)):
        with pytest.raises(ValueError):
            unpacked(text, members, 21)


def test_a_vote_without_a_run_of_its_own_is_not_read(folder: Path, tmp_path: Path) -> None:
    """Boards of older date hold what was left of it at the points of other attacks."""
    row = row_of(load_runs([folder / "run"])[0], "BAT")
    assert row.vote is None
    old = replace(
        DIGITS, rows=(replace(row, vote=0.5), replace(row, method="X").with_rival("vote", {"checked": {}}, 1))
    )
    first, second = Board.read(old.write(tmp_path / "b.json")).rows
    assert (first.vote, second.vote) == (None, 1)


def test_averaged_probabilities() -> None:
    rec = RandomizedEnsemble([torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)], [0.25, 0.75])
    x = torch.randn(5, 3)
    one, other = (member(x).softmax(1) for member in rec.modules_of_members)
    assert not RandomizedEnsemble([member.eval() for member in rec.modules_of_members]).averaged().members[0].training  # type: ignore[union-attr]
    torch.testing.assert_close(rec.averaged().logits(x)[0].exp(), 0.25 * one + 0.75 * other)
