"""`recarc alpha` from the command line: three choices, what each is worth, and the two-member analysis in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recarc import Ball, RandomizedEnsemble, save_ensemble
from recarc.cli import app as program
from recarc.cli.alpha import best_choice
from recarc.models import build
from recarc.sampling import AttackedSamples, Choice, TwoMembers

QUICK = ["--data", "digits", "--limit", "12", "--eps", "0.02", "--points", "3", "--rounds", "1", "--quiet"]


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    members = [build("cnn", 10, 1, 8, width=4) for _ in range(2)]
    return save_ensemble(RandomizedEnsemble(members), tmp_path_factory.mktemp("alpha") / "rec")


def run(*arguments: object) -> int:
    return program.run(["alpha", *map(str, arguments)])


def test_three_choices_and_the_analysis_as_json(ensemble: Path, capsys: Any) -> None:
    assert run(ensemble, *QUICK, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["choices"]) == ["grid", "osp", "lp"]
    for choice in told["choices"].values():
        assert sum(choice["alpha"]) == pytest.approx(1) and 0 <= choice["robust_accuracy"] <= 1
    assert told["robust_accuracy"] == max(choice["robust_accuracy"] for choice in told["choices"].values())
    two = told["two_members"]
    for choice in told["choices"].values():
        assert choice["robust_accuracy"] <= choice["believed"] + 1e-9
        if max(choice["alpha"]) == 1:
            assert choice["robust_accuracy"] == pytest.approx(1 - two[f"e_{choice['alpha'].index(1) + 1}"])
    assert two["helps"] == (two["p_r"] > abs(two["e_1"] - two["e_2"]))
    assert two["says"].startswith("Randomizing helps" if two["helps"] else "Randomizing does not help")


def test_table_and_words(ensemble: Path, capsys: Any) -> None:
    assert run(ensemble, *QUICK, "--methods", "grid") == 0
    printed = capsys.readouterr().out
    assert "worst of all" in printed and "Best: alpha = (" in printed and "Randomizing" in printed
    assert "under tight" not in printed, "the accuracy is that under the worst pattern found by any of the attacks"


def test_on_a_tie_the_best_choice_is_what_the_analysis_recommends() -> None:
    """e_1 = 1/4, e_2 = 1/2, P(R) = 1/4: (1/2, 1/2) is as good as the first member alone, and no better."""
    first, second = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], bool), np.array([[0, 0, 0, 0], [1, 1, 0, 0]], bool)
    samples = AttackedSamples(torch.zeros(4, 1), torch.zeros(4), Ball("linf", 0.1), seen=[first, second])
    even = Choice("grid", [0.5, 0.5], 0.75, [])
    two = TwoMembers(0.25, 0.5, 0.25)
    assert not two.helps and samples.accuracy([0.5, 0.5]) == samples.accuracy([1.0, 0.0]) == 0.75
    best, accuracy = best_choice([even], samples, two)
    assert best.alpha == [1.0, 0.0] and accuracy == 0.75
    assert best_choice([even], samples, TwoMembers(0.25, 0.5, 0.3))[0] is even
    assert best_choice([even], samples, None)[0] is even


@pytest.mark.parametrize(
    "words,message",
    [
        (["--methods", "grid,newton"], "unknown method 'newton'"),
        (["--eps", "-1"], "eps is -1.0"),
        (["--points", "1"], "at least 2 points"),
    ],
)
def test_bad_input_is_one_line(ensemble: Path, words: list[str], message: str, capsys: Any) -> None:
    assert run(ensemble, *QUICK, *words) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said
