"""`recarc sweep`: every point a run folder, shared work shared, resumable; and what it refuses."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble, evaluate, save_ensemble
from recarc import sweep as module
from recarc.attacks import Tight
from recarc.cli import app as program
from recarc.data import load
from recarc.evaluation import Evaluation
from recarc.models import build
from recarc.sweep import first_with, sweep

QUICK = ["--data", "digits", "--limit", "12", "--preset", "quick", "--steps", "2"]
pytestmark = pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")


def made(members: int = 2) -> RandomizedEnsemble:
    torch.manual_seed(0)
    return RandomizedEnsemble([build("cnn", 10, 1, 8, width=4).eval() for _ in range(members)])


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_ensemble(made(), tmp_path_factory.mktemp("sweep") / "rec"))


def run(*arguments: object) -> int:
    return program.run([str(a) for a in arguments])


def times(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): os.stat(p).st_mtime_ns for p in folder.rglob("*.parquet")}


def test_every_point_is_a_run_and_the_same_command_goes_on(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    command = ["sweep", ensemble, "--over", "eps", "--values", "1/20,1/10", *QUICK, "--out", tmp_path / "s", "--json"]
    assert run(*command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["over"] == "eps" and told["values"] == [0.05, 0.1]
    assert set(told["points"][0]["attacks"]) == {"adaptive_pgd", "arc", "tight", "floor"}
    for value, point in zip((0.05, 0.1), told["points"]):
        tight = Evaluation.load(tmp_path / "s" / f"eps={value:g}" / "tight")
        assert tight.configuration["ball"]["eps"] == value
        assert point["attacks"]["tight"]["robust_accuracy"] == tight.robust_accuracy
        assert point["attacks"]["arc"]["robust_accuracy"] == tight.stage_accuracies["arc"].value
        assert point["attacks"]["floor"]["robust_accuracy"] == tight.floor
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["points"] == told["points"]
    before = times(tmp_path / "s")
    assert len(before) == 2, "AdaptivePGD and ARC were read off the stages of tight"
    command[5] = "1/20,1/10,3/20"
    assert run(*command) == 0
    after = times(tmp_path / "s")
    assert len(after) == 3 and {name: after[name] for name in before} == before


def test_stages_are_what_the_attacks_alone_find() -> None:
    data, ball, rec = load("digits", "test", limit=12), Ball("linf", 0.1), made()
    tight = evaluate(rec, Tight("quick", steps=3), data, ball, progress=False)
    for name, attack in (("adaptive_pgd", AdaptivePGD(steps=3)), ("arc", ARC(steps=3, planes=4))):
        alone = evaluate(rec, attack, data, ball, progress=False)
        assert tight.stage_accuracies[name].value == alone.robust_accuracy


def test_an_attack_without_the_knob_is_run_once(tmp_path: Path) -> None:
    attacks = {"adaptive_pgd": AdaptivePGD(steps=2), "arc": ARC(steps=2), "tight": Tight("quick", steps=2)}
    data, ball = load("digits", "test", limit=8), Ball("linf", 0.1)
    found = sweep(made(), attacks, data, ball, "planes", [1, 4, 9], tmp_path, progress=False)
    folders = sorted(str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("run.json"))
    assert folders == ["planes=1/arc", "planes=4/arc", "planes=9/arc", "shared/tight"]
    tight = {cell.estimate.value for cell in found.cells if cell.attack == "tight"}
    assert len(tight) == 1 and len([c for c in found.cells if c.attack == "arc"]) == 3
    for value in (1, 4, 9):
        cell = found.at(value, "arc")
        assert cell is not None and Evaluation.load(cell.run).configuration["attack"]["planes"] == value


def test_steps_change_every_attack(tmp_path: Path) -> None:
    attacks = {"adaptive_pgd": AdaptivePGD(), "tight": Tight("quick")}
    sweep(
        made(), attacks, load("digits", "test", limit=8), Ball("linf", 0.1), "steps", [1, 3], tmp_path, progress=False
    )
    for steps in (1, 3):
        told = Evaluation.load(tmp_path / f"steps={steps}" / "tight").configuration["attack"]
        assert told["steps"] == steps


def test_size_takes_the_first_members_equiprobable(tmp_path: Path) -> None:
    attacks = {"adaptive_pgd": AdaptivePGD(steps=1)}
    data, ball = load("digits", "test", limit=8), Ball("linf", 0.1)
    sweep(made(3), attacks, data, ball, "size", [1, 2, 3], tmp_path, progress=False)
    for size in (1, 2, 3):
        run = Evaluation.load(tmp_path / f"size={size}" / "adaptive_pgd")
        assert run.alpha.tolist() == pytest.approx([1 / size] * size)


def test_alpha_of_more_than_two_members_keeps_the_proportion() -> None:
    assert first_with(0.5, [0.2, 0.6, 0.2]) == pytest.approx([0.5, 0.375, 0.125])
    assert first_with(0.4, [1.0, 0.0, 0.0]) == pytest.approx([0.4, 0.3, 0.3])
    assert first_with(1.0, [0.5, 0.5]) == [1.0, 0.0]
    assert first_with(0.7, [0.5, 0.5]) == [0.7, 0.3], "the same configuration as that of somebody who types 0.7,0.3"


@pytest.mark.parametrize(
    "change, words",
    [
        (["--over", "epz"], "did you mean 'eps'"),
        (["--over", "size", "--values", "3"], "more than the 2 members"),
        (["--over", "steps", "--values", "1.5"], "whole number"),
        (
            ["--over", "planes", "--values", "2", "--attack", "adaptive_pgd"],
            "none of the attacks adaptive_pgd has",
        ),
        (["--over", "alpha", "--values", "1.5"], "not a probability"),
        (["--over", "alpha", "--values", "half"], "--values"),
        (["--over", "eps", "--values", "0.1,-1"], "eps"),
        (["--over", "eps", "--values", "0.1,8"], "did you mean 8/255?"),
        (["--over", "eps", "--values", "0.1", "--eps", "0.1"], "--eps and --over eps exclude each other"),
        (["--attack", "artc"], "did you mean 'arc'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_attacked(
    ensemble: str, tmp_path: Path, capsys: Any, change: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "evaluate", lambda *a, **k: pytest.fail("an attack was started"))
    radius = [] if "eps" in change else ["--eps", "0.1"]
    common = ["--over", "alpha", "--values", "0.5", *QUICK, *radius, "--out", tmp_path / "s"]
    assert run("sweep", ensemble, *common, *change) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and words in error
    assert not (tmp_path / "s").exists()


def test_a_function_can_be_swept(ensemble: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(still=lambda ensemble, x, y, ball: x))
    command = ["sweep", ensemble, "--over", "eps", "--values", "0.1", *QUICK, "--attack", "mine:still,adaptive_pgd"]
    assert run(*command, "--out", tmp_path / "s", "--trust-code", "--json") == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert list(point["attacks"]) == ["mine:still", "adaptive_pgd"]


def test_eps_is_needed_unless_it_is_swept(ensemble: str, tmp_path: Path, capsys: Any) -> None:
    command = ["sweep", ensemble, "--over", "alpha", "--values", "0.5", *QUICK, "--out", tmp_path / "s"]
    assert run(*command) == 2
    assert "--eps is missing" in capsys.readouterr().err
