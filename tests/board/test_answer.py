"""The answer of a board, and how its rows compare."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recarc.board.answer import answer, comparisons, own, remarks, rivals
from recarc.board.boards import Board
from recarc.board.kinds import Kind
from recarc.board.page import gain_marks, write_board
from recarc.board.rows import Row, packed
from recarc.cli.app import run


def a_row(method: str, right: np.ndarray, seed: int, gain: float = 0.01) -> Row:
    """A row of two equiprobable members, of which `right` (2, N) are right."""
    share = {"eps": 0.1, "clean": 0.8, "adaptive_pgd": 0.5, "arc": 0.4, "floor": 0.3}
    return Row(
        method=method,
        norm="linf",
        members=2,
        alpha=[0.5, 0.5],
        samples=right.shape[1],
        tight={"value": right.mean(), "low": 0.0, "high": 1.0},
        verdict="open",
        best_member=right.mean() - gain,
        gain={"value": gain, "low": gain - 0.001, "high": gain + 0.001},
        gain_at_floor=-0.05,
        most=0.01,
        kept=packed(right),
        provenance={"seed": seed},
        **share,
    )


def bits(share: float) -> np.ndarray:
    """(2, 200): both members are right on the first samples."""
    right = np.zeros((2, 200), dtype=bool)
    right[:, : round(200 * share)] = True
    return right


def test_methods_are_compared_with_independent_members_over_their_seeds(tmp_path: Path) -> None:
    more = bits(0.25)
    more[0, 50:100] = True
    board = Board()
    for row in (a_row("IAT", bits(0.25), 0), a_row("X", more, 0, 0.01), a_row("X", bits(0.5), 1, 0.03)):
        board = board.with_row(row)
    (over,) = comparisons(board)
    assert over == board.over(board.rows[-1]) and (over.seeds, over.rival_seeds) == (2, 1)
    assert over.tight[0] == pytest.approx(0.1875) and over.tight[1] < 0.1875 < over.tight[2]
    assert remarks(board) == [over.sentence]
    assert (
        "X, linf, M = 2, alpha uniform (2 seeds): 18.75 points above IAT with as many members (one seed)"
        in over.sentence
    )
    assert "0.50 points below IAT" in replace(over, tight=(-0.005, -0.01, 0.0)).sentence
    assert "of X, linf, M = 2, alpha uniform, on 200 images, mean of 2 seeds (+1.00 to +3.00)" in answer(board)
    assert "+2.00 points [+1.90, +2.10]" in answer(board) and "of 2 randomized ensembles (3 with" in answer(board)
    assert Board.read(board.write(tmp_path / "b.json")) == board


def test_ensembles_are_held_against_one_network_of_their_cost() -> None:
    def trained(row: Row, epochs: int, **changes: Any) -> Row:
        return replace(row, provenance={"seed": 0, "training": f"recarc train x --epochs {epochs} --seed 0"}, **changes)

    single = trained(a_row("AT", bits(0.25)[:1], 0), 110, members=1, alpha=[1.0], flops=10.0)
    wide = trained(a_row("AT, wide", bits(0.5)[:1], 0), 30, members=1, alpha=[1.0], flops=20.0)
    weak = trained(a_row("weak", bits(0.2), 0, 0.05), 30, flops=10.0)
    strong = trained(a_row("strong", bits(0.5), 0, 0.01), 110, flops=10.0)
    board = Board(rows=(single, wide, weak, strong))
    assert (board.single(strong), board.single(strong, 2), board.single(single)) == (single, wide, None)
    assert board.against_one_network() == (board.kinds, [Kind((strong,))])
    words = "that can be compared with one network of the same cost per query, 1 keeps clearly more"
    alike = "the network is known to have had as many epochs as each member in {} of these."
    assert rivals(board) == [f"Of 2 ensembles {words}; {alike.format(1)}"]
    assert rivals(replace(board, rows=(single, strong))) == [f"Of 1 ensemble {words}; {alike.format('all')}"]
    assert rivals(replace(board, rows=(single, weak)))[0].endswith(alike.format("none"))


@pytest.mark.parametrize(
    ("gain", "word", "second"),
    [
        (0.0005, "Not so far", "The largest gain is +0.05 points"),
        (-0.05, "Not so far", "The best result is -5.00 points"),
        (0.01, "Little, if at all", "; no gain is certain, as every one lies between figure and floor."),
        (0.05, "Perhaps", "; no gain is certain, as every one lies between figure and floor."),
    ],
)
def test_the_answer_begins_with_a_word(gain: float, word: str, second: str) -> None:
    said = answer(Board(rows=(a_row("X", bits(0.4), 0, gain),)))
    assert said.startswith(f"{word}: of 1 randomized ensemble,") and second in said
    assert ("certain" in said) == (gain > 0)


def test_ensembles_on_fewer_images_than_others_are_not_counted() -> None:
    """Whoever enters could choose how many; a network on more images changes nothing."""
    whole, few = a_row("whole", bits(0.4), 0, -0.01), a_row("few", bits(0.4)[:, :160], 0, 0.05)
    network = replace(a_row("AT", bits(0.5)[:1], 0), members=1, alpha=[1.0], samples=5000, kept="")
    board = Board(rows=(whole, few, network))
    assert [kind.rows[0].method for kind in board.counted] == ["whole"]
    assert answer(board).startswith("Not so far: of 1 randomized ensemble that was attacked on 200 images, none keeps")


def test_broken_and_masked_ensembles_count_for_nothing() -> None:
    """They may gain much, and only because attacks miss it."""
    kept = a_row("kept", bits(0.4), 0, 0.01)
    broken, masked = a_row("broken", bits(0.05), 0, 0.06), replace(a_row("masked", bits(0.4), 0, 0.2), signals=["x"])
    lost = a_row("lost", bits(0.4), 0, -0.03)
    board = Board(rows=(broken, masked, lost, kept, replace(kept, method="AT", members=1, alpha=[1.0], kept="")))
    words = "Little, if at all: of 2 randomized ensembles that keep 10 % or more and hide no gradients, 1 keeps more"
    alone = answer(Board(rows=(broken, masked, kept)))
    assert alone.startswith(
        "Little, if at all: of 1 randomized ensemble that keeps 10 % or more and hides no gradients"
    )
    assert "than the best member does alone" in alone
    assert answer(board).startswith(words) and "The largest gain is +1.00 points" in answer(board)
    assert [*gain_marks(board).values()] == ["out", "out", "down", "up", "single"]
    assert answer(Board(rows=(broken,))).startswith("Not so far: no randomized ensemble here keeps 10 % or more")


def test_averages_are_held_against_drawing_and_larger_networks(tmp_path: Path) -> None:
    right = np.zeros((2, 200), dtype=bool)
    right[:, :100] = True
    wide = replace(a_row("AT, wide", right[:1], 0), members=1, alpha=[1.0], flops=20.0)
    row = replace(a_row("X", right[:, ::-1], 0), flops=10.0, average=0.54)
    board = Board(rows=(wide, replace(row, average=0.46, provenance={"seed": 1}), row))
    assert remarks(board)[0].startswith("Averaging") and "in 0 of 1 ensemble at 10 % or more" in remarks(board)[0]
    assert (
        "+0.00 points in the median" in remarks(board)[0]
        and "in 0 of 1 (linf; the network is known" in remarks(board)[0]
    )
    voted = [replace(r, vote=0.55, provenance=r.provenance | {"rivals": {"vote": {"checked": {}}}}) for r in board.rows]
    words = "A majority vote of the members, which costs all of them per query, keeps more than drawing one in 1 of 1"
    assert remarks(replace(board, rows=(wide, *voted[1:])))[1].startswith(words)
    page = write_board(replace(board, rows=(wide, voted[2])), tmp_path / "page.html").read_text()
    assert "keeps 50.00 % (+4.00 points for the average, +5.00 points for the vote)" in page
    assert len(remarks(board)) == 1, "without votes there is nothing to say of them"
    masked = {"rivals": {"average": {"checked": {}, "signals": ["margin_jumps"]}}}
    hiding = replace(row, method="Y", average=0.9, provenance=masked)
    (said,) = rivals(replace(board, rows=(*board.rows, hiding)))
    assert "in 0 of 1 ensemble at 10 % or more: by +0.00 points" in said
    assert "+0.00 to +0.00; 1 more hides gradients and may keep less than that; one larger network" in said
    lower = replace(hiding, average=0.4)  # what hides gradients keeps that much at most
    assert "in 0 of 2 ensembles at 10 % or more: by -5.00 points" in rivals(Board(rows=(*board.rows, lower)))[0]
    assert not rivals(replace(board, rows=(wide, hiding))) and hiding.rival_text("average") == "90.00 (margin jumps)"
    unknown = replace(board, rows=(wide, row, replace(board.rows[1], average=None)))
    assert not any(remark.startswith("Averaging") for remark in remarks(unknown))


def test_a_vote_that_several_ensembles_share_counts_once() -> None:
    right = np.zeros((2, 200), dtype=bool)
    right[0, :120] = right[1, :80] = True
    vote = {"checked": {}, "kept": packed(np.arange(200)[None] < 120)}
    row = replace(a_row("X", right, 0), vote=0.6, provenance={"weights": ["a", "b"], "rivals": {"vote": vote}})
    better = right.copy()
    better[1, :100] = True
    other = replace(row, alpha=[0.499, 0.501], kept=packed(better), tight={"value": 0.55, "low": 0.5, "high": 0.6})
    (said,) = rivals(Board(rows=(row, other)))
    words = "in 1 of 1 ensemble at 10 % or more (clearly in 1): by +5.00 points in the median"
    assert words in said, "against the one that keeps most when a member is drawn"
    older = replace(row, method="Y", provenance={"rivals": {"vote": {"checked": {}}}})
    assert "in 2 of 2" in rivals(Board(rows=(row, older)))[0]
    assert "(clearly in 1 of the 1 with all samples recorded)" in rivals(Board(rows=(row, older)))[0]


def test_the_shown_table_has_a_heading_for_every_figure(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    row = replace(a_row("X", np.ones((2, 200), dtype=bool), 0), average=0.5)
    assert run(["board", "show", "--board", str(Board(rows=(row,)).write(tmp_path / "b.json"))]) == 0
    heading, cells = (re.split("[│┃]", line) for line in capsys.readouterr().out.splitlines() if line[0] in "│┃")
    assert len(heading) == len(cells) == 16 and heading[-2].strip() == "verdict" and cells[-2].strip() == "open"


def test_recarcs_own_methods_are_named_with_the_answer() -> None:
    independent, mine = a_row("IAT", bits(0.25), 0), a_row("JAT, 0.5", bits(0.5), 0, 0.01)
    assert own(Board(rows=(independent,))) == ""
    (said,) = [line for line in remarks(Board(rows=(independent, mine))) if "own methods" in line]
    assert "JAT, 0.5, linf, M = 2, alpha uniform (one seed) +1.00 [+0.90, +1.10] against its best member" in said
    assert "+25.00 [" in said and said.endswith("against IAT with as many members (points).")
    assert "against IAT" not in own(Board(rows=(mine,)))


def test_figures_are_printed_with_their_intervals_as_far_as_they_are_known() -> None:
    row = replace(a_row("X", bits(0.25), 0), most=0.01, joint=0.02, average=0.5)
    assert (row.most_text, row.joint_text) == ("1.00", "2.00 [0.78, 5.03]")
    assert replace(row, most_ends=[0.0, 0.02]).most_text == "1.00 [0.00, 2.00]"
    assert replace(row, members=1, joint=None).most_text == replace(row, joint=None).joint_text == ""
    assert row.rival_text("average") == "50.00 (no record)" and row.rival_text("vote") == ""
    training = "recarc train bat --members 2 --epochs 50 --seed 0"
    assert replace(row, provenance={"training": training}).epochs == "50"
    assert replace(row, provenance={"training": f"{training} --start FIRST_MEMBERS"}).epochs is None
    chained = training.replace("bat", "mrboost")
    assert replace(row, provenance={"training": chained}).epochs is None, "the second has had 100"


def test_members_that_are_never_drawn_do_not_count() -> None:
    row = replace(a_row("X", np.ones((2, 200), dtype=bool), 0), alpha=[1.0, 0.0])
    assert row.drawn == 1 and answer(Board(rows=(row,))) == "No randomized ensemble is on this board yet."
