"""What the saved perturbations say about other sampling probabilities, without another attack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from recarc.evaluation.fingerprint import Json
from recarc.report.curves import robust_alone
from recarc.report.runs import Run, numbered, role


@dataclass(frozen=True)
class Line:
    """One attack's inputs at any alpha: the accuracy is linear in it, alpha . right."""

    name: str
    role: str
    right: list[float]  # (M,) share of samples on which each member is right

    def at(self, alpha: Sequence[float]) -> float:
        return float(np.dot(alpha, self.right))


@dataclass(frozen=True)
class Rescoring:
    """Bounds at any alpha: the floor below, and above it perturbations that were optimised for another alpha."""

    alpha: list[float]
    samples: int
    lines: list[Line]  # clean, one per attack, the floor
    groups: list[tuple[int, list[int]]]  # (samples, their minimal patterns as bit masks of the members that are right)

    @property
    def members(self) -> int:
        return len(self.alpha)

    def worst(self, alpha: Sequence[float]) -> float:
        """The mean over samples of the lowest expected accuracy among all patterns found for each."""
        scores = [sum(a for i, a in enumerate(alpha) if mask >> i & 1) for mask in range(1 << self.members)]
        return sum(count * min(scores[mask] for mask in masks) for count, masks in self.groups) / self.samples

    def to_json(self) -> Json:
        lines = [{"name": x.name, "role": x.role, "right": x.right} for x in self.lines]
        return {"alpha": self.alpha, "samples": self.samples, "lines": lines, "groups": self.groups}


def rescoring(main: Run, comparable: Sequence[Run], runs: Sequence[Run]) -> Rescoring | None:
    """From the runs on the main run's problem; patterns also from `runs` at other alphas. None for M = 1 or M > 16."""
    if not 2 <= len(main.alpha) <= 16:
        return None
    evaluation = main.evaluation
    lines = [_line("Clean", "clean", (evaluation.clean_predictions == evaluation.labels)[None], np.ones(1))]
    for name, run in numbered((run.label, run) for run in comparable).items():
        right = run.evaluation.adversarial_predictions == run.evaluation.labels
        lines.append(_line(name, role(run.label), right, run.evaluation.weights))
    if evaluation.alone is not None:
        lines.append(_line("Floor", "floor", robust_alone(main)[None], np.ones(1)))
    index = evaluation.records.index
    related = [r for r in runs if r.geometry == main.geometry and np.array_equal(r.evaluation.records.index, index)]
    return Rescoring(main.alpha, len(evaluation), lines, _groups(_masks(related), len(evaluation)))


def _line(name: str, role: str, right: np.ndarray, weights: np.ndarray) -> Line:
    """`right` (J, M, N) with the attacker's weights (J,)."""
    return Line(name, role, np.tensordot(weights, right.mean(2), axes=1).tolist())


def _masks(runs: Iterable[Run]) -> list[np.ndarray]:
    """(N,) bit masks of the members that are right, one array per point: clean, every stage, every input."""
    masks: list[np.ndarray] = []
    for run in runs:
        e = run.evaluation
        for predictions in (e.clean_predictions, *e.stages.values(), *e.adversarial_predictions):
            bits = (predictions == e.labels).astype(np.int64)
            masks.append((bits << np.arange(len(bits))[:, None]).sum(0))
    return masks


def _groups(masks: list[np.ndarray], samples: int) -> list[tuple[int, list[int]]]:
    table = np.stack(masks)
    counts = Counter(_minimal(set(table[:, n].tolist())) for n in range(samples))
    return [(count, list(group)) for group, count in sorted(counts.items())]


def _minimal(masks: set[int]) -> tuple[int, ...]:
    """Drop patterns in which a superset of another one's members is right: they are never the worst."""
    return tuple(sorted(m for m in masks if not any(other != m and other & m == other for other in masks)))
