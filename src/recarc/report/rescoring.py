"""Other sampling probabilities without another attack: what the saved patterns say about them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recarc.evaluation.fingerprint import Json
from recarc.report.curves import attacked_alone
from recarc.report.runs import Run, place


@dataclass(frozen=True)
class Line:
    """One attack's inputs under any alpha: the score is linear in it, alpha . right."""

    name: str
    role: str
    right: list[float]  # (M,) share of samples on which each member is right

    def at(self, alpha: Sequence[float]) -> float:
        return float(np.dot(alpha, self.right))


@dataclass(frozen=True)
class Rescoring:
    """The bracket at any alpha: a floor, and upper bounds from perturbations that were aimed at another alpha."""

    alpha: list[float]
    samples: int
    lines: list[Line]  # clean, one an attack, the floor
    groups: list[tuple[int, list[int]]]  # (samples, bit masks of right members): the minimal patterns found for them

    @property
    def members(self) -> int:
        return len(self.alpha)

    def worst(self, alpha: Sequence[float]) -> float:
        """Mean over the samples of the lowest score among all patterns that were found for each."""
        scores = [sum(a for i, a in enumerate(alpha) if mask >> i & 1) for mask in range(1 << self.members)]
        return sum(count * min(scores[mask] for mask in masks) for count, masks in self.groups) / self.samples

    def to_json(self) -> Json:
        lines = [{"name": x.name, "role": x.role, "right": x.right} for x in self.lines]
        return {"alpha": self.alpha, "samples": self.samples, "lines": lines, "groups": self.groups}


def rescoring(main: Run, runs: Sequence[Run], roles: dict[str, str]) -> Rescoring | None:
    """From the runs on the main run's problem; patterns also from its neighbours at other alphas. None for M = 1."""
    members = len(main.alpha)
    if members < 2 or members > 16:
        return None
    lines = [_line("Clean", "clean", (main.evaluation.clean_predictions == main.evaluation.labels)[None], np.ones(1))]
    same = sorted((run for run in runs if run.problem == main.problem), key=lambda run: place(run.title))
    for run in same:
        name = run.title if [r.title for r in same].count(run.title) == 1 else f"{run.title} ({run.name})"
        evaluation = run.evaluation
        bits = evaluation.adversarial_predictions == evaluation.labels
        lines.append(_line(name, roles.get(run.title, "other"), bits, evaluation.weights))
    if main.evaluation.alone is not None:
        lines.append(_line("Floor", "floor", attacked_alone(main)[None], np.ones(1)))
    index = main.evaluation.records.index
    neighbours = [r for r in runs if r.geometry == main.geometry and np.array_equal(r.evaluation.records.index, index)]
    return Rescoring(main.alpha, len(main.evaluation), lines, _groups(_masks(neighbours), len(main.evaluation)))


def _line(name: str, role: str, bits: np.ndarray, weights: np.ndarray) -> Line:
    """`bits` (J, M, N) with the attacker's weights (J,)."""
    return Line(name, role, np.tensordot(weights, bits.mean(2), axes=1).tolist())


def _masks(runs: Iterable[Run]) -> list[np.ndarray]:
    """(N,) masks of the members that are right, one array a perturbation: clean, every stage, every input."""
    found: list[np.ndarray] = []
    for run in runs:
        evaluation = run.evaluation
        for predictions in (
            evaluation.clean_predictions,
            *evaluation.stages.values(),
            *evaluation.adversarial_predictions,
        ):
            bits = (predictions == evaluation.labels).astype(np.int64)
            found.append((bits << np.arange(len(bits))[:, None]).sum(0))
    return found


def _groups(masks: list[np.ndarray], samples: int) -> list[tuple[int, list[int]]]:
    table = np.stack(masks)
    counts = Counter(_minimal(set(table[:, n].tolist())) for n in range(samples))
    return [(count, list(group)) for group, count in sorted(counts.items())]


def _minimal(masks: set[int]) -> tuple[int, ...]:
    """Without patterns that leave more members right than another one does: they are never the worst."""
    return tuple(sorted(m for m in masks if not any(other != m and other & m == other for other in masks)))
