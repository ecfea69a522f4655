"""Sweeps: the same evaluation along one parameter, one run folder per point, nothing computed twice."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.ensemble import RandomizedEnsemble, rounded
from recarc.errors import InputError, unknown
from recarc.evaluation.engine import evaluate
from recarc.evaluation.prepare import check_radii
from recarc.evaluation.result import Estimate, Evaluation, estimate
from recarc.evaluation.run_folder import write_all
from recarc.evaluation.samples import as_samples
from recarc.geometry import Ball

AXES = ("alpha", "eps", "steps", "planes", "size")
FILE = "sweep.json"


@dataclass(frozen=True)
class Cell:
    """One attack at one value, read from a run folder; `stage` if it is a stage of that run, else empty."""

    value: float
    attack: str
    estimate: Estimate
    run: Path
    stage: str = ""


@dataclass(frozen=True)
class Sweep:
    """The results of a sweep, in the order of its values."""

    over: str
    values: list[float]
    cells: list[Cell]
    path: Path

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.attack for cell in self.cells))

    def at(self, value: float, attack: str) -> Cell | None:
        return next((c for c in self.cells if c.value == value and c.attack == attack), None)

    def to_json(self) -> dict[str, Any]:
        points = []
        for value in self.values:
            estimates = {cell.attack: cell.estimate for cell in self.cells if cell.value == value}
            results = {k: {"robust_accuracy": e.value, "interval": [e.low, e.high]} for k, e in estimates.items()}
            points.append({"value": value, "attacks": results})
        return {"over": self.over, "values": self.values, "points": points}


def sweep(
    ensemble: RandomizedEnsemble,
    attacks: Mapping[str, Any],
    data: Any,
    ball: Ball,
    over: str,
    values: Sequence[float],
    out: str | Path,
    *,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> Sweep:
    """Evaluate every attack at every value of `over`; the same call resumes where it stopped.

    alpha: probability of the first member; the others share the rest in proportion. size: the first M members,
    equiprobable. steps and planes are set on the attacks that have them. Work is shared: an attack without the knob
    runs once, and if a staged attack (Tight) is in the list, attacks that are exactly its first stages (adaptive_pgd,
    arc with its steps and planes) are read off its records. `say` is given a line before each run, and `options` go
    to `evaluate`.
    """
    points = checked_values(ensemble, attacks, ball, over, values)
    samples, folder = as_samples(data), Path(out)
    for value in points:
        check_radii(_problem(ensemble, ball, over, value)[1], len(samples), samples.batch(np.arange(1))[0])
    cells: list[Cell] = []
    for value in points:
        rec, its_ball = _problem(ensemble, ball, over, value)
        staged: Evaluation | None = None
        container: Any = None  # the attack of that run, and those that are exactly its stages
        contained: Mapping[str, Any] = {}
        for name, attack in _staged_first(attacks):
            changed = _with_knob(attack, over, value)
            if staged is not None and contained.get(name) == changed and not _varies_alone(over, attack, container):
                assert staged.path is not None
                cells.append(Cell(value, name, staged.stage_accuracies[name], staged.path, name))
                continue
            varies = over not in ("steps", "planes") or changed is not attack
            run = folder / (f"{over}={_exact(value)}" if varies else "shared") / name
            if say is not None:
                say(f"{over} {value:g}, {name}")
            result = evaluate(rec, changed, samples, its_ball, out=run, **options)
            cells.append(Cell(value, name, result.robust, run))
            if result.stages and hasattr(changed, "plain_stages"):
                staged, container, contained = result, attack, changed.plain_stages()
            if result.floor_scores is not None:
                cells.append(Cell(value, "floor", estimate(result.floor_scores), run, "floor"))
    order = [*attacks, "floor"]
    cells.sort(key=lambda cell: (points.index(cell.value), order.index(cell.attack)))
    swept = Sweep(over, points, cells, folder)
    write_all({folder / FILE: json.dumps(swept.to_json(), indent=2).encode()})
    return swept


def checked_values(
    ensemble: RandomizedEnsemble, attacks: Mapping[str, Any], ball: Ball, over: str, values: Sequence[float]
) -> list[float]:
    """The values without repetition; refuses one that cannot be evaluated, before the first one is."""
    if over not in AXES:
        raise unknown("sweep parameter", over, AXES)
    if not attacks:
        raise InputError("a sweep needs at least one attack")
    if not values:
        raise InputError("a sweep needs at least one value")
    points = list(dict.fromkeys(float(v) for v in values))
    if over in ("steps", "planes", "size"):
        bad = [v for v in points if v != int(v) or v < 1]
        if bad:
            raise InputError(f"{over} {bad[0]:g} is not a whole number of at least 1")
    if over in ("steps", "planes") and not any(_has(attack, over) for attack in attacks.values()):
        raise InputError(f"none of the attacks {', '.join(attacks)} has {over}; nothing would change")
    if over == "size" and max(points) > len(ensemble):
        raise InputError(f"size {max(points):g} is more than the {len(ensemble)} members of the ensemble")
    for value in points:
        _problem(ensemble, ball, over, value)
    return points


def _problem(ensemble: RandomizedEnsemble, ball: Ball, over: str, value: float) -> tuple[RandomizedEnsemble, Ball]:
    if over == "eps":
        return ensemble, Ball(ball.norm, value, ball.box)
    if over == "size":
        return RandomizedEnsemble(ensemble.members[: int(value)], made_by=ensemble.made_by), ball
    if over == "alpha":
        return ensemble.with_alpha(first_with(value, ensemble.alpha.tolist())), ball
    return ensemble, ball


def first_with(value: float, alpha: Sequence[float]) -> list[float]:
    """Probabilities with this value for the first member and the others in their old proportion."""
    if len(alpha) < 2:
        raise InputError("an ensemble of one member has no alpha to sweep")
    if not 0 <= value <= 1:
        raise InputError(f"alpha {value:g} is not a probability; expected values in [0, 1]")
    rest = sum(alpha[1:])
    shares = [a / rest for a in alpha[1:]] if rest > 0 else [1 / (len(alpha) - 1)] * (len(alpha) - 1)
    return [value, *(rounded((1 - value) * share) for share in shares)]


def _exact(value: float) -> str:
    """Six digits if they are exact, else all of them: values that differ have folders that differ."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _has(attack: Any, knob: str) -> bool:
    inner = getattr(attack, "attack", attack)
    return dataclasses.is_dataclass(inner) and knob in {f.name for f in dataclasses.fields(inner)}


def _with_knob(attack: Any, over: str, value: float) -> Any:
    """The attack with the knob set to this value; itself if it has no such knob."""
    if over not in ("steps", "planes") or not _has(attack, over):
        return attack
    inner = getattr(attack, "attack", None)
    if inner is not None:
        return dataclasses.replace(attack, attack=_with_knob(inner, over, value))
    return dataclasses.replace(attack, **{over: int(value)})


def _staged_first(attacks: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(attacks.items(), key=lambda item: not hasattr(item[1], "plain_stages"))


def _varies_alone(over: str, attack: Any, container: Any) -> bool:
    """Whether the sweep changes this attack but not the staged one that contains it."""
    return over in ("steps", "planes") and _has(attack, over) and not _has(container, over)
