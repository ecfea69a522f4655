"""`python -m paper`: resuming after a kill, sharing runs, given ensembles, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paper import measure
from paper.__main__ import main
from paper.items import ITEMS, ensembles
from paper.measure import ItemRun
from paper.results import Figure, RowResult, add_row
from paper.setup import HERE, Setup
from recarc import PGD, CarliniWagner, RandomizedEnsemble, evaluate, load_ensemble, save_ensemble
from recarc.attacks import RandomAttacker
from recarc.models import build

ITEM = ITEMS["table3"]


def call(data_dir: Path, out: Path, *words: str) -> int:
    common = ["--data-dir", str(data_dir), "--out", str(out), "--device", "cpu", "--quiet", "--limit", "4"]
    return main([*words, *common])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    members = [build("cnn", 10, 3, 16, width=2) for _ in range(2)]
    return save_ensemble(RandomizedEnsemble(members, [0.9, 0.1]), tmp_path_factory.mktemp("given") / "pair")


def test_a_killed_item_is_resumed(toy_setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []
    real = measure.evaluate

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["out"])
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(measure, "evaluate", counted)
    monkeypatch.setattr(toy_setup, "out", tmp_path / "out")
    monkeypatch.setattr(toy_setup, "_ensembles", dict(toy_setup._ensembles))
    work = ItemRun(ITEM, list(ITEM.rows[:1]), toy_setup, tmp_path, progress=False)
    with pytest.raises(KeyboardInterrupt):
        work.run()
    assert not (tmp_path / "table3.json").exists()
    shards = {path: [f.stat().st_mtime_ns for f in path.glob("*.parquet")] for path in calls[:3]}
    found = work.run()
    assert len(found.rows) == 1 and len(shards) == 3
    assert all([f.stat().st_mtime_ns for f in path.glob("*.parquet")] == times for path, times in shards.items())


def test_items_share_their_runs(toy_setup: Setup, tmp_path: Path) -> None:
    def runs(item: str, row: str) -> set[str]:
        chosen = [r for r in ITEMS[item].rows if r.name == row]
        ItemRun(ITEMS[item], chosen, toy_setup, tmp_path, progress=False).run()
        return {path.name for path in (toy_setup.out / "runs").iterdir()}

    once = runs("table1", "resnet20-linf")
    assert runs("figure1", "resnet20-linf") == once
    assert runs("table2", "cifar10-linf") == once


def test_an_ensemble_is_given_and_nothing_is_trained(
    data_dir: Path, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("table3", "--toy", "--only", "linf", "--ensemble", str(pair), "--json")
    assert call(data_dir, tmp_path, *words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["ensemble"] == "given (pair)" and row["images"] == 4 and not (tmp_path / "ensembles").exists()
    assert row["command"].startswith("python -m paper table3 --only linf --recipe fast --limit 4 --device cpu")
    assert str(tmp_path) not in json.dumps(row)
    named = ("table3", "--toy", "--only", "linf", "--ensemble", f"bat-cifar10-resnet20-linf={pair}")
    assert call(data_dir, tmp_path, *named) == 0


def test_training_alone(data_dir: Path, tmp_path: Path) -> None:
    words = ("table2", "--toy", "--only", "imagenet-linf", "--train-only")
    assert call(data_dir, tmp_path, *words) == 0
    assert {path.name for path in (tmp_path / "ensembles").iterdir() if not path.name.startswith(".")} == {
        "bat-imagenet-cnn-linf-fast",
        "free-imagenet-cnn-linf-fast",
    }
    assert not (tmp_path / "results").exists()


def test_shortened_training_is_recorded(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("figure8", "--toy", "--only", "adp", "--epochs", "2", "--precision", "tf32", "--json")
    assert call(data_dir, tmp_path, *words) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["recipe"] == "fast, 2 epochs, toy" and row["precision"] == "tf32"
    assert "--limit 4 --epochs 2 --device cpu --precision tf32" in row["command"]
    assert (tmp_path / "ensembles" / "adp-cifar10-cnn-linf-fast-2-epochs" / "ensemble.json").exists()


def test_an_attack_that_ignores_alpha_runs_once(toy_setup: Setup, tmp_path: Path) -> None:
    row = toy_setup.scale.row(ITEMS["figure7"].rows[1])
    attacks = CarliniWagner(member=0, steps=2, search_steps=2), RandomAttacker(PGD(steps=2))
    found, images = toy_setup.ensemble(row.ensemble).ensemble, toy_setup.images("cifar10")
    (toy_setup.out / "runs").mkdir(exist_ok=True)
    for attack in attacks:
        work = ItemRun(ITEMS["figure7"], [row], toy_setup, tmp_path, progress=False)
        before = {path.name for path in (toy_setup.out / "runs").iterdir()}
        for alpha in ((0.9, 0.1), (0.0, 1.0), (0.3, 0.7)):
            measurement = measure.Measurement(attack, (), alpha=alpha)
            scores = work.evaluated(row, measurement, found, alpha, images).robust_scores
            direct = evaluate(found.with_alpha(alpha), attack, images, row.ball(), progress=False, tile=8)
            assert scores == pytest.approx(direct.robust_scores)
        assert len({path.name for path in (toy_setup.out / "runs").iterdir()} - before) <= 1


REFUSED = [
    (("table3", "--epochs", "3"), "these rows of table3 train nothing"),
    (("figure2", "--epochs", "3"), "these rows of figure2 train nothing"),
    (("figure10", "--epochs", "0"), "expected a number > 0"),
    (("table3", "--precision", "float8"), "unknown precision 'float8'"),
    (("table3", "--precision", "float16", "--device", "cpu"), "precision float16 needs a CUDA GPU"),
    (("tabel3",), "did you mean 'table3'"),
    (("table3", "--only", "l3"), "unknown row of table3"),
    (("throughput", "--only", "l3"), "throughput has no rows to choose from: leave out --only"),
    (("table3", "--recipe", "slow"), "unknown recipe 'slow'"),
    (("--list", "--recipe", "slow"), "unknown recipe 'slow'"),
    (("table3", "--tight", "very"), "unknown --tight 'very'"),
    (("figure3", "--points", "0"), "--points is 0; expected a number of points >= 1"),
    (("table3", "--ensemble", "nowhere"), "need 2 ensembles"),
    (("table3", "--ensemble", "bat-x=nowhere"), "is not needed by table3"),
    (("table3", "--ensemble", "bat-x=nowhere", "--train-only"), "is not needed by table3"),
    (("table3", "--only", "l2", "--ensemble", "nowhere"), "nowhere is not an ensemble folder"),
    (("figure7", "--only", "l2", "--column", "AC&V"), "unknown column of l2 'AC&V' (did you mean 'AC&W'?)"),
    (("figure7", "--only", "l2", "--column", "AC&W"), "holds no row l2 to put columns into"),
    (("figure2", "--column", "AC&W"), "figure2 has no columns to choose from"),
    ((), "which item?"),
]


@pytest.mark.parametrize(("words", "line"), REFUSED)
def test_bad_input_gets_one_line(
    words: tuple[str, ...], line: str, data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(data_dir, tmp_path, *words) == 2
    told = capsys.readouterr().err
    assert line in told and told.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_no_images_at_all_are_refused_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table3", "--limit", "0", "--data-dir", "nowhere"]) == 2
    assert capsys.readouterr().err == "error: --limit is 0; expected a number of images >= 1\n"


def test_rows_without_data_are_left_out(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = tmp_path / "some"
    some.mkdir()
    (some / "cifar10").symlink_to(data_dir / "cifar10")
    words = ["figure5", "--toy", "--data-dir", str(some), "--out", str(tmp_path), "--device", "cpu", "--json"]
    assert main([*words]) == 0
    printed = capsys.readouterr()
    assert [row["row"] for row in json.loads(printed.out)["rows"]] == ["cifar10-l2", "cifar10-linf"]
    assert "left out, without its data: svhn-l2, svhn-linf" in printed.err


def test_missing_data_is_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["table5", "--data-dir", str(tmp_path / "empty"), "--out", str(tmp_path)]) == 2
    assert "cifar100 test is not in" in capsys.readouterr().err


def test_several_processes_only_train(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert call(data_dir, tmp_path, "table3") == 2
    assert "several processes can only train" in capsys.readouterr().err


def test_the_list_shows_data_cost_and_state(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--list", "--json", "--data-dir", str(data_dir), "--out", str(tmp_path)]
    assert main(["figure2", "--out", str(tmp_path), "--quiet", "--device", "cpu"]) == 0
    assert main(words) == 0
    items = {entry["item"]: entry for entry in json.loads(capsys.readouterr().out)["items"]}
    assert set(items) == set(ITEMS)
    assert items["figure2"]["measured"] == ["two members", "three members"] and items["table3"]["measured"] == []
    assert set(items["table2"]["data"]) == {"svhn", "cifar10", "cifar100", "imagenet"}
    assert items["table1"]["cost"].startswith("train ")
    (tmp_path / "results" / "paper").mkdir(parents=True)  # of a checkout; --out was given, so it does not count
    assert main(words) == 0
    items = {entry["item"]: entry for entry in json.loads(capsys.readouterr().out)["items"]}
    assert items["figure2"]["measured"] == ["two members", "three members"]
    assert main([word for word in words if word != "--json"]) == 0
    assert "2 of 2 rows measured" in capsys.readouterr().out
    assert main(["--render", "--results", str(tmp_path / "results"), "--docs", str(tmp_path / "docs")]) == 0
    assert "## figure2" in (tmp_path / "docs" / "results.md").read_text()


def test_a_row_that_lacks_columns_does_not_count_as_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (row, *_), seconds = ITEMS["tight"].rows, (Figure("ARC seconds", 1.0), Figure("tight seconds", 9.0))
    order = [row.name]
    add_row(tmp_path, "tight", "", RowResult(row.name, seconds, images=10000), order)
    words = ["--list", "--results", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    entry = next(e for e in json.loads(capsys.readouterr().out)["items"] if e["item"] == "tight")
    assert entry["measured"] == [] and entry["measured_in_part"] == [row.name]
    assert main(words) == 0
    assert "0 of 5 rows measured (1 lacks some columns)" in " ".join(capsys.readouterr().out.split())
    rest = tuple(Figure(r.column, 50.0) for m in row.measurements for r in m.readings)
    add_row(tmp_path, "tight", "", RowResult(row.name, rest, images=10000), order)
    assert main([*words, "--json"]) == 0
    entry = next(e for e in json.loads(capsys.readouterr().out)["items"] if e["item"] == "tight")
    assert entry["measured"] == [row.name] and entry["measured_in_part"] == []


def test_seeds_of_one_part_are_listed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, *_ = parts = ITEMS["gallery"].parts
    for name in (f"{first}, seed 0", f"{first}, seed 1", f"{second}, seed 0", f"{second} and more"):
        add_row(tmp_path, "gallery", "", RowResult(name, (Figure("tight", 1.0),), images=300), [])
    assert main(["--list", "--results", str(tmp_path)]) == 0
    assert f"2 of {len(parts)} rows measured" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("folder", sorted((HERE / "ensembles").iterdir()), ids=lambda path: path.name)
def test_shipped_ensembles_load_and_are_found(folder: Path, tmp_path: Path) -> None:
    ensemble = load_ensemble(folder)
    assert {p.dtype for p in ensemble.parameters()} == {torch.float32}
    assert ensemble.logits(torch.rand(2, 3, 32, 32)).shape == (len(ensemble), 2, 10)
    recipes = {f"{made.name}-fast": made for made in ensembles()}
    if folder.name in recipes:
        loaded = Setup(tmp_path, torch.device("cpu")).ensemble(recipes[folder.name])
        assert len(loaded.ensemble) == len(ensemble) and loaded.recipe.startswith("fast, ")
