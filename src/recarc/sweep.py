"""Sweeps: the same evaluation along one parameter, every point a run folder, nothing computed twice."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.evaluation.engine import evaluate
from recarc.evaluation.result import Estimate, Evaluation, estimate
from recarc.evaluation.run_folder import RUN, RunFolder, write_all
from recarc.geometry import Ball

AXES = ("alpha", "eps", "steps", "planes", "size")
FILE = "sweep.json"


@dataclass(frozen=True)
class Cell:
    """One attack at one value; `run` is the folder it was read from, `stage` the stage of it (empty: its result)."""

    value: float
    attack: str
    estimate: Estimate
    run: Path
    stage: str = ""


@dataclass(frozen=True)
class Sweep:
    """The figures of a sweep, in the order of its values."""

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
            found = {c.attack: c for c in self.cells if c.value == value}
            figures = {n: {"robust_accuracy": c.estimate.value, "interval": _interval(c)} for n, c in found.items()}
            points.append({"value": value, "attacks": figures})
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
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Sweep:
    """Evaluate every attack at every value of `over`; the same call goes on where it stopped.

    alpha: probability of the first member, the others share the rest in their own proportion. size: the first M
    members, equiprobable. planes and steps are set on the attacks that have them. What is shared: an attack without
    the knob is run once; with a staged attack (Tight) in the list, the figures of attacks that are exactly its first
    stages (adaptive_pgd, arc with its steps and planes) are read off its records. `options` go to `evaluate`.
    """
    points = checked_values(ensemble, attacks, ball, over, values)
    folder = Path(out)
    cells: list[Cell] = []
    for value in points:
        rec, there = _problem(ensemble, ball, over, value)
        staged: Evaluation | None = None
        contained: Mapping[str, Any] = {}
        for name, attack in _staged_first(attacks):
            changed = _changed(attack, over, value)
            if staged is not None and contained.get(name) == changed and not _alone(over, attacks, name):
                cells.append(Cell(value, name, staged.stage_accuracies[name], _path(staged), name))
                continue
            own = over not in ("steps", "planes") or changed is not attack
            place = _place(folder, over, value, name) if own else folder / "shared" / name
            if tell is not None:
                tell(f"{over} {value:g}, {name}")
            result = evaluate(rec, changed, data, there, out=place, **options)
            cells.append(Cell(value, name, result.robust, place))
            if result.stages:
                staged, contained = result, getattr(changed, "plain_stages", dict)()
            if result.floor_scores is not None:
                cells.append(Cell(value, "floor", estimate(result.floor_scores), place, "floor"))
    order = [*attacks, "floor"]
    cells.sort(key=lambda cell: (points.index(cell.value), order.index(cell.attack)))
    found = Sweep(over, points, cells, folder)
    write_all({folder / FILE: json.dumps(found.to_json(), indent=2).encode()})
    return found


def checked_values(
    ensemble: RandomizedEnsemble, attacks: Mapping[str, Any], ball: Ball, over: str, values: Sequence[float]
) -> list[float]:
    """Refuses a point that cannot be evaluated before the first one is."""
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
        return RandomizedEnsemble(ensemble.members[: int(value)]), ball
    if over == "alpha":
        return ensemble.with_alpha(first_with(value, ensemble.alpha.tolist())), ball
    return ensemble, ball


def first_with(value: float, alpha: Sequence[float]) -> list[float]:
    """The probabilities in which the first member has this one and the others keep their proportion."""
    if len(alpha) < 2:
        raise InputError("an ensemble of one member has no alpha to sweep")
    if not 0 <= value <= 1:
        raise InputError(f"alpha {value:g} is not a probability; expected values in [0, 1]")
    rest = sum(alpha[1:])
    shares = [a / rest for a in alpha[1:]] if rest > 0 else [1 / (len(alpha) - 1)] * (len(alpha) - 1)
    return [value, *(round((1 - value) * share, 12) for share in shares)]  # 0.3, not 0.30000000000000004


def _place(folder: Path, over: str, value: float, name: str) -> Path:
    """The run folder of a point: its value to the last digit, or six digits where an older version made that run."""
    exact, short = (folder / f"{over}={text}" / name for text in (_exactly(value), f"{value:g}"))
    return short if exact != short and not exact.exists() and _holds(short, over, value) else exact


def _exactly(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


def _holds(run: Path, over: str, value: float) -> bool:
    if not (run / RUN).exists():
        return False
    told = RunFolder.open(run).configuration
    found = {"eps": told["ball"]["eps"], "alpha": told["alpha"][0]}.get(over)
    return isinstance(found, float) and abs(found - value) <= 1e-12


def _has(attack: Any, knob: str) -> bool:
    inner = getattr(attack, "attack", attack)
    return dataclasses.is_dataclass(inner) and knob in {f.name for f in dataclasses.fields(inner)}


def _changed(attack: Any, over: str, value: float) -> Any:
    """The attack with the knob set to this value; itself where it has no such knob."""
    if over not in ("steps", "planes") or not _has(attack, over):
        return attack
    inner = getattr(attack, "attack", None)
    if inner is not None:
        return dataclasses.replace(attack, attack=_changed(inner, over, value))
    return dataclasses.replace(attack, **{over: int(value)})


def _staged_first(attacks: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(attacks.items(), key=lambda item: not hasattr(item[1], "preset"))


def _alone(over: str, attacks: Mapping[str, Any], name: str) -> bool:
    """Whether the sweep changes this attack but not the staged one that contains it."""
    staged = next(attack for attack in attacks.values() if hasattr(attack, "preset"))
    return over in ("steps", "planes") and _has(attacks[name], over) and not _has(staged, over)


def _path(result: Evaluation) -> Path:
    assert result.path is not None
    return result.path


def _interval(cell: Cell) -> list[float]:
    return [cell.estimate.low, cell.estimate.high]
