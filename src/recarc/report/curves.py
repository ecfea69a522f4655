"""Robust accuracy against alpha, eps, steps, planes or size: found from what differs between runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from recarc.evaluation.fingerprint import Json, canonical, eps_text
from recarc.evaluation.result import Estimate, estimate
from recarc.report.runs import Run

ROLES = {"Clean": "clean", "AdaptivePGD": "adaptive", "ARC": "arc", "Tight": "tight", "PGD": "pgd", "Floor": "floor"}
STAGES = {"adaptive_pgd": "AdaptivePGD", "arc": "ARC"}
BEST = "Best member alone"
ORDER = ("Clean", "PGD", "AdaptivePGD", "ARC", "Tight", "Floor", BEST)
AXES = {
    "alpha": "sampling probability of the first member",
    "eps": "radius eps",
    "steps": "iterations K",
    "planes": "planes G",
    "size": "members M",
}


@dataclass(frozen=True)
class Point:
    x: float
    estimate: Estimate


@dataclass
class Series:
    name: str
    role: str
    points: list[Point] = field(default_factory=list)
    constant: bool = False  # an attack without this knob


@dataclass(frozen=True)
class Curve:
    """One plot."""

    axis: str
    label: str
    about: str
    series: list[Series]

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for series in self.series for point in series.points if not series.constant})

    @property
    def logarithmic(self) -> bool:
        return self.axis in ("steps",) and self.xs[-1] / self.xs[0] >= 8

    def text(self, x: float) -> str:
        """A value of the axis as people write it."""
        return eps_text(x) if self.axis == "eps" else f"{x:g}"


def axis_value(run: Run, axis: str) -> float | None:
    if axis == "alpha":
        return run.alpha[0]
    if axis == "eps":
        return run.eps
    if axis == "size":
        return float(len(run.alpha))
    value = run.attack.get(axis)
    return float(value) if isinstance(value, (int, float)) else None


def _rest(run: Run, axis: str) -> str:
    """The problem without what the axis changes; equal for all points of a sweep."""
    told: Json = {key: run.configuration.get(key) for key in ("ball", "alpha", "members", "data", "precision")}
    if axis == "alpha":
        told.pop("alpha")
    elif axis == "eps":
        told["ball"] = {k: v for k, v in (told["ball"] or {}).items() if k != "eps"}
    elif axis == "size":
        told.pop("alpha")
        told.pop("members")
    return canonical(told)


def _knobs(run: Run, axis: str) -> str:
    return canonical({k: v for k, v in run.attack.items() if k != axis})


def curves(runs: Sequence[Run]) -> list[Curve]:
    """Every axis along which at least two runs of one attack differ and nothing else does."""
    found = []
    for axis in AXES:
        problems: dict[str, list[Run]] = {}
        for run in runs:
            problems.setdefault(_rest(run, axis), []).append(run)
        for group in problems.values():
            curve = _curve(axis, group)
            if curve is not None:
                found.append(curve)
    return found


def _curve(axis: str, group: list[Run]) -> Curve | None:
    attacks: dict[str, list[Run]] = {}
    for run in group:
        attacks.setdefault(_knobs(run, axis), []).append(run)
    moving = [runs for runs in attacks.values() if len({axis_value(run, axis) for run in runs} - {None}) > 1]
    if not moving:
        return None
    # On the axes of a knob, attacks that do not have it are lines across; single points elsewhere are no curve.
    still = [runs for runs in attacks.values() if axis in ("steps", "planes") and axis_value(runs[0], axis) is None]
    series: dict[str, Series] = {}
    for runs in [*moving, *still]:
        _add(series, axis, runs, direct=True)
    for runs in moving:
        _add(series, axis, runs, direct=False)
    xs = sorted(x for runs in moving for run in runs if (x := axis_value(run, axis)) is not None)
    for one in series.values():
        one.points.sort(key=lambda point: point.x)
        if one.constant:
            one.points = [Point(x, one.points[0].estimate) for x in (xs[0], xs[-1])]
    first = moving[0][0]
    return Curve(axis, _label(axis, group), _about(first, axis), _ordered(series))


def _add(series: dict[str, Series], axis: str, runs: list[Run], direct: bool) -> None:
    """The figures of an attack's runs; with direct=False what they say of other attacks, unless those were run."""
    taken = set(series)
    for run in runs:
        x = axis_value(run, axis)
        for name, value in (direct_figures(run) if direct else told_figures(run)).items():
            if not direct and name in taken:
                continue
            one = series.setdefault(name, Series(name, ROLES.get(name, "best" if name == BEST else "other")))
            one.constant = x is None
            if x is None and one.points:
                continue
            if all(point.x != x for point in one.points):
                one.points.append(Point(math.nan if x is None else x, value))


def direct_figures(run: Run) -> dict[str, Estimate]:
    return {run.title: run.evaluation.robust}


def told_figures(run: Run) -> dict[str, Estimate]:
    """What a run says beside its own figure: clean, its first stages, its floor, its best member."""
    evaluation = run.evaluation
    told = {"Clean": evaluation.clean}
    stages = evaluation.stage_accuracies
    told |= {title: stages[name] for name, title in STAGES.items() if name in stages}
    if evaluation.alone is not None and evaluation.floor_scores is not None:
        told["Floor"] = estimate(evaluation.floor_scores)
        told[BEST] = best_member(run)[1]
    return told


def best_member(run: Run) -> tuple[int, Estimate]:
    """The member that withstands most when it is attacked alone: what alpha = 1 on it would keep."""
    alone = attacked_alone(run)
    best = int(alone.mean(1).argmax())
    return best, estimate(alone[best].astype(float))


def attacked_alone(run: Run) -> np.ndarray:
    """(M, N) who withstands alone. A member of alpha 0 was not attacked: nothing is known, so nothing is claimed."""
    evaluation = run.evaluation
    assert evaluation.alone is not None
    return evaluation.alone & (evaluation.alpha > 0)[:, None]


def _ordered(series: dict[str, Series]) -> list[Series]:
    return sorted(series.values(), key=lambda s: ORDER.index(s.name) if s.name in ORDER else len(ORDER))


def _label(axis: str, group: list[Run]) -> str:
    if axis == "eps":
        return f"radius eps ({(group[0].configuration.get('ball') or {}).get('norm')})"
    return AXES[axis]


def _about(run: Run, axis: str) -> str:
    data, ball = run.configuration.get("data") or {}, run.configuration.get("ball") or {}
    parts = [f"{data.get('name')}, {len(run.evaluation):,} samples"]
    if axis != "eps" and run.eps is not None:
        parts.append(f"{ball.get('norm')} eps {eps_text(run.eps)}")
    if axis not in ("alpha", "size"):
        parts.append("alpha " + " / ".join(f"{a:.3g}" for a in run.alpha))
    return ", ".join(parts)
