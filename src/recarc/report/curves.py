"""Robust accuracy against alpha, eps, steps, planes or size, found from what differs between runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from recarc.evaluation.fingerprint import Json, canonical, eps_text
from recarc.evaluation.result import Estimate, estimate
from recarc.report.runs import BEST_MEMBER, PALETTE, Run, attack_stages, numbered, position, role

AXES = {
    "alpha": "sampling probability of the first member",
    "eps": "radius eps",
    "steps": "iterations K",
    "planes": "planes G",
    "size": "members M",
}
KNOBS = ("steps", "planes")  # axes that belong to the attack, not to the problem


@dataclass(frozen=True)
class Point:
    x: float
    estimate: Estimate


@dataclass
class Series:
    name: str
    points: list[Point] = field(default_factory=list)
    constant: bool = False  # an attack that does not have this knob: a horizontal line
    colour: str = ""  # its role, if that does not follow from the name

    @property
    def role(self) -> str:
        return self.colour or role(self.name)

    def at(self, x: float) -> Estimate | None:
        """The estimate at a value of the axis."""
        if self.constant:
            return self.points[0].estimate
        return next((point.estimate for point in self.points if point.x == x), None)


@dataclass(frozen=True)
class Curve:
    """One plot."""

    axis: str
    label: str
    about: str
    series: list[Series]
    runs: list[Run] = field(default_factory=list)

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for series in self.series for point in series.points if not series.constant})

    @property
    def logarithmic(self) -> bool:
        return self.axis == "steps" and self.xs[-1] / self.xs[0] >= 8

    def text(self, x: float) -> str:
        """A value of the axis as people write it."""
        return eps_text(x) if self.axis == "eps" else f"{x:g}"


def curves(runs: Sequence[Run]) -> list[Curve]:
    """One for every axis along which at least two runs of one attack differ and nothing else does."""
    problems = [(axis, group) for axis in AXES for group in _grouped(runs, _rest, axis)]
    found = [curve for axis, group in problems if (curve := _curve(axis, group)) is not None]
    return [*_side_by_side(found), *found]


def _side_by_side(found: Sequence[Curve]) -> list[Curve]:
    """Where several ensembles were swept alike: one more plot with the strongest attack on each."""
    groups: dict[str, list[Curve]] = {}
    for curve in found:
        first = curve.runs[0]
        ball = {key: value for key, value in first.ball.items() if not (curve.axis == "eps" and key == "eps")}
        groups.setdefault(canonical([curve.axis, ball, first.data]), []).append(curve)
    drawn = []
    for group in (group for group in groups.values() if len({curve.runs[0].subject for curve in group}) > 1):
        series = numbered((curve.runs[0].subject, _strongest(curve)) for curve in group)
        coloured = [
            Series(f"{name}, {one.name}", one.points, one.constant, PALETTE[k % len(PALETTE)])
            for k, (name, one) in enumerate(series.items())
        ]
        first = group[0].runs[0]
        about = ", ".join([first.data_text, *([] if group[0].axis == "eps" else [first.ball_text])])
        runs = [run for curve in group for run in curve.runs]
        drawn.append(Curve(group[0].axis, group[0].label, about, coloured, runs))
    return drawn


def _strongest(curve: Curve) -> Series:
    attacks = {run.label for run in curve.runs}
    return min(
        (series for series in curve.series if series.name in attacks),
        key=lambda series: float(np.mean([point.estimate.value for point in series.points])),
    )


def _grouped(runs: Iterable[Run], key: Callable[[Run, str], str], axis: str) -> list[list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run, axis), []).append(run)
    return list(groups.values())


def _rest(run: Run, axis: str) -> str:
    """The problem without what the axis changes; equal for all points of a sweep."""
    ignored = {"alpha": ("alpha",), "size": ("alpha", "members")}.get(axis, ())
    config: Json = {key: run.configuration.get(key) for key in ("alpha", "members", "data", "precision")}
    if axis == "size":  # the first members of one ensemble
        config["first"] = (config["members"] or [None])[0]
    ball = {key: value for key, value in run.ball.items() if not (axis == "eps" and key == "eps")}
    return canonical({"ball": ball} | {key: value for key, value in config.items() if key not in ignored})


def _other_knobs(run: Run, axis: str) -> str:
    return canonical({key: value for key, value in run.attack.items() if key != axis})


def _value(run: Run, axis: str) -> float | None:
    """Where a run lies on the axis; None for an attack that does not have this knob."""
    if axis == "alpha":
        return run.alpha[0]
    if axis == "eps":
        return run.eps
    if axis == "size":
        return float(len(run.alpha))
    value = run.attack.get(axis)
    return float(value) if isinstance(value, (int, float)) else None


def _curve(axis: str, group: list[Run]) -> Curve | None:
    attacks = _grouped(group, _other_knobs, axis)
    moving = [runs for runs in attacks if len({_value(run, axis) for run in runs} - {None}) > 1]
    if not moving:
        return None
    # Along a knob, attacks that do not have it are horizontal lines; a single point elsewhere is no curve.
    constant = [runs for runs in attacks if axis in KNOBS and _value(runs[0], axis) is None]
    series: dict[str, Series] = {}
    for runs in [*moving, *constant]:
        for run in runs:
            _add(series, _value(run, axis), {run.label: run.evaluation.robust})
    attacked = set(series)
    for runs in moving:
        for run in runs:
            implied = {name: figure for name, figure in implied_figures(run).items() if name not in attacked}
            _add(series, _value(run, axis), implied)
    xs = sorted(x for runs in moving for run in runs if (x := _value(run, axis)) is not None)
    for one in series.values():
        one.points.sort(key=lambda point: point.x)
        if one.constant:
            one.points = [Point(x, one.points[0].estimate) for x in (xs[0], xs[-1])]
    shown = [run for runs in [*moving, *constant] for run in runs]
    first = shown[0]
    label = f"{AXES[axis]} ({first.ball.get('norm')})" if axis == "eps" else AXES[axis]
    ordered = sorted(series.values(), key=lambda s: position(s.name))
    return Curve(axis, label, _about(first, axis), ordered, shown)


def _add(series: dict[str, Series], x: float | None, figures: dict[str, Estimate]) -> None:
    """Add the figures of one run at x; the first run at a point counts."""
    for name, figure in figures.items():
        one = series.setdefault(name, Series(name, constant=x is None))
        if x is None and not one.points:
            one.points.append(Point(math.nan, figure))
        elif x is not None and one.at(x) is None:
            one.points.append(Point(x, figure))


def implied_figures(run: Run) -> dict[str, Estimate]:
    """What a run says beside its own figure: clean, AdaptivePGD and ARC alone, its floor, its best member."""
    evaluation = run.evaluation
    figures = {"Clean": evaluation.clean}
    stages = evaluation.stage_accuracies
    figures |= {label: stages[stage] for stage, label in attack_stages(stages).items()}
    if evaluation.alone is not None and evaluation.floor_scores is not None:
        figures["Floor"] = estimate(evaluation.floor_scores)
        figures[BEST_MEMBER] = best_member(run)[1]
    return figures


def best_member(run: Run) -> tuple[int, Estimate]:
    """The member that is most robust when attacked alone: what alpha = 1 on it would keep."""
    robust = robust_alone(run)
    best = int(robust.mean(1).argmax())
    return best, estimate(robust[best].astype(float))


def robust_alone(run: Run) -> np.ndarray:
    """(M, N) who withstands alone. Members with alpha 0 were not attacked, so nothing is claimed of them."""
    evaluation = run.evaluation
    assert evaluation.alone is not None
    return evaluation.alone & (evaluation.alpha > 0)[:, None]


def _about(run: Run, axis: str) -> str:
    parts = [run.subject, run.data_text]
    if axis != "eps" and run.eps is not None:
        parts.append(run.ball_text)
    if axis not in ("alpha", "size"):
        parts.append(f"alpha {run.alpha_text}")
    return ", ".join(parts)
