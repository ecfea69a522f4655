"""What a report says, before it is drawn: the verdict, the table, curves, members, who won, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from recarc.errors import InputError
from recarc.evaluation.fingerprint import Json, eps_text
from recarc.evaluation.result import Estimate, estimate
from recarc.evaluation.verdict import Verdict
from recarc.report.curves import BEST, ROLES, STAGES, Curve, best_member, curves
from recarc.report.gallery import Data, Gallery, gallery
from recarc.report.rescoring import Rescoring, rescoring
from recarc.report.runs import Run, place

TITLE = "How robust is this randomized ensemble, really?"
STAGE_TITLES = {
    "clean": "no attack needed",
    "adaptive_pgd": "AdaptivePGD",
    "arc": "ARC",
    "members": "AutoPGD on a member",
    "corrected_arc": "ARC, corrected",
    "climb": "Climb",
    "restarts": "Climb, restarted",
    "none": "nothing moved it",
}


@dataclass(frozen=True)
class Row:
    """One line of the comparison. `above`: points above the lowest figure of an attack, how much it flatters."""

    name: str
    role: str
    says: str
    estimate: Estimate
    above: float | None = None


@dataclass(frozen=True)
class MemberRow:
    index: int
    alpha: float
    clean: float
    alone: float | None
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
class Section:
    """A section that the caller adds: trusted SVG elements, and text that is escaped as any other."""

    title: str
    text: str
    drawings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    title: str
    runs: list[Run]
    main: Run
    verdict: Verdict | None
    rows: list[Row]
    members: list[MemberRow]
    matrices: list[Matrix]
    decided: list[Bar]  # by the stages of the main run
    reached: list[Bar]  # samples on which an attack alone reaches the worst that any of them found
    curves: list[Curve]
    rescoring: Rescoring | None
    gallery: Gallery | None
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)  # that repeat it

    @property
    def same(self) -> list[Run]:
        """The runs on the main run's problem."""
        return sorted((r for r in self.runs if r.problem == self.main.problem), key=lambda run: place(run.title))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was evaluated, in four phrases."""
        told = self.main.configuration
        data, ball = told.get("data") or {}, told.get("ball") or {}
        eps = self.main.eps
        count = len(self.main.evaluation)
        split = f" {data['split']}" if data.get("split") else ""
        return [
            ("data", f"{data.get('name', 'unknown')}{split}, {count:,} samples"),
            ("ball", f"{ball.get('norm', '')} eps {eps_text(eps) if eps is not None else 'per sample'}"),
            ("members", str(len(self.main.alpha))),
            ("alpha", " / ".join(f"{a:.3g}" for a in self.main.alpha)),
        ]


def build_report(
    runs: Sequence[Run],
    title: str | None = None,
    data_dir: str | Path | None = None,
    sections: Sequence[Section] = (),
    ensemble: str = "ENSEMBLE",
    command: str = "",
    data: Data | None = None,
) -> Report:
    """Puts the runs of one ensemble together. The verdict is that of the largest run with a floor.

    `ensemble` is its folder, for the commands that repeat the runs; `command` the one that made them all, if one did.
    `data` is what was attacked, for the pictures: by default the data set of that name, and needed for tensors (x, y).
    """
    if not runs:
        raise InputError("a report needs at least one run")
    runs = list(runs)
    main = _main(runs)
    same = sorted((run for run in runs if run.problem == main.problem), key=lambda run: place(run.title))
    pictures, note = gallery(same, data_dir, data)
    notes = [note] if note else []
    notes += [
        f"{r.name} is not finished: {len(r.evaluation)} of {r.evaluation.expected_samples} samples so far"
        for r in runs
        if not r.evaluation.complete
    ]
    notes += dict.fromkeys(f"{r.title}: {text}" for r in same for text in r.evaluation.warnings)
    rows = _rows(main, same)
    return Report(
        title=title or TITLE,
        runs=runs,
        main=main,
        verdict=Verdict.of(main.evaluation) if main.evaluation.alone is not None else None,
        rows=rows,
        members=_members(main),
        matrices=[matrix for run in same if (matrix := _matrix(run)) is not None],
        decided=_decided(main),
        reached=_reached(same),
        curves=curves(runs),
        rescoring=rescoring(main, runs, ROLES),
        gallery=pictures,
        sections=list(sections),
        notes=notes,
        commands=[c for c in (command, *(run.command(ensemble) for run in same)) if c],
    )


def _main(runs: list[Run]) -> Run:
    """With a floor before without, then the most samples, then what most runs are about (where sweeps meet)."""
    problems = [run.problem for run in runs]
    return max(
        runs, key=lambda run: (run.evaluation.alone is not None, len(run.evaluation), problems.count(run.problem))
    )


def _rows(main: Run, same: list[Run]) -> list[Row]:
    evaluation = main.evaluation
    attacks: dict[str, tuple[Estimate, str]] = {}
    for run in same:
        attacks[_unique(run.title, attacks)] = (run.evaluation.robust, SAYS.get(run.title, "an attack"))
    for stage, title in STAGES.items():
        if title not in attacks and stage in evaluation.stages:
            attacks[title] = (evaluation.stage_accuracies[stage], SAYS[title])
    lowest = min(found.value for found, _ in attacks.values())
    names = sorted(attacks, key=place)
    rows = [Row("Clean", "clean", "no attack", evaluation.clean)]
    if evaluation.alone is not None:
        best, found = best_member(main)
        rows.append(Row(BEST, "best", f"alpha = 1 on member {best + 1}", found))
    for name in names:
        found, says = attacks[name]
        rows.append(Row(name, ROLES.get(name, "other"), says, found, 100 * (found.value - lowest)))
    if evaluation.floor_scores is not None:
        says = "as far as attacks on each member can tell"
        rows.append(Row("Floor", "floor", says, estimate(evaluation.floor_scores)))
    return rows


SAYS = {
    "PGD": "on one member, drawn at random",
    "AdaptivePGD": "the usual test: expected loss",
    "ARC": "the paper's: member by member",
    "Tight": "stage after stage towards the floor",
    "ARC, corrected": "ARC with the distance that its proof needs",
    "AutoPGD": "PGD that chooses its own step",
    "Climb": "adds one fooled member after another",
}


def _unique(name: str, taken: Json) -> str:
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name} ({number})", number + 1
    return unique


def file_names(kind: str, things: Sequence[str]) -> list[str]:
    """A file name for each thing of a kind, numbered by place where several would share one."""
    names = [f"{kind}_{thing}" if thing else kind for thing in things]
    return [name if names.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(names, 1)]


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
    cross = run.evaluation.cross_robustness
    if cross is None or run.attack.get("class") != "RandomAttacker":
        return None
    order = sorted(range(len(run.alpha)), key=lambda i: -run.alpha[i])  # as the attacker visits them
    columns = [i for i in order if run.alpha[i] > 0]
    by_member = np.argsort(columns)
    return Matrix(run.title, cross[:, by_member].tolist(), [columns[k] for k in by_member])


def _decided(main: Run) -> list[Bar]:
    counts = main.evaluation.to_json()["decided_by"]
    total = max(1, len(main.evaluation))
    return [
        Bar(STAGE_TITLES.get(name, name), ROLES.get(STAGES.get(name, ""), "tight"), n, n / total)
        for name, n in counts.items()
        if n
    ]


def _reached(same: list[Run]) -> list[Bar]:
    """Only over runs on the very same samples."""
    index = same[0].evaluation.records.index
    scores: dict[str, np.ndarray] = {}
    # An attacker that draws, too, has no single input to compare.
    alike = [r.evaluation for r in same if len(r.evaluation.weights) == 1]
    alike = [e for e in alike if np.array_equal(e.records.index, index)]
    for run in same:
        if any(run.evaluation is evaluation for evaluation in alike):
            scores[_unique(run.title, scores)] = run.evaluation.robust_scores
    for evaluation in alike:
        for stage, title in STAGES.items():
            if stage in evaluation.stages and title not in scores:
                scores[title] = evaluation.score(evaluation.stages[stage])
    if len(scores) < 2:
        return []
    worst = np.min(np.stack(list(scores.values())), axis=0)
    hits = {name: int((scores[name] <= worst).sum()) for name in sorted(scores, key=place)}
    return [Bar(name, ROLES.get(name, "other"), n, n / len(worst)) for name, n in hits.items()]
