"""What a report says, before anything is drawn: the verdict, the attacks, curves, members and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import numpy as np

from recarc.attacks import registry
from recarc.errors import InputError
from recarc.evaluation.fingerprint import canonical
from recarc.evaluation.intervals import paired_interval
from recarc.evaluation.result import Estimate, estimate, html_table
from recarc.evaluation.verdict import Verdict
from recarc.report.comparison import Comparison, compare
from recarc.report.curves import Curve, best_member, curves, robust_alone
from recarc.report.gallery import Data, Example, pictures
from recarc.report.rescoring import Rescoring, rescoring
from recarc.report.runs import (
    BEST_MEMBER,
    CERTIFIED,
    STAGE_LABELS,
    Given,
    Run,
    as_runs,
    attack_stages,
    numbered,
    position,
    role,
)

TITLE = "How robust is this randomized ensemble, really?"
SEVERAL = "How robust are these randomized ensembles, really?"
MEMBER = "member (from 0)"  # heads columns of members, which have their numbers in members[0] and in the records


@dataclass(frozen=True)
class Row:
    """One line of the comparison; `above`: points above the strongest attack, by which this one overestimates."""

    name: str
    description: str
    estimate: Estimate
    above: float | None = None

    @property
    def role(self) -> str:
        return role(self.name)


@dataclass(frozen=True)
class MemberRow:
    index: int
    alpha: float
    clean: float
    alone: float | None  # None: not attacked alone
    attacked: float


@dataclass(frozen=True)
class Matrix:
    """Accuracy of member i (row) on the inputs made against member j (column)."""

    run: str
    values: list[list[float]]
    columns: list[int]


@dataclass(frozen=True)
class Bar:
    name: str
    role: str
    count: int
    share: float


@dataclass(frozen=True)
class Advantage:
    """What the best member alone keeps more than the ensemble on the same samples, with a paired 95 % interval."""

    best: float
    points: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def sentence(self) -> str:
        size = f"{100 * abs(self.points):.1f} points {'more' if self.points > 0 else 'less'} than the ensemble"
        size = size if abs(self.points) >= 0.0005 else "as much as the ensemble"
        kept = f"Its best member alone, without any randomness, keeps {100 * self.best:.1f} %"
        interval = f"paired 95 % interval of the difference: [{100 * self.low:+.1f}, {100 * self.high:+.1f}]"
        doubt = "" if self.clear else ", so these samples do not tell which is better"
        return f"{kept}, {size} ({interval}){doubt}."


@dataclass(frozen=True)
class Section:
    """A section that the caller adds: trusted SVG elements, and text that is escaped like any other."""

    title: str
    text: str
    drawings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    title: str
    runs: list[Run]
    main: Run
    comparable: list[Run]  # the runs on the main run's problem, from the weakest attack to the strongest
    comparison: Comparison | None  # of several ensembles, at the main run's ball
    verdict: Verdict | None
    rows: list[Row]
    members: list[MemberRow]
    matrices: list[Matrix]
    decided: list[Bar]  # samples that each stage of the main run decided
    reached: list[Bar]  # samples on which an attack alone is as strong as all of them together
    curves: list[Curve]
    rescoring: Rescoring | None
    pictures: list[Example]
    sections: list[Section]
    notes: list[str]
    commands: list[str]  # that were typed

    def _repr_html_(self) -> str:
        """For notebooks: the comparison of attacks and the verdict; `write_page` writes the whole page."""
        head = ["attack", "accuracy", "overestimates by"]
        rows = [[escape(row.name), row.estimate._repr_html_(), _points(row.above)] for row in self.rows]
        facts = "; ".join(f"{name} {value}" for name, value in self.facts)
        sentence = "" if self.verdict is None else f"<p>{escape(self.verdict.sentence)}</p>"
        side_by_side = "" if self.comparison is None else self.comparison._repr_html_()
        return f"<p>{escape(facts)}</p>{html_table([head, *rows])}{sentence}{side_by_side}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was evaluated, in five phrases."""
        return [
            ("ensemble", self.main.subject),
            ("data", self.main.data_text),
            ("ball", self.main.ball_text),
            ("members", str(len(self.main.alpha))),
            ("alpha", self.main.alpha_text),
        ]

    @property
    def advantage(self) -> Advantage | None:
        """None without a floor, whose attacks tell what a member keeps alone, and where one member is all there is."""
        if self.main.evaluation.alone is None or (self.main.evaluation.alpha > 0).sum() < 2:
            return None
        best, figure = best_member(self.main)
        gaps = robust_alone(self.main)[best] - self.main.evaluation.robust_scores
        return Advantage(figure.value, float(gaps.mean()), *paired_interval(gaps))


def build_report(
    runs: Given | Sequence[Given] | Mapping[str, Given],
    title: str | None = None,
    data_dir: str | Path | None = None,
    sections: Sequence[Section] = (),
    data: Data | None = None,
) -> Report:
    """Combine runs, or evaluations in memory. The verdict is that of the largest with a floor.

    Several ensembles (a mapping names them) are compared side by side.
    `data` is what was attacked, for the pictures: by default the data set that the runs name; pass tensors (x, y) if
    those were attacked.
    """
    runs = as_runs(runs)
    main = _main(runs)
    comparable = sorted(_distinct(main, runs), key=lambda run: position(run.label))
    drawn = curves(runs)
    examples, why_none = pictures(comparable, data_dir, data)
    comparison, why_not = _comparison(main, runs)
    unfinished = [run for run in runs if not run.evaluation.complete]
    notes = [text for text in (why_none, why_not) if text]
    notes += [
        f"{r.name} is not finished: {len(r.evaluation)} of {r.evaluation.expected_samples} samples so far"
        for r in unfinished
    ]
    shown = {id(run) for curve in drawn for run in curve.runs}
    shown |= {id(entry.run) for entry in comparison.entries} if comparison else set()
    notes += [
        f"{run.name} is left out of the comparison: it has {run.differences(main)}"
        for run in runs
        if run.problem != main.problem and id(run) not in shown
    ]
    notes += dict.fromkeys(f"{run.label}: {text}" for run in comparable for text in run.evaluation.warnings)
    commands = dict.fromkeys(run.command for run in (*comparable, *runs))
    return Report(
        title=title or (SEVERAL if comparison else TITLE),
        runs=list(runs),
        main=main,
        comparable=comparable,
        comparison=comparison,
        verdict=Verdict.of(main.evaluation) if main.evaluation.alone is not None else None,
        rows=_rows(main, comparable),
        members=_members(main),
        matrices=[matrix for run in comparable if (matrix := _matrix(run)) is not None],
        decided=_decided(main),
        reached=_reached(comparable),
        curves=drawn,
        rescoring=rescoring(main, comparable, runs),
        pictures=examples,
        sections=list(sections),
        notes=notes,
        commands=[command for command in commands if command],
    )


def _main(runs: Sequence[Run]) -> Run:
    """A run with a floor first, then most samples, then the problem of most runs (where sweeps meet), then pictures."""
    problems = [run.problem for run in runs]

    def preferred(run: Run) -> tuple[bool, int, int, bool]:
        saved = bool(run.configuration.get("save_inputs"))
        return run.evaluation.alone is not None, len(run.evaluation), problems.count(run.problem), saved

    return max(runs, key=preferred)


def _comparison(main: Run, runs: Sequence[Run]) -> tuple[Comparison | None, str]:
    """The best run of each ensemble at the main run's ball, the main one first; or why there is none."""
    ensembles: dict[str, list[Run]] = {}
    for run in (run for run in (main, *runs) if run.ball == main.ball):
        ensembles.setdefault(run.given or canonical(run.configuration.get("members")), []).append(run)
    if len(ensembles) < 2:
        return None, ""
    try:
        return compare([_main(group) for group in ensembles.values()]), ""
    except InputError as error:
        return None, f"the ensembles are not compared: {error}"


def _distinct(main: Run, runs: Sequence[Run]) -> list[Run]:
    """The runs on the main run's problem, each outcome once; a copy with saved inputs is kept for its pictures."""
    found = [main]
    for run in sorted(runs, key=lambda run: not run.configuration.get("save_inputs")):
        if run.problem == main.problem and not any(run.equals(other) for other in found):
            found.append(run)
    return [run for run in runs if any(run is other for other in found)]


def _points(above: float | None) -> str:
    return "" if above is None else f"{above:.2f} points"


def _rows(main: Run, comparable: list[Run]) -> list[Row]:
    evaluation = main.evaluation
    attacks = numbered((run.label, (run.evaluation.robust, run.label)) for run in comparable)
    for stage, label in attack_stages(evaluation.stages).items():
        attacks.setdefault(label, (evaluation.stage_accuracies[stage], label))
    strongest = min(figure.value for figure, _ in attacks.values())
    rows = [Row("Clean", "no attack", evaluation.clean)]
    if evaluation.alone is not None:
        best, figure = best_member(main)
        rows.append(Row(BEST_MEMBER, f"alpha = 1 on member {best}", figure))
    for name in sorted(attacks, key=position):
        figure, label = attacks[name]
        rows.append(Row(name, registry.help_of(label) or "an attack", figure, 100 * (figure.value - strongest)))
    if evaluation.floor_scores is not None:
        rows.append(Row("Floor", "as far as attacks on single members can tell", estimate(evaluation.floor_scores)))
    if (certified := evaluation.certified_floor) is not None:
        rows.append(Row(CERTIFIED, "proved: no attack whatever leaves less", estimate(certified.per_sample.numpy())))
    return rows


def _members(main: Run) -> list[MemberRow]:
    evaluation = main.evaluation
    alone = None if evaluation.alone is None else evaluation.alone.mean(1)
    return [
        MemberRow(
            i,
            float(evaluation.alpha[i]),
            float(evaluation.member_clean[i]),
            None if alone is None or not evaluation.alpha[i] else float(alone[i]),
            float(evaluation.member_robust[i]),
        )
        for i in range(len(evaluation.alpha))
    ]


def _matrix(run: Run) -> Matrix | None:
    cross, columns = run.evaluation.cross_robustness, run.evaluation.attacked_members
    if cross is None or columns is None or run.attack.get("class") != "RandomAttacker":
        return None
    by_member = np.argsort(columns)
    return Matrix(run.label, cross[:, by_member].tolist(), [columns[k] for k in by_member])


def _decided(main: Run) -> list[Bar]:
    counts = main.evaluation.to_json()["decided_by"]
    total = max(1, len(main.evaluation))
    labels = attack_stages(counts)
    colour = {stage: role(label) for stage, label in labels.items()}
    return [
        Bar({**STAGE_LABELS, **labels}.get(stage, stage), colour.get(stage, "tight"), count, count / total)
        for stage, count in counts.items()
        if count
    ]


def _reached(comparable: list[Run]) -> list[Bar]:
    """Over the runs on the very same samples; an attacker that draws its input has no single one to compare."""
    index = comparable[0].evaluation.records.index
    runs = [run for run in comparable if len(run.evaluation.weights) == 1]
    runs = [run for run in runs if np.array_equal(run.evaluation.records.index, index)]
    scores = numbered((run.label, run.evaluation.robust_scores) for run in runs)
    for evaluation in (run.evaluation for run in runs):
        for stage, label in attack_stages(evaluation.stages).items():
            scores.setdefault(label, evaluation.score(evaluation.stages[stage]))
    if len(scores) < 2:
        return []
    worst = np.min(np.stack(list(scores.values())), axis=0)
    hits = {name: int((scores[name] <= worst).sum()) for name in sorted(scores, key=position)}
    return [Bar(name, role(name), count, count / len(worst)) for name, count in hits.items()]
