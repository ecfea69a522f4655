"""Several ensembles side by side: paired differences, the command, the page, sweeps in one figure."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SAMPLES, STEPS, small_ensemble

from recarc import Ball, InputError, RandomizedEnsemble, evaluate
from recarc.attacks import Tight
from recarc.cli.app import run
from recarc.data import load
from recarc.evaluation import Evaluation, RecarcWarning
from recarc.evaluation.intervals import paired_interval
from recarc.report import build_report, compare, load_runs, render
from recarc.report.svg import nice_range
from recarc.sweep import sweep


@pytest.fixture(scope="module")
def others(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the two members of `runs`: the first alone, also in a sweep, and both on fewer samples."""
    folder, both, ball = tmp_path_factory.mktemp("others"), small_ensemble(), Ball("l2", 0.6)
    alone = RandomizedEnsemble([both.members[0]])
    attack = Tight("quick", steps=STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        evaluate(alone, attack, load("digits", "test", limit=SAMPLES), ball, out=folder / "alone", progress=False)
        fewer = load("digits", "test", limit=20)
        evaluate(both.with_alpha([0.5, 0.5]), attack, fewer, ball, out=folder / "fewer", progress=False)
        sweep(alone, {"tight": attack}, fewer, ball, "eps", [0.3, 0.6], folder / "over_eps", progress=False)
    return folder


def test_differences_are_paired(runs: Path, others: Path) -> None:
    pair, alone = Evaluation.load(runs / "tight"), Evaluation.load(others / "alone")
    found = compare({"pair": pair, "alone": alone})
    gaps = alone.robust_scores - pair.robust_scores
    first, second = found.entries
    assert first.difference is None and second.difference is not None and found.samples == SAMPLES
    assert second.difference.value == pytest.approx(gaps.mean())
    assert (second.difference.low, second.difference.high) == pytest.approx(paired_interval(gaps))
    low, high = second.difference.between or (1, -1)
    assert low <= second.difference.value <= high
    assert found.sentences[0].startswith("alone keeps ") and "than pair" in found.sentences[0]
    assert "<td>alone</td>" in found._repr_html_() and found.plot().axes
    back = compare({"pair": pair, "alone": alone}, reference="alone").entries[0].difference
    assert back is not None and back.value == pytest.approx(-gaps.mean())
    same = compare({"a": pair, "b": pair}).entries[1].difference
    assert same is not None and same.value == 0 and not same.clear and same.low < 0 < same.high


def test_only_common_samples_count(runs: Path, others: Path) -> None:
    found = compare(load_runs([f"pair={runs / 'tight'}", str(others / "fewer")]))
    assert found.samples == 20 and [entry.run.name for entry in found.entries] == ["tight", "fewer"]
    whole = Evaluation.load(runs / "tight")
    assert found.entries[0].robust.value == pytest.approx(whole.robust_scores[:20].mean())
    assert found.notes == ["of the 40 samples of pair only the 20 common ones count here"]


def test_what_cannot_be_compared(runs: Path, others: Path) -> None:
    tight = Evaluation.load(runs / "tight")
    with pytest.raises(InputError, match="a comparison needs at least two runs; there is 1"):
        compare([tight])
    with pytest.raises(InputError, match=r"unknown reference 'pear' \(did you mean 'pair'\?\)"):
        compare({"pair": tight, "same": tight}, reference="pear")
    x, y = load("digits", "test", limit=SAMPLES).tensors()
    members = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        one, other = (
            evaluate(RandomizedEnsemble(members), lambda rec, x, y, ball: x, (part, y), Ball("l2", 0.6), progress=False)
            for part in (x, x.flip(-1))
        )
    with pytest.raises(InputError, match=r"other was evaluated on .*, pair on digits test, 40 samples: evaluate them"):
        compare({"pair": tight, "other": other})
    with pytest.raises(InputError, match="other and one were evaluated on different samples of the same name"):
        compare({"one": one, "other": other})
    assert "not like for like, the attack differs" in compare(load_runs([runs / "tight", runs / "arc"])).notes[0]


def test_the_command(runs: Path, others: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["compare", f"Pair={runs / 'tight'}", f"Al_one={others / 'alone'}"]
    page, figure = tmp_path / "page.html", tmp_path / "forest.svg"
    assert run([*words, "--json", "--out", str(page), "--figure", str(figure)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found["ensembles"]] == ["Pair", "Al_one"] and found["samples"] == SAMPLES
    assert found["files"] == [str(page), str(figure)] and figure.read_text().startswith("<?xml")
    html = page.read_text()
    assert "The ensembles side by side" in html and 'id="forest-1"' in html and "Verdict on Pair" in html
    assert run([*words, "--latex", "--against", "Al_one"]) == 0
    latex = capsys.readouterr().out
    assert r"\toprule" in latex and r"Al\_one" in latex and r"minus Al\_one" in latex
    named = {"Pair": str(runs / "tight"), "Al_one": Evaluation.load(others / "alone")}
    assert compare(named, reference="Al_one").to_latex() == latex
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "common samples" in shown and "conclusive" in shown and "…" not in shown
    assert run([*words, "--figure", str(tmp_path / "forest.gif")]) == 2
    assert run(["compare", str(runs / "tight")]) == 2


def test_a_report_of_several_ensembles_names_them_and_draws_their_sweeps_together(runs: Path, others: Path) -> None:
    given = load_runs([f"Pair={runs}", f"Alone={others / 'alone'}", f"Alone={others / 'over_eps'}"])
    report = build_report(given)
    assert report.title.startswith("How robust are these") and report.comparison is not None
    assert [entry.name for entry in report.comparison.entries] == ["Pair", "Alone"]
    first = report.curves[0]
    assert first.axis == "eps" and [series.name for series in first.series] == ["Pair, Tight", "Alone, Tight"]
    assert len({series.role for series in first.series}) == 2 and first.xs == [0.3, 0.6]
    html = render(report)
    assert "Pair, Tight" in html and not [note for note in report.notes if "left out" in note and "Alone" in note]


@pytest.mark.parametrize(
    "low, high, differences", [(0.3, 0.42, False), (-0.01, 0.003, True), (0.2, 0.2, False), (0, 1, True)]
)
def test_axes_have_round_ends(low: float, high: float, differences: bool) -> None:
    left, right = nice_range(low, high, differences)
    assert left <= low <= high <= right and left < right
    assert not differences or left <= 0 <= right
    assert all(np.isclose(1000 * end, round(1000 * end)) for end in (left, right))
