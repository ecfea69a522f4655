"""What the report says equals what the evaluations say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from small_runs import SCRIPT, small_ensemble

from recarc import Ball, InputError, RandomizedEnsemble, evaluate
from recarc.attacks import (
    ARC,
    PGD,
    AdaptivePGD,
    Attack,
    AutoPGD,
    CarliniWagner,
    Climb,
    LinearARC,
    RandomAttacker,
    Restarts,
    Tight,
    WorstOf,
)
from recarc.data import load
from recarc.evaluation import Evaluation, Verdict
from recarc.evaluation.fingerprint import describe, eps_text
from recarc.evaluation.intervals import paired_interval
from recarc.evaluation.masking import Signal
from recarc.evaluation.saturation import Saturation
from recarc.report import Report, Run, build_report, load_runs, render, write_figures, write_page, write_tables
from recarc.report.content import _main
from recarc.report.rescoring import _minimal
from recarc.report.svg import RIGHT, WIDTH, Frame, _axes
from recarc.report.writing import Table, tables

pytestmark = pytest.mark.xdist_group("report")  # one worker, so that the runs are made once
SHAPES = (("polyline", "line"), ("polygon", "band"))


@pytest.fixture(scope="module")
def report(runs: Path) -> Report:
    return build_report(load_runs([runs]))


def test_the_verdict_is_that_of_the_large_tight_run(report: Report, runs: Path) -> None:
    tight = Evaluation.load(runs / "tight")
    assert report.main.name == "tight"
    assert report.verdict is not None and report.verdict.sentence == Verdict.of(tight).sentence
    assert report.verdict.sentence in render(report).replace("&#39;", "'")


def test_the_verdict_is_about_the_point_where_sweeps_meet(runs: Path) -> None:
    swept = load_runs([runs / "over_alpha", runs / "over_eps"])
    own = [run for run in swept if run.alpha == pytest.approx([0.6, 0.4]) and run.eps == 0.6]
    assert _main(swept).problem == swept[0].problem and not own[1:]  # the sweeps do not meet: the first
    meeting = [*swept, *own]
    assert _main(meeting).problem == own[0].problem


def test_rows_are_the_figures_of_the_runs(report: Report, runs: Path) -> None:
    names = [row.name for row in report.rows]
    assert names == ["Clean", "Best member alone", "PGD", "AdaptivePGD", "ARC", "Tight", "Floor"]
    value = {row.name: row.estimate.value for row in report.rows}
    for name, folder in (("AdaptivePGD", "adaptive_pgd"), ("ARC", "arc"), ("Tight", "tight"), ("PGD", f"pgd/{SCRIPT}")):
        assert value[name] == Evaluation.load(runs / folder).robust_accuracy
    assert value["Floor"] == Evaluation.load(runs / "tight").floor
    assert value["Floor"] <= value["Tight"] <= min(value["AdaptivePGD"], value["ARC"])
    lowest = min(value[n] for n in ("PGD", "AdaptivePGD", "ARC", "Tight"))
    for row in report.rows[2:6]:
        assert row.above == pytest.approx(100 * (row.estimate.value - lowest))


def test_a_tight_run_alone_tells_of_its_stages(runs: Path) -> None:
    alone = build_report(load_runs([runs / "tight"]))
    stages = alone.main.evaluation.stage_accuracies
    value = {row.name: row.estimate for row in alone.rows}
    assert value["AdaptivePGD"] == stages["adaptive_pgd"] and value["ARC"] == stages["arc"]
    assert sum(bar.count for bar in alone.decided) == len(alone.main.evaluation)
    assert next(bar for bar in alone.reached if bar.name == "Tight").share == 1


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_an_evaluation_in_memory_is_a_run(tmp_path: Path) -> None:
    data = load("digits", "test", limit=12)
    result = evaluate(small_ensemble(), Tight("quick", steps=1), data, Ball("l2", 0.6), progress=False)
    for given in ([result], result, [Run("mine", result)]):
        report = build_report(given)
        assert report.main.evaluation is result and report.verdict is not None
        assert Verdict.of(result).sentence in render(report).replace("&#39;", "'")
    assert build_report([result]).main.name == "in memory"
    saved = build_report({"me": result.save(tmp_path / "run")})  # or its folder
    assert saved.main.evaluation.robust_accuracy == result.robust_accuracy and saved.main.given == "me"
    with pytest.raises(InputError, match="runs holds a int; expected evaluations or run folders"):
        build_report([3])  # type: ignore[list-item]


def test_members_have_the_numbers_of_the_records_and_warnings(report: Report, tmp_path: Path) -> None:
    """From 0, as in members[0], PGD(member=0), member_0.safetensors and clean_0; headings say so."""
    page, found = render(report), {table.name: table for table in tables(report)}
    assert found["members"].head[0] == found["cross_robustness"].head[0] == "member (from 0)"
    assert [row[0] for row in found["members"].rows] == ["member 0", "member 1"]
    assert found["cross_robustness"].head[1:] == ["against 0", "against 1"]
    assert '<th scope="col">member (from 0)</th>' in page and ">against 0<" in page and ">against 2<" not in page
    assert "Probability of member 0" in page and "of member 1:" in page and "member 2" not in page
    best = next(row for row in report.rows if row.name == "Best member alone")
    assert report.main.evaluation.alone is not None
    assert best.description == f"alpha = 1 on member {report.main.evaluation.alone.mean(1).argmax()}"
    write_figures(report, tmp_path, ["svg"])
    drawn = (tmp_path / "cross_robustness.svg").read_text()
    assert "member 0" in drawn and "against 0" in drawn and "member 2" not in drawn


def test_without_a_floor_the_page_says_that_it_is_a_bound(runs: Path) -> None:
    bare = build_report(load_runs([runs / "arc"]))
    assert bare.verdict is None and bare.pictures == []
    page = render(bare)
    assert "upper bound" in page and "--attack tight" in page
    assert any("--save-inputs" in note for note in bare.notes)


def test_the_page_keeps_what_a_run_was_warned_of(runs: Path) -> None:
    (run,) = load_runs([runs / "arc"])
    run.evaluation.warnings[:] = ["the outputs look like <b>probabilities</b>"]
    told = build_report([run])
    assert told.notes[-1] == "ARC: the outputs look like <b>probabilities</b>"
    assert "&lt;b&gt;probabilities" in render(told)


def test_the_page_names_the_signals_of_masking(runs: Path) -> None:
    (run,) = load_runs([runs / "tight"])
    assert "<li>gradients_disagree" not in render(build_report([run]))
    run.evaluation.signals[:] = [Signal(0, "gradients_disagree", 0.4)]
    page = render(build_report([run]))
    assert "<li>gradients_disagree of members[0] (40 %)</li>" in page and "not conclusive" in page


def test_a_member_that_was_not_attacked_is_not_called_robust(runs: Path) -> None:
    """At alpha = 1 the second member is never attacked: its bits say nothing."""
    report = build_report(load_runs([runs / "over_alpha" / "alpha=1" / "tight"]))
    best = next(row for row in report.rows if row.name == "Best member alone")
    assert report.main.evaluation.alone is not None
    assert best.estimate.value == report.main.evaluation.alone[0].mean()
    assert report.members[1].alone is None and "not attacked" in render(report)
    assert report.rescoring is not None
    assert next(line for line in report.rescoring.lines if line.role == "floor").right[1] == 0


def test_curves_are_found_and_hold_the_figures(report: Report, runs: Path) -> None:
    curves = {curve.axis: curve for curve in report.curves}
    assert set(curves) == {"alpha", "eps"}
    # The point at eps 0.6 of the sweep over eps has the ensemble's own alpha: it belongs to both curves.
    assert curves["alpha"].xs == [0.5, 0.6, 0.8, 1.0] and curves["eps"].xs == [0.3, 0.6]
    shared = runs / "over_eps" / "eps=0.6" / "tight"
    for axis, curve in curves.items():
        names = {series.name: series for series in curve.series}
        assert set(names) == {"Clean", "AdaptivePGD", "ARC", "Tight", "Floor", "Best member alone"}
        for series in curve.series:
            assert [point.x for point in series.points] == curve.xs
        for point, floor in zip(names["Tight"].points, names["Floor"].points):
            folder = runs / f"over_{axis}" / f"{axis}={point.x:g}" / "tight"
            run = Evaluation.load(folder if folder.exists() else shared)
            assert point.estimate == run.robust and floor.estimate.value == run.floor


@pytest.mark.parametrize("alpha", [(0.6, 0.4), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0), (0.123, 0.877)])
def test_rescored_lines_are_robust_at(report: Report, runs: Path, alpha: tuple[float, float]) -> None:
    found = report.rescoring
    assert found is not None
    lines = {line.name: line for line in found.lines}
    for name, folder in (("AdaptivePGD", "adaptive_pgd"), ("Tight", "tight"), ("PGD", f"pgd/{SCRIPT}")):
        assert lines[name].at(alpha) == pytest.approx(Evaluation.load(runs / folder).robust_at(alpha).value, abs=1e-11)
    worst = found.worst(alpha)
    assert worst <= min(line.at(alpha) for line in found.lines if line.role not in ("floor", "pgd")) + 1e-12
    assert worst >= lines["Floor"].at(alpha) - 1e-12


def test_the_worst_of_all_patterns_is_the_minimum_per_sample(report: Report) -> None:
    found = report.rescoring
    assert found is not None
    for alpha in ((0.6, 0.4), (0.3, 0.7)):
        scores = []
        for run in report.comparable:
            evaluation = run.evaluation
            seen = [evaluation.clean_predictions, *evaluation.stages.values(), *evaluation.adversarial_predictions]
            scores += [evaluation.score(predictions, np.array(alpha)) for predictions in seen]
        assert found.worst(alpha) == pytest.approx(np.min(scores, axis=0).mean(), abs=1e-12)


def test_minimal_patterns() -> None:
    assert _minimal({0b11, 0b01}) == (0b01,)
    assert _minimal({0b11, 0b01, 0b10}) == (0b01, 0b10)
    assert _minimal({0b11, 0b00}) == (0,)


def test_cross_robustness_in_the_order_of_the_members(runs: Path) -> None:
    """The attacker visits members by decreasing alpha; the matrix is in their own order."""
    (matrix,) = build_report(load_runs([runs / "tight", runs / "pgd"])).matrices
    evaluation = Evaluation.load(runs / "pgd" / SCRIPT)
    assert matrix.columns == [0, 1]
    right = (evaluation.adversarial_predictions == evaluation.labels).mean(2)
    assert matrix.values[0][0] == right[0, 0] and matrix.values[1][0] == right[0, 1]


def test_three_members_get_three_sliders_and_no_line_plot(runs_of_three: Path) -> None:
    report = build_report(load_runs([runs_of_three]))
    page = render(report)
    assert page.count('<input id="alpha-') == 3 and 'id="alpha-cursor"' not in page


def test_pictures_are_the_inputs_that_were_kept(report: Report) -> None:
    assert report.pictures
    for example in report.pictures:
        assert [outcome.attack for outcome in example.outcomes] == ["AdaptivePGD", "Tight"]
        for outcome in example.outcomes:
            assert np.linalg.norm(outcome.adversarial - example.clean) == pytest.approx(outcome.size, abs=1e-5)
            assert len(outcome.answers) == 2 and np.abs(outcome.perturbation).max() <= 1


def test_pictures_of_damaged_inputs_are_not_shown(tmp_path: Path) -> None:
    ensemble, data = small_ensemble(), load("digits", "test", limit=12)
    for name, attack in (("one", PGD(steps=1)), ("two", PGD(steps=2))):
        evaluate(ensemble, attack, data, Ball("l2", 0.6), out=tmp_path / name, save_inputs=True, progress=False)
    (file,) = (tmp_path / "one").glob("*.inputs.safetensors")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 64
    file.write_bytes(raw)
    found = build_report(load_runs([tmp_path]))
    assert {len(example.outcomes) for example in found.pictures} == {1}
    assert "one are damaged (the checksum of its inputs differs)" in found.notes[0]
    alone = build_report(load_runs([tmp_path / "one"]))
    assert not alone.pictures and alone.notes[0].startswith("no pictures: the inputs of one are damaged")


def test_names_are_text(report: Report) -> None:
    page = render(report)
    assert SCRIPT not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    bad = Run(SCRIPT + '"onload=alert(2)', report.main.evaluation)
    page = render(build_report([bad], title=SCRIPT))
    assert "alert(1)</script>" not in page and '"onload' not in page


def test_the_page_is_self_contained_and_small(report: Report, tmp_path: Path) -> None:
    path = write_page(report, tmp_path / "deep" / "page.html")
    page = path.read_text(encoding="utf-8")
    assert len(page) < 3_000_000
    without_xml_names = page.replace("http://www.w3.org/", "")
    assert not re.search(r"https?://", without_xml_names) and "default-src 'none'" in page
    assert not re.search(r"<img(?![^>]*alt=)", page) and page.count("<h1") == 1
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_typed_commands_are_listed_once_and_runs_of_python_have_none(runs: Path) -> None:
    report = build_report(load_runs([runs]))
    assert report.commands == [] and "started from Python; their configuration is below" in render(report)
    typed = {"command": "recarc evaluate as-typed"}
    assert build_report([Run(name, report.main.evaluation, typed) for name in "ab"]).commands == [typed["command"]]


def test_a_point_of_a_sweep_that_equals_a_run_is_no_second_row(runs: Path) -> None:
    swept = load_runs([runs / "over_eps" / "eps=0.6"])
    again = [Run(f"copy {k}", Evaluation.load(swept[0].evaluation.path or "")) for k in range(2)]
    report = build_report([*swept, *again])
    assert [row.name for row in report.rows].count("Tight") == 1
    assert not any("(2)" in row.name for row in report.rows) and len(report.runs) == 3
    assert report.rescoring is not None and [line.name for line in report.rescoring.lines].count("Tight (2)") == 0
    again[0].evaluation.records.adversarial[0, 0, 0] += 1  # other records: another run, which stays
    assert [row.name for row in build_report([*swept, again[0]]).rows].count("Tight (2)") == 1


def test_runs_that_cannot_be_compared_are_named(runs: Path) -> None:
    """Points of a sweep are in a plot; a run on other data, ensemble or ball is in nothing, which is said."""
    report = build_report(load_runs([runs]))
    assert not any("left out" in note for note in report.notes)
    swept = load_runs([runs / "over_eps" / "eps=0.6"])[0]
    other = load_runs([runs / "tight"])[0]
    config = {**other.configuration, "members": ["a", "b"], "ball": {"norm": "l2", "eps": 0.1, "box": [0, 1]}}
    foreign = Run("foreign", replace(other.evaluation, configuration=config), {"command": "recarc evaluate their-rec"})
    notes = build_report([other, Run("short", swept.evaluation), foreign]).notes
    assert "short is left out of the comparison: it has other data (digits test, 20 samples)" in notes
    assert any(
        note == "foreign is left out of the comparison: it has another ensemble (their-rec), another ball (l2 eps 0.1)"
        for note in notes
    )


def test_an_ensemble_without_a_name_is_told_apart_by_its_members(report: Report) -> None:
    facts = dict(report.facts)
    assert re.fullmatch(r"unnamed \([0-9a-f]{8}\)", facts["ensemble"]) and facts["ensemble"] in render(report)
    assert replace(report.main, environment={"command": "recarc sweep zoo:x --over eps"}).ensemble == "zoo:x"
    assert replace(report.main, environment={"command": "recarc evaluate --eps 1 rec"}).ensemble == facts["ensemble"]
    assert replace(report.main, environment={"command": "recarc demo --quiet"}).ensemble == "of the demo"
    for option, words in (("--average", "zoo:x, averaged"), ("--vote", "zoo:x, majority vote"), ("--voted", "zoo:x")):
        made = replace(report.main, environment={"command": f"recarc evaluate zoo:x --eps 1 {option}"})
        assert (made.ensemble, made.subject) == ("zoo:x", words)


@pytest.mark.parametrize(("more", "clear"), [(60, True), (2, False)])
def test_the_best_member_is_called_better_only_where_the_paired_interval_says_so(
    report: Report, more: int, clear: bool
) -> None:
    """200 samples on which two members are right in turn; the first also on `more` others."""
    bits = np.arange(200) % 2 == np.arange(2)[:, None]
    bits[0, 1 : 2 * more : 2] = True
    robust = np.where(bits, 0, 1)[None]
    robust[0, 0, 1::2] = 1
    zeros = np.zeros(200, dtype=np.int16)
    records = replace(
        report.main.evaluation.records,
        index=np.arange(200),
        labels=zeros,
        clean=np.zeros((2, 200), dtype=np.int16),
        adversarial=robust,
        norms=np.zeros((1, 200)),
        alone=bits,
        stages={},
        decided_by=None,
        challenged=None,
    )
    evaluation = replace(report.main.evaluation, records=records, alpha=np.array([0.5, 0.5]), expected_samples=200)
    made = build_report([Run("x", evaluation)])
    found = made.advantage
    assert found is not None and found.clear == clear
    gaps = bits[0] - evaluation.robust_scores
    assert (found.low, found.high) == pytest.approx(paired_interval(gaps)) and found.points == gaps.mean()
    page = render(made)
    assert ("<strong>" in page.split('id="attacks"')[0]) == clear and found.sentence in page
    assert f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]" in found.sentence


def test_the_last_tick_stays_in_the_picture(report: Report) -> None:
    """Even in the largest letters of the page, those of a narrow screen; a short one stays below its point."""
    frame = Frame(0, 8 / 255)
    drawn = str(_axes(frame, "eps", [(0, "0"), (8 / 255, "8/255")]))
    assert f'<text x="{WIDTH}" y="344" class="tick end">8/255</text>' in drawn
    assert f'<text x="{WIDTH - RIGHT}.0" y="344" class="tick middle">1</text>' in str(
        _axes(Frame(0, 1), "a", [(1, "1")])
    )


def run_of(attack: Attack) -> Run:
    config = {"attack": json.loads(json.dumps(describe(attack))), "ball": {"norm": "linf", "eps": 0.1, "box": None}}
    return Run("x", SimpleNamespace(configuration=config, alpha=torch.tensor([0.9, 0.1])))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attack", "label"),
    [
        (Tight("quick"), "Tight"),
        (ARC(steps=3, planes=2), "ARC"),
        (ARC(variant="corrected"), "ARC, corrected"),
        (AdaptivePGD(), "AdaptivePGD"),
        (AdaptivePGD(expectation="logits"), "AdaptivePGD on logits"),
        (RandomAttacker(PGD(steps=2, random_init=True)), "PGD"),
        (PGD(member=0), "PGD on member 0"),
        (PGD(member=1), "PGD on member 1"),
        (CarliniWagner(), "C&W"),
        (CarliniWagner(expectation="logits"), "C&W on logits"),
        (CarliniWagner(member=0), "C&W on member 0"),
        (RandomAttacker(CarliniWagner(member=0)), "C&W on a random member"),
        (AutoPGD(loss="dlr"), "AutoPGD"),
        (AutoPGD(member=1), "AutoPGD on member 1"),
        (Climb(), "Climb"),
        (Climb(start=ARC(), orders=3), "Climb"),
        (LinearARC(), "LinearARC"),
        (Restarts(AdaptivePGD(random_init=True), 3), "AdaptivePGD, 3 restarts"),
        (WorstOf([ARC(rho=0.2), PGD()]), "WorstOf"),
    ],
    ids=str,
)
def test_a_label_for_every_attack(attack: Attack, label: str) -> None:
    assert run_of(attack).label == label


def test_an_attack_that_is_a_function_is_called_by_its_name() -> None:
    run = run_of(ARC())
    for attack in ("mymodule:my_attack", {"function": "mymodule:my_attack", "code": "127e9231"}):
        run.configuration["attack"] = attack
        assert run.command == "" and run.label == "mymodule:my_attack"


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_pictures_of_runs_on_tensors(tmp_path: Path) -> None:
    ensemble, (x, y) = small_ensemble(), load("digits", "test", limit=12).tensors()
    evaluate(ensemble, PGD(steps=1), (x, y), Ball("l2", 0.6), out=tmp_path / "run", save_inputs=True, progress=False)
    flat = RandomizedEnsemble([torch.nn.Linear(64, 10).eval()])
    options: dict[str, Any] = {"save_inputs": True, "progress": False}
    evaluate(flat, PGD(steps=1), (x.flatten(1), y), Ball("l2", 0.6), out=tmp_path / "flat", **options)
    runs = load_runs([tmp_path / "run"])
    without = build_report(runs)
    assert without.pictures == []
    why = "no pictures: the runs are on tensors, not on a named data set; pass them: build_report(data=(x, y))"
    assert without.notes[0] == why
    other = build_report(runs, data=(1 - x, y))
    assert other.notes[0] == "no pictures: tensors is not the data that was attacked"
    pictures = build_report(runs, data=(x, y)).pictures
    assert pictures and {example.label for example in pictures} <= set("0123456789")
    vectors = build_report(load_runs([tmp_path / "flat"]), data=(x.flatten(1), y))
    assert vectors.notes[0] == "no pictures: inputs of shape (64,) are not images of 1 or 3 channels"


def test_each_matrix_has_a_file_of_its_own(report: Report, tmp_path: Path) -> None:
    both = replace(report, matrices=[*report.matrices, replace(report.matrices[0], run="C&W on a random member")])
    written = [*write_tables(both, tmp_path), *write_figures(both, tmp_path, ["svg"])]
    found = {path.name for path in written if "cross" in path.name}
    assert found == {f"cross_robustness_{k}.{kind}" for k in (1, 2) for kind in ("tex", "md", "svg")}
    assert "C&W on a random member" in (tmp_path / "cross_robustness_2.md").read_text()


def test_tables_and_figures(report: Report, tmp_path: Path) -> None:
    written = write_tables(report, tmp_path / "tables")
    names = {"attacks", "members", "cross_robustness", "sweep_alpha", "sweep_eps"}
    assert {path.stem for path in written} == names
    latex = (tmp_path / "tables" / "attacks.tex").read_text()
    assert r"\toprule" in latex and r"95 \% interval" in latex and r"\bottomrule" in latex
    assert latex.count("\\\\") == 1 + len(report.rows)
    markdown = (tmp_path / "tables" / "sweep_alpha.md").read_text().splitlines()
    assert len(markdown) == 2 + 2 + 4
    settings = matplotlib.get_backend(), matplotlib.rcParams.copy()
    drawn = write_figures(report, tmp_path / "figures")
    assert (matplotlib.get_backend(), matplotlib.rcParams) == settings, "matplotlib is as it was"
    assert {p.suffix for p in drawn} == {".pdf", ".svg", ".png"}
    assert {p.stem for p in drawn} == {"attacks", "sweep_alpha", "sweep_eps", "cross_robustness", "pictures"}
    assert all(p.stat().st_size > 1000 for p in drawn)
    svg = (tmp_path / "figures" / "attacks.svg").read_bytes()
    write_figures(report, tmp_path / "again", formats=["svg"])
    assert (tmp_path / "again" / "attacks.svg").read_bytes() == svg


def test_latex_and_markdown_of_odd_names(report: Report) -> None:
    table = tables(report)[0]
    table.rows[0][0] = "50 % & more_or | less <b>"
    assert r"50 \% \& more\_or | less \textless{}b\textgreater{}" in table.latex()
    assert r"50 % & more_or \| less &lt;b>" in table.markdown()
    table.rows[0][0] = "a\n\\input{secret}\r\x1b[2J ![x](http://a.b/c) \\| `"
    odd = replace(table, caption="a\n\\input{secret}\u2028b ![x](http://a.b/c)")
    assert not any(line.startswith("\\input") or "\x1b" in line for line in odd.latex().splitlines())
    assert len(odd.markdown().splitlines()) == len(table.rows) + 4 and not re.search(r"(?<!\\)\[", odd.markdown())


def test_latex_sets_signs_and_ranges() -> None:
    numbers = ["ResNet-20", "-6.33 [-9.05, +3.62]", "12.50-13.00", "1e-05", "a - b", "+1.00", "16-bit-2"]
    signed = ["ResNet-20", "$-$6.33 [$-$9.05, $+$3.62]", "12.50--13.00", "1e-05", "a - b", "$+$1.00", "16-bit-2"]
    assert " & ".join(signed) in Table("t", "", ["name"] * 7, [numbers]).latex()


def test_bad_paths_are_one_line(tmp_path: Path, runs: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_runs([tmp_path / "nowhere"])
    with pytest.raises(InputError, match="contains no run"):
        load_runs([tmp_path])
    with pytest.raises(InputError, match="no runs were given"):
        load_runs([])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_page(build_report(load_runs([runs / "arc"])), tmp_path / "file" / "page.html")
    assert len(load_runs([runs, runs / "arc", runs])) == len(load_runs([runs]))


@pytest.mark.parametrize(
    "eps, text", [(8 / 255, "8/255"), (0.6, "0.6"), (128 / 255, "128/255"), (2.5, "2.5"), (1 / 3, "1/3")]
)
def test_radii_as_people_write_them(eps: float, text: str) -> None:
    assert eps_text(eps) == text


def test_an_open_verdict_draws_what_another_round_would_bring(report: Report) -> None:
    """Three rounds, of which the last added a tenth of a point; at most 0.3 points more."""
    saturation = Saturation((2, 3, 1), 2, (0.0, 0.004, 0.006, 0.007), 0.003)
    assert report.verdict is not None and 'id="saturation"' not in render(report)
    page = render(replace(report, verdict=replace(report.verdict, saturation=saturation, gap=0.1)))
    (drawing,) = re.findall(r'<svg class="plot" id="saturation".*?</svg>', page, re.DOTALL)
    assert "improved 2, 3, 1 of them; 2 only one round found" in page and "at most 0.30 points" in drawing
    (line,), (wedge,) = (re.findall(rf'<{kind} class="{name}" points="([^"]*)"', drawing) for kind, name in SHAPES)
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert len(heights) == 4 and heights == sorted(heights), "down from one round to the next"
    deepest = max(float(point.split(",")[1]) for point in wedge.split())
    assert (deepest - heights[-1]) / (heights[-1] - heights[0]) == pytest.approx(3 / 7, abs=0.01)
    met = replace(report.verdict, saturation=saturation, gap=0.0)
    assert 'id="saturation"' not in render(replace(report, verdict=met)), "nothing to search for"
