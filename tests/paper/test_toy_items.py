"""Every item of the paper runs from data files to figure, at toy size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paper import measure, results
from paper.bench.common import Replay, robust_accuracy
from paper.items import ITEMS, quoted, thorough
from paper.items.alphas import BEST, GAIN, KEPT, MOST, Case, alphas_of, alphas_table
from paper.items.certificates import certificates_table
from paper.items.thorough import attacked_again
from paper.measure import ItemRun
from paper.pages import costs_table, gathered, page
from paper.plots import draw
from paper.recipe import Difference, Item, Row
from paper.results import ItemResult, RowResult
from paper.scale import TOY
from paper.settings import bat
from paper.setup import Setup
from paper.tables import grids, is_matrix, matrix_of
from recarc import ARC, Ball, RandomizedEnsemble, Tight, evaluate, save_ensemble
from recarc.board import Board
from recarc.board.entry import one_run
from recarc.board.rows import packed
from recarc.board.scoring import row_of
from recarc.data import load
from recarc.errors import AttackViolation, InputError
from recarc.evaluation import Evaluation
from recarc.evaluation.intervals import paired_interval, wilson
from recarc.models import build
from recarc.sampling import Choice
from recarc.training.batches import split


def check_row(row: Row, found: RowResult) -> None:
    wanted = {reading.column for m in row.measurements for reading in m.readings if reading.what != "cross"}
    columns = {figure.column for figure in found.figures}
    places = {d.column: ((d.plus, d.plus_x), (d.minus, d.minus_x)) for d in row.differences}
    assert wanted | {c for c, both in places.items() if all(found.figure(*place) for place in both)} <= columns
    assert found.images == 8 and found.command and found.date and found.hardware and found.ensemble
    assert found.data == row.data
    if all(m.alpha is not None for m in row.measurements):
        assert found.alpha is None
    else:
        assert found.alpha is not None and sum(found.alpha) == pytest.approx(1)
    for figure in found.figures:
        if figure.unit == "%":
            assert 0 <= figure.measured <= 100 and figure.interval is not None
            assert figure.interval[0] <= figure.measured + 1e-9 and figure.measured <= figure.interval[1] + 1e-9
    for x in {figure.x for figure in found.figures}:
        tight, floor, arc = (found.figure(name, x) for name in ("tight", "floor", "ARC"))
        if tight and floor:
            assert floor.measured <= tight.measured + 1e-6
        if tight and arc and found.row != "M":  # the toy ARC has 2 steps, the one inside tight too
            assert tight.measured <= arc.measured + 1e-6


def representative(item: Item) -> list[Row]:
    """A row of every data set, axis, norm and kind of figure; at toy size the others would compute the same again."""
    chosen: dict[str, list[tuple[object, ...]]] = {}
    for row in item.rows:
        kinds = tuple(reading.what for m in row.measurements for reading in m.readings)
        chosen[row.name] = [(row.data, row.axis, kinds), (row.norm,)]
    seen: set[tuple[object, ...]] = set()
    rows = []
    for row in item.rows:
        if not seen.issuperset(chosen[row.name]):
            seen.update(chosen[row.name])
            rows.append(row)
    return rows


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.rows])
def test_an_item_runs_and_is_kept(name: str, toy_setup: Setup, tmp_path: Path) -> None:
    if name == "autoattack":
        pytest.importorskip("pyautoattack", reason="pyautoattack is not installed: `make peers`")
    item, rows = ITEMS[name], representative(ITEMS[name])
    found = ItemRun(item, rows, toy_setup, tmp_path, progress=False).run()
    assert [row.row for row in found.rows] == [row.name for row in rows]
    assert results.read(tmp_path, name) == found
    for row, result in zip(rows, found.rows):
        check_row(row, result)
        if is_matrix(result):
            size = min(row.ensemble.members, 3)
            assert [len(line) for line in matrix_of(result)] == [size] * size
    assert all(len(line) == len(grid.header) for grid in grids(found) for line in grid.cells)
    picture = draw(item, found, tmp_path)
    if item.drawing in ("scatter", "lines", "matrix"):
        assert picture is not None and picture.read_bytes().startswith(b"\x89PNG")


def test_a_difference_between_two_places_of_a_sweep(toy_setup: Setup, tmp_path: Path) -> None:
    sizes = next(row for row in ITEMS["figure10"].rows if row.name == "M")
    row = replace(sizes, differences=(Difference("gain", "ARC", "ARC", plus_x=3, minus_x=1),))
    found = ItemRun(ITEMS["figure10"], [row], toy_setup, tmp_path, progress=False).measured(row)
    one, three, gain = found.figure("ARC", 1), found.figure("ARC", 3), found.figure("gain")
    assert one and three and gain and gain.interval
    assert found.alpha is None  # every size has its own
    assert gain.measured == pytest.approx(three.measured - one.measured, abs=1e-3) and gain.unit == "points"
    assert all("gain" not in grid.header for grid in grids(ItemResult("figure10", "", (found,))))


def test_a_single_column_is_measured_into_its_row(toy_setup: Setup, tmp_path: Path) -> None:
    item, shop = ITEMS["figure7"], replace(toy_setup, report=None)
    whole = measure.measure(item, shop, tmp_path, ["l2"], progress=False).rows[0]
    spoilt = tuple(replace(f, measured=-1.0) if f.column in ("AC&W", "ARC") else f for f in whole.figures)
    results.write(tmp_path, ItemResult("figure7", "t", (replace(whole, figures=spoilt, stale={"AC&W": "why"}),)))
    (found,) = measure.measure(item, shop, tmp_path, ["l2"], progress=False, columns=["AC&W"]).rows
    assert found.curve("AC&W") == whole.curve("AC&W") and not found.stale
    assert all(value == -1 for _, value in found.curve("ARC")), "nothing else is touched"
    assert "--only l2 --column 'AC&W' --recipe fast" in found.note and found.command == whole.command


def test_a_difference_that_never_varied_has_an_interval_all_the_same() -> None:
    low, high = paired_interval(np.zeros(100))
    assert (low, high) == pytest.approx((-wilson(0, 100)[1], wilson(0, 100)[1])) and 0.03 < high < 0.04
    assert (
        paired_interval(np.full(100, 1.0)) == pytest.approx((1 - 2 * high, 1)) and paired_interval(np.zeros(1))[1] > 0.5
    )
    varied = np.array([0.0, 0.5, 0.5, 1.0])
    half = 1.96 * varied.std(ddof=1) / 2
    assert paired_interval(varied) == pytest.approx((0.5 - half, 0.5 + half))


def test_a_search_for_alpha_is_kept_for_its_own_grid(toy_setup: Setup, tmp_path: Path, monkeypatch: Any) -> None:
    item = ITEMS["table1"]
    searched: list[int] = []
    row, search = TOY.row(next(row for row in item.rows if row.alpha == "grid")), measure.sampling.grid_search

    def counted(ensemble: Any, samples: Any, attack: Any, grid: int, **more: Any) -> Any:
        searched.append(grid)
        return search(ensemble, samples, attack, grid, **more)

    monkeypatch.setattr(measure.sampling, "grid_search", counted)
    for grid in (4, 4, 5):
        shop = replace(toy_setup, out=tmp_path, scale=replace(TOY, grid=grid))
        ItemRun(item, [row], shop, tmp_path, progress=False).alpha_of(row, toy_setup.ensemble(row.ensemble))
    assert searched == [4, 5]


def test_alpha_is_never_chosen_on_the_images_that_are_scored(
    toy_setup: Setup, tmp_path: Path, monkeypatch: Any
) -> None:
    """On what its own training held out; without a record, on training images, and it says so."""
    searched: list[torch.Tensor] = []

    def search(ensemble: Any, samples: Any, *_: Any, **__: Any) -> Choice:
        searched.append(samples.x)
        return Choice("grid", [0.9, 0.1], 0.5, [])

    monkeypatch.setattr(measure.sampling, "grid_search", search)
    shop, row = replace(toy_setup, out=tmp_path), TOY.row(ITEMS["table1"].rows[0])
    work, loaded = ItemRun(ITEMS["table1"], [row], shop, tmp_path, progress=False), toy_setup.ensemble(row.ensemble)
    train, (test, _) = shop.images("cifar10", "train"), shop.images("cifar10").tensors()
    _, chosen_by = work.alpha_of(row, loaded)
    assert chosen_by == "grid of 3 points with AdaptivePGD on 4 training images that training held out"
    seen, held = split(train, 4, loaded.made_by["seed"], torch.device("cpu"))
    assert held is not None and torch.equal(searched[0], held.images(torch.arange(4))[0])
    assert not (searched[0][:, None] == seen.images(torch.arange(len(seen)))[0][None]).flatten(2).all(2).any()
    _, chosen_by = work.alpha_of(row, replace(loaded, made_by={}))
    assert "8 training images, which the members may have been trained on" in chosen_by
    for x in searched:
        assert not (x[:, None] == test[None]).flatten(2).all(2).any()


def test_the_picture_of_figure_2_shows_what_the_paper_says(toy_setup: Setup, tmp_path: Path) -> None:
    found = measure.measure(ITEMS["figure2"], toy_setup, tmp_path, [])
    two, three = ({f.column: f.measured for f in row.figures} for row in found.rows)
    assert two == {"APGD": 100.0, "ARC": 50.0, "optimum": 50.0}
    assert three["optimum"] < three["ARC"]
    assert (tmp_path / "figure2.png").stat().st_size > 10_000


def test_throughput_is_measured_and_becomes_costs(toy_setup: Setup, tmp_path: Path) -> None:
    assert "Not measured yet" in costs_table({"throughput": []})
    found = measure.measure(ITEMS["throughput"], toy_setup, tmp_path, [])
    assert all(f.measured > 0 for row in found.rows for f in row.figures)
    table = costs_table({"throughput": [found]})
    assert all(f"| {row} |" in table for row in ("svhn-l2", "cifar100-linf", "imagenet-linf"))
    assert "cifar10-" not in table


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.page == "performance"])
def test_a_benchmark_runs_and_is_shown(name: str, toy_setup: Setup, tmp_path: Path) -> None:
    parts = list(ITEMS[name].parts)
    found = measure.measure(ITEMS[name], toy_setup, tmp_path, parts)
    assert found.item == f"{name}-cpu" and results.read(tmp_path, found.item) == found
    assert all(f.measured > 0 for row in found.rows for f in row.figures if f.unit in ("s", "ms", "x"))
    assert all(row.command.startswith(f"python -m paper {name}") and row.hardware for row in found.rows)
    text = page("performance", gathered(tmp_path), tmp_path, tmp_path)
    assert f"## {name}" in text and all(row.row in text for row in found.rows)


def test_a_benchmark_reports_what_evaluate_reports(toy_setup: Setup, tmp_path: Path) -> None:
    found = measure.measure(ITEMS["bench-attacks"], toy_setup, tmp_path, ["arc"])
    ensemble, images = toy_setup.ensemble(bat("cifar10", "linf")).ensemble, toy_setup.images("cifar10")
    direct = evaluate(ensemble, ARC(steps=2), images, Ball("linf", 8 / 255), progress=False)
    ours, given = (found.row(f"arc: {name}") for name in ("ARC float32", "ARC, members as given"))
    for row in (ours, given):
        figure = row and row.figure("robust")
        assert figure and figure.measured == pytest.approx(100 * direct.robust_accuracy, abs=1e-3)


def test_evaluate_judges_points_that_were_found_elsewhere(toy_setup: Setup) -> None:
    ensemble, images = toy_setup.ensemble(bat("cifar10", "linf")).ensemble, toy_setup.images("cifar10")
    x, y = images.tensors()
    ball = Ball("linf", 8 / 255)
    points = ARC(steps=2)(ensemble, x, y, ball)
    figure = robust_accuracy(ensemble, Replay(x, points), x, y, ball, None)
    assert figure.measured == pytest.approx(100 * float(ensemble.expected_accuracy(points, y).mean()), abs=1e-3)
    with pytest.raises(AttackViolation):
        robust_accuracy(ensemble, Replay(x, (x + 0.5).clamp(0, 1)), x, y, ball, None)


def test_certificates_are_below_the_truth_and_tight_above(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = save_ensemble(RandomizedEnsemble([build("mlp", 10, 1, 8, width=4) for _ in range(3)]), tmp_path / "rec")
    setup = Setup(tmp_path, torch.device("cpu"), scale=TOY, report=None, given={"": str(given)})
    for _ in range(2):  # the second time everything is read again
        (row,) = measure.measure(ITEMS["certificates"], setup, tmp_path, ["digits-at-2"]).rows
    left = {figure.column: figure.measured for figure in row.figures}
    order = ["certified, members alone", "certified, jointly", "exact, from", "exact, to", "tight", "clean"]
    values = [left[column] for column in order]
    assert values == sorted(values) and row.images == 2
    assert "optimum known on" in row.note
    assert "| digits-at-2 | 2 |" in certificates_table(gathered(tmp_path)["certificates"])


def test_alphas_are_chosen_on_one_half_and_scored_on_the_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = save_ensemble(RandomizedEnsemble([build("mlp", 10, 1, 8, width=4) for _ in range(3)]), tmp_path / "rec")
    setup = Setup(tmp_path, torch.device("cpu"), scale=TOY, report=None, limit=40)
    rows = list(alphas_of("toy", Case(given, members=2, data="digits"), setup))
    assert [row.alpha_chosen_by for row in rows] == ["uniform", "OSP", "program"] and rows[0].alpha == (0.5, 0.5)
    for row in rows:
        assert row.alpha is not None and sum(row.alpha) == pytest.approx(1) and 0 < row.images < 40
        kept, best, gain, most = (row.figure(column) for column in (KEPT, BEST, GAIN, MOST))
        assert kept and best and gain and most and gain.measured <= most.measured + 1e-9
        assert gain.measured == pytest.approx(kept.measured - best.measured, abs=1e-3)
        results.add_row(tmp_path, "alphas", "alphas", row, [])
    table = alphas_table(gathered(tmp_path)["alphas"])
    assert "| toy, OSP |" in table and "which the members may have been trained on, scored on" in table


def test_gains_are_attacked_again_and_paired_with_the_row_of_the_board(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rec = RandomizedEnsemble([build("mlp", 10, 1, 8, width=4).eval() for _ in range(2)])
    case = Case(save_ensemble(rec, tmp_path / "rec"), data="digits")
    images, ball = load("digits", "test", limit=12), Ball("linf", 8 / 255)
    before = evaluate(rec, Tight("quick", steps=2), images, ball, out=tmp_path / "run", progress=False)
    run = one_run(tmp_path / "run")
    weights = {"weights": run.configuration["members"], "run": "as it was"}
    wanted = row_of(run, "toy", provenance=weights)
    in_l2 = replace(
        wanted, norm="l2", tight={"value": 0.0, "low": 0.0, "high": 0.0}, kept=packed(np.zeros((2, 12), bool))
    )
    board = Board("digits", "test", {"linf": 8 / 255}, (in_l2, wanted))  # the same members in two norms
    setup = Setup(tmp_path / "out", torch.device("cpu"), scale=TOY, limit=8, report=None)
    row = attacked_again("toy", case, board, setup)
    left = {figure.column: figure.measured for figure in row.figures}
    found = Evaluation.load(tmp_path / "out" / "rec")
    assert left[thorough.KEPT] == pytest.approx(100 * found.robust_accuracy, abs=1e-3)
    assert found.alone is not None and left[thorough.BEST] == pytest.approx(100 * found.alone[wanted.best].mean())
    assert left[thorough.ROW] == pytest.approx(100 * before.robust_scores[:8].mean(), abs=1e-3), "of the same images"
    assert left[thorough.LOST] == pytest.approx(left[thorough.ROW] - left[thorough.KEPT], abs=1e-3)
    assert left[thorough.GAIN] == pytest.approx(left[thorough.KEPT] - left[thorough.BEST], abs=1e-3)
    assert row.images == 8 and "Tight" in row.attacks[thorough.KEPT] and row.attacks[thorough.ROW] == "as it was"
    assert "| toy |" in thorough.thorough_table([ItemResult("thorough", "", (row,))])
    assert "Not measured yet" in thorough.thorough_table([])
    with pytest.raises(InputError, match="no row of the board has these weights with alpha"):
        attacked_again("toy", case, replace(board, rows=()), setup)


def test_the_demo_becomes_a_row(toy_setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = {"attacks": {"Clean": 0.97, "Tight": 0.24}, "members": [{"alpha": 0.7}, {"alpha": 0.3}], "seconds": 60.0}
    monkeypatch.setattr(quoted, "_summary", lambda seed: summary)
    (row,) = measure.measure(ITEMS["demo"], toy_setup, tmp_path, []).rows
    assert row.row == "shipped" and row.alpha == (0.7, 0.3) and row.images == 355
    assert {f.column: f.measured for f in row.figures} == {"Clean": 97.0, "Tight": 24.0}


def test_a_row_may_be_measured_on_the_last_images(data_dir: Path, tmp_path: Path) -> None:
    setup = Setup(tmp_path, torch.device("cpu"), data_dir=data_dir, limit=3, report=None)
    whole = Setup(tmp_path, torch.device("cpu"), data_dir=data_dir, report=None).images("cifar10").uint8()
    assert torch.equal(setup.images("cifar10").uint8(), whole[:3])
    assert torch.equal(setup.images("cifar10", last=True).uint8(), whole[-3:])
