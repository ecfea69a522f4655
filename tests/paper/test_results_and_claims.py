"""Results files, the documents made of them, and the claims judged by them."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper import left, results
from paper.claims import CLAIMS, judge
from paper.costs import attack_seconds, training_seconds
from paper.floors import of_board
from paper.items import ITEMS
from paper.items.figures import ARC_ALPHA_ONE, IAT_GAIN
from paper.items.head_to_head import ahead_of_climb
from paper.judging import Judged
from paper.pages import claims_of, fill, gathered, headline, marked_parts, page, render, worst_first
from paper.recipe import Difference, Item
from paper.results import Figure, ItemResult, RowResult
from paper.tables import gradients_of, grids
from recarc import Tight
from recarc.board import Board
from recarc.errors import InputError

ROOT = Path(__file__).parents[2]


def row(name: str, images: int = 100, axis: str = "", **columns: float) -> RowResult:
    """Columns `APGD=56` or, for sweeps, `ARC_4=30` for ARC at x = 4."""
    figures = []
    for key, value in columns.items():
        column, _, x = key.partition("_")
        figures.append(
            Figure({"AT": "AT: PGD", "RR": "APGD + RR"}.get(column, column), value, x=float(x) if x else None)
        )
    return RowResult(name, tuple(figures), images, data="cifar10", axis=axis, command="c", hardware="h", date="d")


def test_rows_are_merged_in_the_recipes_order(tmp_path: Path) -> None:
    order = [r.name for r in ITEMS["table3"].rows]
    empty = results.read(tmp_path, "table3", "t")
    assert empty.rows == ()
    results.write(tmp_path, empty.with_row(row("linf", ARC=40.0), order))
    both = results.read(tmp_path, "table3").with_row(row("l2", ARC=55.0), order)
    results.write(tmp_path, both)
    again = results.read(tmp_path, "table3").with_row(row("linf", ARC=41.0), order)
    assert [r.row for r in again.rows] == ["l2", "linf"]
    assert again.rows[1].figures[0].measured == 41.0
    assert not list(tmp_path.glob("*.part"))


def test_rows_that_are_out_of_date_are_not_the_worst() -> None:
    old = replace(row("ours, old", ratio=0.2), stale={"ratio": "faster since"})
    rows = [row("plain loop", ratio=1.0), old, row("ours, fast", ratio=9.0), row("ours, slow", ratio=2.0)]
    assert [r.row for r in sorted(rows, key=worst_first)] == ["ours, slow", "ours, fast", "ours, old", "plain loop"]


def test_a_row_on_more_images_is_not_replaced(tmp_path: Path) -> None:
    results.write(tmp_path, ItemResult("table3", "t", (row("linf", images=10000, ARC=40.0),)))
    results.check_replaceable(tmp_path, "table3", {"linf": 10000}, tight=False)
    with pytest.raises(InputError, match="measured on 10000 images; this run has only 50"):
        results.check_replaceable(tmp_path, "table3", {"linf": 50})
    results.write(tmp_path, ItemResult("table3", "t", (row("linf", ARC=40.0, tight=30.0),)))
    with pytest.raises(InputError, match="measured with tight; this run leaves it out"):
        results.check_replaceable(tmp_path, "table3", {"linf": 100}, tight=False)


def test_single_columns_are_put_into_a_row_with_their_own_provenance(tmp_path: Path) -> None:
    old = replace(row("l2", axis="alpha", **{"ARC_0.5": 30, "AC&W_0.5": 47, "AC&W_1": 60}), stale={"AC&W": "why"})
    results.write(tmp_path, ItemResult("figure7", "t", (old, row("other", ARC=1.0))))
    new = replace(row("l2", axis="alpha", **{"AC&W_0.5": 40, "AC&W_1": 60}), command="later", commit="abc", date="then")
    found = results.add_columns(tmp_path, "figure7", new)
    assert found == results.read(tmp_path, "figure7") and [r.row for r in found.rows] == ["l2", "other"]
    merged = found.rows[0]
    assert merged.curve("AC&W") == [(0.5, 40), (1, 60)] and merged.curve("ARC") == [(0.5, 30)]
    assert (merged.command, merged.date, merged.stale) == (old.command, old.date, {})
    assert merged.note == "AC&W: measured later by `later` at abc, then, 0 s on h"
    for wrong, line in (
        (replace(new, images=50), "measured on 100 images, this run has 50: use --limit 100"),
        (replace(new, row="linf"), "holds no row linf"),
        (replace(new, ensemble="another"), "with ensemble '', this run has 'another'"),
        (replace(new, alpha=(0.8, 0.2)), "with alpha None, this run has"),
    ):
        with pytest.raises(InputError, match=line):
            results.add_columns(tmp_path, "figure7", wrong)
    text = page("results", gathered_from(tmp_path, old), tmp_path, tmp_path)
    assert "Out of date: AC&W of l2. why" in text


def test_a_difference_follows_a_column_that_is_measured_again(tmp_path: Path) -> None:
    """Its other side was measured on the same images, but one by one they are not known any more: no interval."""
    lead = Figure("floor - AutoAttack", 1.6, (0.4, 2.8), unit="points")
    old = row("l1", AutoAttack=23.2, floor=24.8)
    results.write(tmp_path, ItemResult("autoattack", "t", (replace(old, figures=(*old.figures, lead)),)))
    wanted = Difference("floor - AutoAttack", "floor", "AutoAttack")
    found = results.add_columns(tmp_path, "autoattack", row("l1", floor=23.0), [wanted]).rows[0]
    assert [f.measured for f in found.figures] == [23.2, 23.0, -0.2]
    assert found.figures[-1].interval is None


def gathered_from(folder: Path, *rows: RowResult) -> dict[str, list[ItemResult]]:
    """Only Figure 7 was measured."""
    return {name: [ItemResult(name, "t", rows)] if name == "figure7" else [] for name in ITEMS}


def test_a_row_that_another_process_measured_better_meanwhile_stays(tmp_path: Path) -> None:
    results.add_row(tmp_path, "table3", "t", row("linf", images=10000, APGD=56), ["linf"])
    with pytest.raises(InputError, match="measured on 10000 images; this run has only 100"):
        results.add_row(tmp_path, "table3", "t", row("linf", images=100, APGD=56), ["linf"])
    assert results.read(tmp_path, "table3").rows[0].images == 10000


def test_a_row_that_is_out_of_date_may_be_replaced_by_one_on_fewer_images(tmp_path: Path) -> None:
    for stale in ({"ARC": "why"}, {"ARC": "why", "APGD": "why"}):
        old = replace(row("linf", images=10000, APGD=56, ARC=50), stale=stale)
        results.write(tmp_path, ItemResult("table3", "t", (old,)))
        if len(stale) == 1:
            with pytest.raises(InputError, match="this run has only 100"):
                results.check_replaceable(tmp_path, "table3", {"linf": 100})
        else:
            results.check_replaceable(tmp_path, "table3", {"linf": 100})


def test_processes_add_rows_at_the_same_time(tmp_path: Path) -> None:
    names = [str(i) for i in range(12)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: results.add_row(tmp_path, "table1", "t", row(name, ARC=1.0), names), names))
    assert [r.row for r in results.read(tmp_path, "table1").rows] == names


@pytest.mark.parametrize("text", ["{", "{}", '{"format": 9, "item": "a", "title": "", "rows": []}'])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "table1.json").write_text(text)
    with pytest.raises(InputError, match=r"table1.json is not a results file of `python -m paper`"):
        results.read(tmp_path, "table1")


def one(item: str, *rows: RowResult) -> dict[str, ItemResult]:
    return {item: ItemResult(item, "", rows)}


NAMES = (
    *("beats AT", "alpha", "overestimate", "below AT", "alpha 1", "restarts"),
    *("planes", "IAT", "diversity", "floor", "ARC wins", "Climb"),
)


def judged(name: str, measured: dict[str, ItemResult], items: dict[str, Item] | None = None) -> Judged:
    """What is said of one claim; by default nothing counts as missing."""
    return judge(measured, items or {})[NAMES.index(name)]


REFUTED = "refuted for 1 of 1 row"
ON_TEST_IMAGES: dict[str, Any] = {"alpha": (0.9, 0.1), "alpha_chosen_by": "grid of 11 points on the first 2000 images"}
CASES = [
    ("beats AT", one("table1", row("a", APGD=56, AT=42)), "confirmed"),
    ("beats AT", one("table1", row("a", APGD=40, AT=42)), REFUTED),
    ("alpha", one("table1", replace(row("a", APGD=56), alpha=(0.8, 0.2))), "confirmed"),
    ("alpha", one("table1", replace(row("a", APGD=56), alpha=(0.5, 0.5))), REFUTED),
    ("alpha", one("table1", replace(row("a", APGD=56), alpha=(1.0, 0.0))), "undecided for 1 of 1 row"),
    ("alpha", one("table1", replace(row("a", APGD=56), **ON_TEST_IMAGES)), "undecided for 1 of 1 row"),
    ("overestimate", one("table1", row("a", APGD=56, ARC=37)), "confirmed"),
    ("overestimate", one("table1", row("a", APGD=40, ARC=37)), REFUTED),
    ("below AT", one("table2", row("a", AT=42, ARC=37, **{"AT: ARC": 40})), "confirmed"),
    ("below AT", one("table2", row("a", AT=42, ARC=37, **{"AT: ARC": 36})), REFUTED),
    ("below AT", one("table2", row("a", AT=42, ARC=37)), "undecided for 1 of 1 row"),
    ("alpha 1", one("figure3", row("alpha", axis="alpha", **{"ARC_0.5": 20, "ARC_1": 40})), "confirmed"),
    ("alpha 1", one("figure3", row("alpha", axis="alpha", **{"ARC_0.5": 50, "ARC_1": 40})), REFUTED),
    ("alpha 1", one("figure3", row("alpha", axis="alpha", **{"ARC_0.5": 20, "ARC_0.9": 40})), "not measured yet"),
    ("restarts", one("table3", row("linf", RR=57, APGD=56)), "confirmed"),
    ("restarts", one("table3", row("linf", RR=50, APGD=56)), REFUTED),
    ("planes", one("table5-cifar10", row("linf", axis="G", ARC_1=38, ARC_4=37.1, ARC_9=37)), "confirmed"),
    ("planes", one("table5-cifar10", row("linf", axis="G", ARC_4=39, ARC_9=37)), REFUTED),
    ("IAT", one("figure10", row("M", axis="M", ARC_1=60, ARC_8=62)), "confirmed"),
    ("IAT", one("figure10", row("M", axis="M", ARC_1=60, ARC_8=64)), REFUTED),
    ("diversity", one("figure4", row("eps", ARC_8=15, tight_8=0.1)), "confirmed"),
    ("diversity", one("figure4", row("eps", ARC_8=0.2, tight_8=0.1)), REFUTED),
    ("floor", one("table1", row("a", tight=35.2, floor=35)), "confirmed"),
    ("floor", one("table1", row("a", tight=37, floor=35)), REFUTED),
    ("ARC wins", one("figure9", row("adp", APGD_2=16, ARC_2=10, APGD_8=5, ARC_8=0)), "confirmed"),
    ("ARC wins", one("figure9", row("adp", APGD_2=16, ARC_2=19, APGD_8=5, ARC_8=0)), REFUTED),
]


@pytest.mark.parametrize(("name", "measured", "verdict"), CASES)
def test_claims_follow_the_figures(name: str, measured: dict[str, ItemResult], verdict: str) -> None:
    found = judged(name, measured)
    assert found.verdict == verdict
    assert found.verdict == "not measured yet" or "n = 100" in found.evidence[0]
    assert all(j.verdict == "not measured yet" for j in judge({}))
    assert len(judge({})) == len(CLAIMS) == len(NAMES)


def test_a_claim_names_the_training_and_counts_an_ensemble_once() -> None:
    same = replace(row("a", APGD=56, ARC=37), ensemble="zoo:a", recipe="fast, 10 epochs")
    found = judged("overestimate", {**one("table1", same), **one("table2", replace(same, row="b"))})
    assert "over 1 ensemble." in found.summary
    assert found.evidence == ("a: 56.00 under APGD, 37.00 under ARC (n = 100, fast, 10 epochs): 19.00 ± 0.00 points",)


def test_no_row_is_dropped_silently() -> None:
    """Without figures, without some column, or without a mixture: each counts as undecided and is named."""
    rows = {r.name: r for r in ITEMS["table1"].rows}
    good, single = (replace(row(name, APGD=56, ARC=37, AT=42), alpha=(0.9, 0.1)) for name in list(rows)[:2])
    single = replace(single, alpha=(1.0, 0.0))
    found = judged("overestimate", one("table1", good, single), {"table1": ITEMS["table1"]})
    assert found.verdict == "undecided for 9 of 10 rows, confirmed for the others"
    assert found.evidence[1].startswith("open: ") and found.evidence[1].endswith("chose one member alone")
    assert found.evidence[2] == "not measured: " + ", ".join(f"table1 {name}" for name in list(rows)[2:])
    part = one("table1", row(next(iter(rows)), APGD=56))
    assert judged("overestimate", part, ITEMS).evidence == judged("overestimate", {}, ITEMS).evidence
    here, away = judged("overestimate", {}, {"table1": ITEMS["table1"], "table2": ITEMS["table2"]}).evidence
    assert here.startswith("not measured: ") and here.count("table1 ") == 10 and "table2" not in here
    assert away.startswith("not at hand: ") and away.count("table2 ") == 6, "two tables ask the same of ResNet-20"
    assert judged("floor", one("table1", replace(row("a", tight=35.2, floor=35), alpha=(1.0, 0.0)))).evidence


def test_a_claim_is_decided_on_the_data_at_hand() -> None:
    """Rows on SVHN, CIFAR-100 and ImageNet are named, but leave a claim neither open nor confirmed for them."""
    measured = [replace(row(r.name, RR=57, APGD=56, ARC=37), ensemble=r.name) for r in ITEMS["table2"].rows]
    here = [found for found in measured if found.row.startswith("cifar10-")]
    found = judged("overestimate", one("table2", *here), {"table2": ITEMS["table2"]})
    assert found.verdict == "confirmed on the data at hand"
    assert found.evidence[-1].startswith("not at hand: table2 svhn-l2, ") and "not measured" not in str(found.evidence)
    assert judged("overestimate", one("table2", *measured), {"table2": ITEMS["table2"]}).verdict == "confirmed"
    found = judged("overestimate", one("table2", here[0]), {"table2": ITEMS["table2"]})
    assert found.verdict == "undecided for 1 of 2 rows, confirmed for the others"
    swept = judged("alpha 1", {}, {"figure6": ITEMS["figure6"]}).evidence
    assert [line.count("alpha") for line in swept] == [2, 2], "only sweeps over alpha"


def test_below_at_compares_the_same_attack() -> None:
    """41 under PGD is above the ensemble's 38 under ARC, but under ARC the AT model keeps only 37."""
    weak = replace(row("a", APGD=56, ARC=38, AT=41), ensemble="zoo:a", norm="linf", alpha=(0.9, 0.1))
    alone = replace(row("cifar10-linf-f1", ARC=37), ensemble="zoo:a", norm="linf")
    assert judged("below AT", {**one("table1", weak), **one("table4", alone)}).verdict == REFUTED
    fewer = replace(alone, images=50)
    assert judged("below AT", {**one("table1", weak), **one("table4", fewer)}).verdict == "undecided for 1 of 1 row"


def test_many_comparisons_are_corrected_for() -> None:
    """One row 2.2 standard errors below the limit refutes a claim about one row, not one about twenty."""

    def measured(name: str, gap: float) -> RowResult:
        plain = row(name, APGD=40 + gap, ARC=40)
        diff = Figure("Diff", -gap, (-gap - 1.96, -gap + 1.96), unit="points")
        return replace(plain, figures=(*plain.figures, diff))

    low, high = measured("low", 8 - 2.2), [measured(f"{i}", 8 + 9 + i) for i in range(19)]
    assert judged("overestimate", one("table1", low)).verdict == REFUTED
    twenty = judged("overestimate", one("table1", low, *high))
    assert twenty.verdict == "refuted for 1 of 20 rows", "the others are far from the limit and leave it the last test"
    unsure = [measured(f"{i}", 8 + i / 100) for i in range(19)]
    assert judged("overestimate", one("table1", low, *unsure)).verdict == "undecided for 20 of 20 rows"


def test_intervals_can_leave_a_claim_open() -> None:
    def measured(diff: float, half: float) -> dict[str, ItemResult]:
        gap = Figure("Diff", -diff, (-diff - half, -diff + half), unit="points")
        plain = row("a", APGD=40 + diff, ARC=40)
        return one("table1", replace(plain, figures=(*plain.figures, gap)))

    found = [judged("overestimate", measured(*case)).verdict for case in ((12, 2), (9, 2), (7, 2), (4, 2))]
    assert found == ["confirmed", "undecided for 1 of 1 row", "undecided for 1 of 1 row", REFUTED]
    ends = [Figure("ARC", value, (value - 3, value + 3), x=x) for x, value in ((1, 51.4), (8, 54.2))]
    sweep = RowResult("M", tuple(ends), 100, axis="M")
    assert judged("IAT", one("figure10", sweep)).verdict == "undecided for 1 of 1 row"
    paired = Figure(IAT_GAIN, 2.8, (2.7, 2.9), unit="points")
    assert judged("IAT", one("figure10", replace(sweep, figures=(*ends, paired)))).verdict == "confirmed"
    curve = [Figure("ARC", value, (value - 3, value + 3), x=x) for x, value in ((0.5, 20), (0.9, 39), (1, 41))]
    sweep = replace(row("alpha", axis="alpha"), figures=tuple(curve))
    assert judged("alpha 1", one("figure3", sweep)).verdict == "undecided for 1 of 1 row"
    assert "not decided at alpha 0.9" in judged("alpha 1", one("figure3", sweep)).evidence[0]
    paired = Figure(ARC_ALPHA_ONE, 2, (1.5, 2.5), unit="points")
    assert judged("alpha 1", one("figure3", replace(sweep, figures=(*curve, paired)))).verdict == "confirmed"


def test_fewer_planes_than_there_are_do_not_judge_the_full_search() -> None:
    few = replace(row("linf", axis="G", ARC_4=1.5, ARC_50=1.0), data="imagenet")
    assert judged("planes", one("table5-imagenet-sample", few)).verdict == "undecided for 1 of 1 row"
    both = {**one("table5-imagenet-sample", few), **one("table5-cifar10", row("l2", axis="G", ARC_4=37, ARC_9=37))}
    assert judged("planes", both).verdict == "undecided for 1 of 2 rows, confirmed for the others"
    assert "far from all" in judged("planes", both).evidence[1]


def test_the_floor_is_judged_by_the_usual_effort() -> None:
    quick = replace(row("l2", tight=4, floor=3), attacks={"tight": "Tight(preset='quick')"})
    assert judged("floor", one("imagenet-sample", quick)).verdict == "not measured yet"
    sweep = replace(row("eps", axis="255 eps", tight_2=6, floor_2=4, tight_8=1, floor_8=1), ensemble="adp")
    assert judged("floor", one("figure9", sweep)).verdict == REFUTED
    sweep = replace(sweep, attacks=quick.attacks)
    usual = one("table1", row("a", tight=35.2, floor=35))
    found = judged("floor", {**one("imagenet-sample", quick), **usual, **one("figure9", sweep)})
    assert found.verdict == "confirmed"
    assert found.evidence[1:] == (
        "with the quick preset, cifar10 l2: 4.00, floor 3.00 (n = 100)",
        "with the quick preset, adp at eps 2/255: 6.00, floor 4.00 (n = 100)",
    )


def test_the_floor_is_asked_of_the_head_to_head_and_the_board(tmp_path: Path) -> None:
    raced = replace(
        row("dverge-2", **{"tight quick": 40, "tight standard": 33, "floor": 21}), ensemble="given (dverge)"
    )
    assert judged("floor", one("head-to-head", raced)).verdict == REFUTED
    board = Board.read(ROOT / "paper" / "results" / "board.json")
    shown = judged("floor", {"board": of_board(board)})
    drawn = [entry for entry in board.rows if entry.drawn > 1]
    assert len(shown.evidence) == len(drawn) < len(board.rows), "single networks have no floor of their own"
    wide = [entry for entry in drawn if entry.tight["value"] - entry.floor > 0.005]
    assert wide and shown.verdict == f"refuted for {len(wide)} of {len(drawn)} rows"
    most = max(drawn, key=lambda entry: entry.tight["value"] - entry.floor)
    assert (
        f"{100 * (most.tight['value'] - most.floor):.2f} points above the floor on board: {most.name}" in shown.summary
    )
    claim = next(
        c for c in claims_of(gathered(ROOT / "paper" / "results"), ROOT / "paper" / "results") if "floor" in c.claim
    )
    assert "refuted" in claim.verdict and any("board: DVERGE, l2" in line for line in claim.evidence)
    assert len(claim.evidence) == len(set(claim.evidence))


def test_an_ensemble_is_asked_once_whether_it_meets_its_floor() -> None:
    def measured(name: str, images: int, date: str, tight: float, **changes: Any) -> RowResult:
        found = replace(
            row(name, images=images, tight=tight, floor=0), ensemble="given (dverge)", norm="linf", date=date
        )
        return replace(found, **{"eps": "8/255", "alpha": (1 / 3, 1 / 3, 1 / 3), **changes})

    old, new = measured("old", 10000, "2026-11-15", 3), measured("new", 10000, "2026-11-18", 0.1)
    few = measured("few", 1000, "2026-11-19", 2)
    assert judged("floor", {**one("figure4", old), **one("tight", new), **one("table1", few)}).verdict == "confirmed"
    other = measured("other", 1000, "2026-11-19", 2, eps="2/255")
    assert judged("floor", {**one("tight", new), **one("table1", other)}).verdict == "refuted for 1 of 2 rows"
    sweep = measured("eps", 1000, "2026-11-19", 0, axis="255 eps")
    sweep = replace(sweep, figures=(Figure("tight", 2, x=8), Figure("floor", 0, x=8)))
    assert judged("floor", {**one("tight", new), **one("figure9", sweep)}).verdict == "confirmed", "the same, on fewer"


def test_columns_out_of_date_do_not_count() -> None:
    place: dict[str, Any] = {"ensemble": "zoo:a", "norm": "linf", "eps": "8/255", "alpha": (0.5, 0.5)}
    stale = replace(row("dverge-linf", ARC=15, tight=37, floor=35), **place, stale={"tight": "older code"})
    assert judged("floor", one("figure4", stale)).verdict == "not measured yet"
    found = judged("diversity", one("figure4", stale), {"figure4": ITEMS["figure4"]})
    assert "figure4 dverge-linf" in found.evidence[-1], "it is to be measured again"
    newer = replace(row("again", tight=35.1, floor=35), **place)
    both = {**one("figure4", stale), **one("tight", newer)}
    found = judged("diversity", both, {"figure4": ITEMS["figure4"]})
    assert "does not hold: zoo:a: 15.00 under ARC, 35.10 under tight" in found.evidence[0]
    assert found.evidence[-1] == "not measured: figure4 eps", "another row has the same column, newer"
    assert judged("floor", both).verdict == "confirmed"


def test_every_radius_and_row_is_asked_whether_arc_wins() -> None:
    def figures(arc: float, half: float) -> RowResult:
        pair = (Figure("ARC", arc, (arc - half, arc + half)), Figure("APGD", 10, (10 - half, 10 + half)))
        return replace(row(f"{arc}"), figures=pair, ensemble=f"{arc}")

    vague, clear, well = figures(12, 2), figures(11.5, 0.1), replace(figures(5, 0.1), ensemble="11.5")
    assert judged("ARC wins", one("figure9", vague)).verdict == "undecided for 1 of 1 row"
    found = judged("ARC wins", one("figure9", vague, clear))
    assert found.verdict == "refuted for 1 of 2 rows, undecided for 1 of 2 rows"
    found = judged("ARC wins", {**one("figure9", well), **one("figure4", clear)})
    assert found.verdict == REFUTED and "ARC 11.50 and APGD 10.00" in found.evidence[0]


def raced(**attacks: list[tuple[float, float, float]]) -> RowResult:
    """A row of head-to-head: for each attack its (K, gradients, accuracy)."""
    figures = []
    for name, points in attacks.items():
        for steps, cost, accuracy in points:
            figures += [Figure(name, accuracy, x=steps), Figure(gradients_of(name), cost, x=steps, unit="gradients")]
    return RowResult("bat-8", tuple(figures), 50, axis="K")


def test_a_rival_is_compared_with_climb_at_no_more_gradients() -> None:
    def gaps(**attacks: list[tuple[float, float, float]]) -> dict[str, float]:
        return {text: own.measured - rival.measured for own, rival, text in ahead_of_climb(raced(**attacks))}

    def verdict(found: RowResult) -> str:
        return judged("Climb", one("head-to-head", found)).verdict

    climb = [(10.0, 40.0, 22.0), (20.0, 90.0, 20.0)]
    behind, ahead = [(10.0, 100.0, 20.5)], [(10.0, 45.0, 21.0), (20.0, 95.0, 19.8)]
    assert gaps(Climb=climb, ARC=[(10.0, 30.0, 23.0)], MORA=behind) == {} == gaps(MORA=ahead)
    assert list(gaps(Climb=climb, ARC=[(10.0, 30.0, 21.5)]).values()) == [0.5]  # lower, and cheaper
    found = gaps(Climb=climb, MORA=ahead)
    assert next(iter(found)) == "bat-8: MORA 21.00 with 45 gradients, Climb 22.00 with 40 (n = 50)"
    assert list(found.values()) == pytest.approx([1.0, 0.2])
    assert verdict(raced(Climb=climb, MORA=ahead)) == REFUTED
    assert verdict(raced(Climb=climb, MORA=ahead[1:])) == "confirmed"
    wide = raced(Climb=climb, MORA=ahead)
    wide = replace(wide, figures=tuple(replace(f, interval=(f.measured - 9, f.measured + 9)) for f in wide.figures))
    assert "undecided" in verdict(wide)


def test_accuracies_stand_beside_their_gradients() -> None:
    raced_row = raced(Climb=[(10, 40, 22.0), (20, 90, 20.0)], MORA=[(10, 9, 30)])
    (grid,) = grids(ItemResult("head-to-head", "t", (raced_row,)))
    assert grid.header == ["attack", "K = 10", "K = 20"]
    assert grid.cells == [["Climb", "22.00 (40)", "20.00 (90)"], ["MORA", "30.00 (9)", ""]]


def test_of_several_rows_on_an_ensemble_the_best_measured_speaks() -> None:
    quick = replace(row("eps", images=100, ARC_8=15, tight_8=1), attacks={"tight": "Tight(preset='quick')"})
    full = row("dverge-linf", images=1000, ARC=14, tight=0)
    assert "n = 1000" in judged("diversity", one("figure4", quick, full)).evidence[0]


def test_a_row_counts_for_every_item_that_asks_the_same(tmp_path: Path) -> None:
    results.write(tmp_path, ItemResult("table1", "t", (row("resnet20-linf", images=50, ARC=40.0),)))
    results.write(tmp_path, ItemResult("figure3", "t", (row("alpha", ARC=30.0), row("K", ARC=31.0))))
    results.write(tmp_path, ItemResult("figure6", "t", (row("cifar10-linf-K", images=7, ARC=1.0),)))
    found = {name: measured[0] for name, measured in gathered(tmp_path).items() if measured}
    assert [(r.row, r.images) for r in found["figure1"].rows] == [("resnet20-linf", 50)]
    assert [r.row for r in found["table2"].rows] == ["cifar10-linf"]
    assert [(r.row, r.figures[0].measured) for r in found["figure6"].rows] == [
        ("cifar10-linf-alpha", 30.0),
        ("cifar10-linf-K", 1.0),  # its own
    ]
    assert "table3" not in found


def test_the_page_holds_tables_pictures_and_what_is_missing(tmp_path: Path) -> None:
    folder, docs = tmp_path / "paper" / "results", tmp_path / "docs"
    results.write(folder, ItemResult("table3", "t", (row("linf", APGD=55.9, ARC=37.1),)))
    results.write(folder, ItemResult("figure3", "t", (row("alpha", axis="alpha", **{"ARC_0.5": 20.0}),)))
    assert render(folder, docs) == [docs / "results.md", docs / "performance.md"]
    text = (docs / "results.md").read_text()
    assert "| linf | 100 | 55.90 | 37.10 |" in text
    assert "![figure3](../paper/results/figure3.png)" in text
    assert "Not measured yet: l2 (1 min).\n" in text and "table1" in text
    with pytest.raises(InputError, match="is not a folder of results"):
        render(tmp_path / "nothing", docs)


def test_what_is_left_is_said_with_its_gpu_minutes() -> None:
    rows = {r.name: r for r in ITEMS["second-member"].rows}
    (line,) = left.absent([rows["step-200"]])
    seconds = training_seconds(rows["step-200"].ensemble, "fast") + attack_seconds(rows["step-200"])
    assert line == f"Not measured yet: step-200 ({round((seconds + 20) / 60)} min).\n" and seconds > 100
    both = [r for r in ITEMS["table4"].rows if r.name.startswith("cifar100-linf")]
    (away,) = left.absent(both)
    each, _, whole = away.partition("; in all ")
    assert away.startswith("Not at hand (cifar100): cifar100-linf-f1 (") and whole.endswith("each training once.\n")
    minutes = [int(found) for found in re.findall(r"(\d+) min", each)]
    assert max(minutes) <= int(whole.split()[0]) < sum(minutes), "two rows, one training"
    assert "GPU" not in left.absent_items([ITEMS["figure2"]]) and "(seconds)" in left.absent_items([ITEMS["figure2"]])
    plan = left.plan({name: [] for name in ITEMS})
    assert "| table3 l2 |" in plan and "minutes of one H200 in" in plan and "svhn" not in plan


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    import matplotlib

    before = matplotlib.rcParams["backend"], dict(matplotlib.rcParams)
    results.write(tmp_path, ItemResult("figure3", "t", (row("alpha", axis="alpha", **{"ARC_0.5": 20.0}),)))
    render(tmp_path, tmp_path / "docs")
    assert (tmp_path / "figure3.png").exists()
    assert (matplotlib.rcParams["backend"], dict(matplotlib.rcParams)) == before


def test_a_paper_number_stands_beside_ours() -> None:
    measured = ItemResult("t", "", (RowResult("a", (Figure("ARC", 37.1, (36.1, 38.1), 40.71),), 10, alpha=(0.9, 0.1)),))
    (grid,) = grids(measured)
    assert grid.header == ["row", "images", "alpha", "ARC", "(paper)"]
    assert grid.cells == [["a", "10", "0.9, 0.1", "37.10 ± 1.00", "40.71"]]
    (grid,) = grids(ItemResult("t", "", (RowResult("a", (Figure("ARC", 1.0, (0.2, 4.2)),), 10),)))
    assert grid.header == ["row", "images", "ARC"] and grid.cells[0][-1] == "1.00 [0.20, 4.20]"


def test_times_have_their_fastest_and_slowest_and_columns_keep_their_order() -> None:
    short = RowResult("a", (Figure("seconds", 2, (1, 3), unit="s"), Figure("GiB", 0.5, unit="GiB")), 10)
    figures = (Figure("seconds", 0.1234, unit="s"), Figure("ratio", 16.21, unit="x"), Figure("GiB", 1, unit="GiB"))
    (grid,) = grids(ItemResult("t", "", (short, RowResult("b", figures, 10))))
    assert grid.header == ["row", "images", "seconds", "ratio", "GiB"]
    assert grid.cells == [["a", "10", "2 (1-3)", "", "0.50"], ["b", "10", "0.123", "16.2", "1.00"]]


def test_the_measured_part_of_a_document_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("a\n<!-- measured: costs -->\nold\n<!-- end -->\nb\n")
    assert fill(path, {"costs": "new", "headline": "other"})
    assert path.read_text() == "a\n<!-- measured: costs -->\nnew\n<!-- end -->\nb\n"
    path.write_text("a\n<!-- measured: costs -->\n")
    with pytest.raises(InputError, match="without <!-- end -->"):
        fill(path, {"costs": "new"})
    path.write_text("a")
    assert not fill(path, {"costs": "new"}) and path.read_text() == "a"


def test_the_readme_quotes_evaluations_and_prefers_the_item_made_for_it() -> None:
    def found(**rows: RowResult) -> dict[str, list[ItemResult]]:
        measured = {name: [ItemResult(name, "", (found,))] for name, found in rows.items()}
        return {name: measured.get(name, []) for name in ITEMS}

    usual = row("resnet20-linf", images=50, APGD=60, ARC=39, tight=37, floor=36)
    usual = replace(usual, attacks={"tight": repr(Tight("standard"))})
    timed_only = row("bat-linf-0.9", **{"ARC seconds": 7.0})
    lines = headline(found(table1=usual, tight=timed_only)).splitlines()
    assert lines[2:] == [
        "| BAT pair, Linf 8/255, alpha (0.9, 0.1) | 50 | standard | 60.00 | 39.00 | **37.00** | 36.00 |"
    ]
    better = row("bat-linf-0.9", images=90, APGD=61, ARC=38, tight=36, floor=35)
    assert "| 90 | not recorded | 61.00 |" in headline(found(table1=usual, tight=better))
    swept = row("linf", axis="alpha", **{"APGD_0.5": 36, "ARC_0.5": 22, "tight_0.5": 21, "floor_0.5": 20})
    swept = replace(swept, attacks={"tight": repr(Tight("quick"))})
    assert "alpha (0.5, 0.5) | 100 | quick | 36.00 | 22.00 | **21.00** | 20.00 |" in headline(found(figure7=swept))


def test_the_documents_agree_with_the_results(tmp_path: Path) -> None:
    folder, docs = ROOT / "paper" / "results", ROOT / "docs"
    measured = gathered(folder)
    for name in ("results", "performance"):
        assert (docs / f"{name}.md").read_text() == page(name, measured, folder, docs), "run python -m paper --render"
    for path in (ROOT / "README.md", *docs.glob("*.md")):
        copy = tmp_path / path.name
        copy.write_text(path.read_text())
        fill(copy, marked_parts(measured, folder))
        assert copy.read_text() == path.read_text(), "run python -m paper --render"
    for path in set(folder.glob("*.json")) - {folder / "board.json"}:
        for entry in json.loads(path.read_text())["rows"]:
            assert entry["command"].startswith(("recarc ", "python ")) and entry["hardware"] and entry["date"]
            assert entry["commit"] and entry["images"] >= 1 and "toy" not in entry["recipe"]
            assert "/home" not in entry["command"] and "/root" not in entry["command"]
    for row in Board.read(folder / "board.json").rows:
        assert row.provenance["command"].startswith(("recarc ", "python ")) and "/root" not in row.provenance["command"]
        assert row.provenance["commit"] and row.provenance["hardware"] and row.samples >= 200
