"""`recarc certify`: floors that no attack passes, kept beside a run, counted by its verdict, shown on its page."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from recarc import Ball, RandomizedEnsemble, Tight, evaluate, load_ensemble, save_ensemble
from recarc.cli import app as program
from recarc.data import load
from recarc.evaluation import Evaluation, RecarcWarning
from recarc.evaluation.run_folder import CERTIFICATE
from recarc.models import build

COMMON = ["--data", "digits", "--limit", "12", "--eps", "0.03"]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small networks, fitted for a moment."""
    x, y = load("digits", "train", limit=300).tensors()
    members = []
    with torch.random.fork_rng(devices=[]):
        for i in range(2):
            torch.manual_seed(i)
            model = build("cnn", 10, 1, 8, width=2)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
            for _ in range(30):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            members.append(model.eval())
    return save_ensemble(RandomizedEnsemble(members, [0.6, 0.4]), tmp_path_factory.mktemp("certify") / "rec")


@pytest.fixture(scope="module")
def run_folder(ensemble: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation with its certificate beside it."""
    out = tmp_path_factory.mktemp("certify") / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        attack = Tight("quick", steps=3)
        evaluate(load_ensemble(ensemble), attack, load("digits", limit=12), Ball("linf", 0.03), out=out, progress=False)
    assert run(ensemble, *COMMON, "--out", out, "--shard-size", 4, "--quiet") == 0
    return out


def run(*arguments: object) -> int:
    return program.run(["certify", *map(str, arguments)])


def told(capsys: Any, *arguments: object, command: str = "certify") -> dict[str, Any]:
    capsys.readouterr()
    assert program.run([command, *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_sandwich_is_counted_by_the_verdict_and_shown_on_the_page(run_folder: Path, capsys: Any) -> None:
    shown = told(capsys, run_folder, command="show")
    verdict = shown["verdict"]
    assert 0.1 < verdict["certified_floor"] <= verdict["robust_accuracy"]
    assert "certified floor" in verdict["sentence"] or "no attack whatever leaves less than" in verdict["sentence"]
    loaded = Evaluation.load(run_folder)
    floor = loaded.certified_floor
    assert floor is not None and bool((floor.per_sample.numpy() <= loaded.robust_scores + 1e-12).all())
    page = run_folder.parent / "page.html"
    assert program.run(["report", str(run_folder.parent), "--out", str(page)]) == 0
    text = page.read_text()
    assert "Certified floor" in text and f"{100 * verdict['certified_floor']:.1f}" in text


def test_it_resumes_and_gives_the_same_records(ensemble: Path, run_folder: Path, capsys: Any) -> None:
    folder = run_folder / CERTIFICATE
    before = {file.name: file.read_bytes() for file in folder.glob("shard-*.parquet")}
    assert len(before) == 3
    (folder / "shard-00001.parquet").unlink()
    assert "is not finished" in Evaluation.load(run_folder).warnings[-1], "an unfinished certificate does not count"
    assert Evaluation.load(run_folder).certified_floor is None
    again = told(capsys, ensemble, *COMMON, "--out", run_folder, "--shard-size", 4, "--quiet")
    assert {file.name: file.read_bytes() for file in folder.glob("shard-*.parquet")} == before
    assert again["certified_member_floor"] <= again["certified_floor"] <= again["clean_accuracy"]
    assert set(again["sets"]) == {"0", "1", "0+1"} and not again["vacuous"]
    assert again["sets"]["0+1"] >= max(m["certified"] for m in again["members"])


def test_the_exact_method_meets_its_own_points(ensemble: Path, run_folder: Path, capsys: Any) -> None:
    exact = told(capsys, ensemble, "--data", "digits", "--limit", 2, "--eps", 0.03, "--method", "exact", "--quiet")
    assert exact["solved"] == 1.0 and exact["certified_floor"] == exact["found_accuracy"]
    assert exact["certified_floor"] >= exact["certified_member_floor"]
    bounds = told(capsys, ensemble, "--data", "digits", "--limit", 2, "--eps", 0.03, "--quiet")
    assert bounds["certified_floor"] <= exact["certified_floor"]


def test_a_vacuous_certificate_says_so(ensemble: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = [ensemble, "--data", "digits", "--limit", 4, "--eps", "0.9", "--steps", 0]
    assert run(*arguments) == 0
    assert "says nothing (not that the floor is 0 %)" in re.sub(r"\s+", " ", capsys.readouterr().out)
    vacuous = told(capsys, *arguments, "--quiet")
    assert vacuous["vacuous"] and vacuous["certified_floor"] is None and vacuous["certified_member_floor"] is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--method", "guess"], "unknown method 'guess'"),
        (["--method", "exact", "--norm", "l2"], "the exact method knows linf and l1, not l2"),
        (["--steps", "-1"], "steps is -1"),
        (["--time-limit", "0"], "the time limit is 0.0"),
    ],
)
def test_bad_input_is_one_line(ensemble: Path, more: list[str], words: str, capsys: Any) -> None:
    assert run(ensemble, *COMMON, *more, "--quiet") == 2
    error = capsys.readouterr().err.strip()
    assert words in error and "\n" not in error


def test_a_certificate_of_something_else_is_refused(ensemble: Path, run_folder: Path, capsys: Any) -> None:
    other = ["--data", "digits", "--limit", "12", "--eps", "0.02", "--out", run_folder, "--quiet"]
    assert run(ensemble, *other) == 2
    assert "the certificate is not of the run in" in capsys.readouterr().err


def test_alpha_can_maximise_the_certified_floor(ensemble: Path, capsys: Any) -> None:
    found = told(
        capsys,
        ensemble,
        *COMMON,
        "--methods",
        "certified",
        "--rounds",
        1,
        "--split",
        "test",
        "--quiet",
        command="alpha",
    )
    choice = found["choices"]["certified"]
    assert sum(choice["alpha"]) == pytest.approx(1) and 0 < choice["believed"] <= 1
