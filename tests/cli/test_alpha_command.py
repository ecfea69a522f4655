"""`recarc alpha` from the command line: three choices, what each is worth, and the two-member analysis in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recarc import Ball, InputError, RandomizedEnsemble, sampling, save_ensemble
from recarc.cli import app as program
from recarc.cli.alpha import best_choice
from recarc.data import load
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
        low, high = choice["robust_interval"]
        assert low <= choice["robust_accuracy"] <= high
    two, gain = told["two_members"], told["gain"]
    assert gain["at_most"] >= max(0.0, gain["gain"]) - 1e-9 and gain["at_most_interval"][1] >= gain["at_most"] - 1e-9
    assert gain["gain"] == pytest.approx(told["robust_accuracy"] - gain["member_accuracy"])
    assert two["p_r_ends"] == [0.0, two["p_r"]] and two["p_r_interval"][0] <= two["p_r"] <= two["p_r_interval"][1]
    for choice in told["choices"].values():
        error = choice["alpha"][0] * two["e_1"] + choice["alpha"][1] * two["e_2"] - min(choice["alpha"]) * two["p_r"]
        assert choice["robust_accuracy"] == pytest.approx(1 - error), "the identity is exact for the patterns found"
        if max(choice["alpha"]) == 1:
            assert choice["robust_accuracy"] == pytest.approx(1 - two[f"e_{choice['alpha'].index(1) + 1}"])
    assert two["helps"] == (two["p_r"] > abs(two["e_1"] - two["e_2"]))
    assert two["says"].startswith("These 9 samples are too few to tell whether randomizing helps: on ")


def test_table_and_words(ensemble: Path, capsys: Any) -> None:
    assert run(ensemble, *QUICK, "--methods", "grid") == 0
    printed = capsys.readouterr().out
    assert (
        "worst of all" in printed
        and "Best: alpha = (" in printed
        and "whether randomizing helps" in " ".join(printed.split())
    )
    assert "no alpha can gain more than" in printed.replace("\n", " ") and "P(R) between 0 (the floor)" in printed
    assert "under tight" not in printed, "the accuracy is that under the worst pattern found by any of the attacks"


def test_on_a_tie_the_best_choice_is_what_the_analysis_recommends() -> None:
    """e_1 = 1/4, e_2 = 1/2, P(R) = 1/4: (1/2, 1/2) is as good as the first member alone, and no better."""
    first, second = np.array([[1, 0, 0, 0], [0, 0, 0, 0]], bool), np.array([[0, 0, 0, 0], [1, 1, 0, 0]], bool)
    samples = AttackedSamples(torch.zeros(4, 1), torch.zeros(4), Ball("linf", 0.1), seen=[first, second])
    even = Choice("grid", [0.5, 0.5], 0.75, [])
    two = TwoMembers(0.25, 0.5, 0.25)
    assert not two.helps and samples.accuracy([0.5, 0.5]) == samples.accuracy([1.0, 0.0]) == 0.75
    best = best_choice([even], samples, two)
    assert best.alpha == [1.0, 0.0] and best.believed == 0.75
    assert best_choice([even], samples, TwoMembers(0.25, 0.5, 0.3)) is even
    assert best_choice([even], samples, None) is even


def test_no_sample_is_both_chosen_on_and_scored_on(ensemble: Path, monkeypatch: Any, capsys: Any) -> None:
    """With halves and with `--choose-on train`; on one side are training images, on the other test images."""
    used: dict[str, list[torch.Tensor]] = {"grid": [], "lp": []}

    def grid(rec: Any, samples: AttackedSamples, **_: Any) -> Choice:
        used["grid"].append(samples.x)
        return Choice("grid", [0.5, 0.5], 0.5, [])

    def bound(rec: Any, samples: AttackedSamples, **_: Any) -> None:
        used["lp"].append(samples.x)

    monkeypatch.setattr(sampling, "grid_search", grid)
    monkeypatch.setattr(sampling, "cutting_planes", bound)
    sets = {split: load("digits", split).limit(12).tensors()[0] for split in ("train", "test")}
    assert run(ensemble, *QUICK, "--methods", "grid") == 0
    assert run(ensemble, *QUICK, "--methods", "grid", "--choose-on", "train") == 0
    (half, train), (other, test) = used["grid"], used["lp"]
    assert len(half) and len(other) and len(half) + len(other) == 12
    assert not (half[:, None] == other[None]).flatten(2).all(2).any()
    assert torch.equal(train, sets["train"]) and torch.equal(test, sets["test"])
    assert "Chosen on 12 training images, which the members may have been trained on; scored on 12 test images." in (
        " ".join(capsys.readouterr().out.split())
    )


def test_a_half_does_not_depend_on_the_other_samples() -> None:
    x, y = load("digits", "train").limit(40).tensors()
    some, all_ = (AttackedSamples(x[:n], y[:n], Ball("linf", 0.1)).halves()[0].x for n in (20, 40))
    assert torch.equal(all_[: len(some)], some) and 10 < len(all_) < 30
    with pytest.raises(InputError, match="1 samples cannot be cut into two halves"):
        AttackedSamples(x[:1], y[:1], Ball("linf", 0.1)).halves()


@pytest.mark.parametrize(
    "words,message",
    [
        (["--methods", "grid,newton"], "unknown method 'newton'"),
        (["--eps", "-1"], "eps is -1.0"),
        (["--points", "1"], "at least 2 points"),
        (["--choose-on", "halves"], "unknown --choose-on 'halves' (did you mean 'half'?)"),
        (["--choose-on", "train", "--split", "train"], "--choose-on train scores on another split"),
    ],
)
def test_bad_input_is_one_line(ensemble: Path, words: list[str], message: str, capsys: Any) -> None:
    assert run(ensemble, *QUICK, *words) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said
