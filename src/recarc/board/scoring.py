"""A row of the board from the records of a run: an ensemble, its members and their rivals under a tight attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recarc.board.rows import Json, Row, packed
from recarc.errors import InputError
from recarc.evaluation.intervals import paired_interval
from recarc.evaluation.result import Estimate, Evaluation
from recarc.evaluation.verdict import Verdict
from recarc.report.runs import Run
from recarc.sampling import most_gain

POINTS = 21  # of a curve over alpha


def row_of(run: Run, method: str, **known: Any) -> Row:
    """The row of a tight run; `known`: flops, minutes, provenance. A certificate handed in with it is not believed."""
    evaluation = replace(run.evaluation, certification=None)
    alone, floors = evaluation.alone, evaluation.floor_scores
    if alone is None or floors is None:
        raise InputError(f"{run.name} attacked no member alone; a row needs a run of --attack tight")
    drawn = evaluation.alpha > 0  # nothing attacks the others
    attacked = np.where(drawn[:, None], alone, False)
    best = best_of(evaluation)
    seen = patterns(evaluation)
    seen_of_drawn = [fooled[drawn] for fooled in seen]
    most = most_gain(int(drawn[:best].sum()), seen_of_drawn)
    stages = evaluation.stage_accuracies
    gains = evaluation.robust_scores - attacked[best]
    gain = Estimate(float(gains.mean()), *((0.0, 0.0) if len(evaluation.alpha) == 1 else paired_interval(gains)))
    return Row(
        method=method,
        norm=str(run.ball["norm"]),
        eps=float(run.eps or math.nan),
        members=len(evaluation.alpha),
        alpha=run.alpha,
        samples=len(evaluation),
        clean=evaluation.clean_accuracy,
        adaptive_pgd=stages["adaptive_pgd"].value,
        arc=stages["arc"].value,
        tight=_json(evaluation.robust),
        floor=float(floors.mean()),
        verdict="conclusive" if Verdict.of(evaluation).conclusive else "open",
        best_member=float(attacked[best].mean()),
        gain=_json(gain),
        gain_at_floor=float((floors - attacked[best]).mean()),
        most=max(0.0, most.value),
        most_ends=[most.low, max(0.0, most.high)],
        joint=_joint(seen_of_drawn) if drawn.sum() == 2 else None,
        alone=alone.mean(1).tolist(),
        curve=curve_over_alpha(seen, alone, run.alpha, best),
        kept=packed(evaluation.adversarial_predictions[0] == evaluation.labels),
        kept_alone=packed(alone),
        signals=sorted({signal.name for signal in evaluation.signals}),
        **known,
    )


def best_of(evaluation: Evaluation) -> int:
    """The member that keeps most alone, of those that are drawn."""
    assert evaluation.alone is not None
    return int(np.where(evaluation.alpha > 0, evaluation.alone.mean(1), -1.0).argmax())


def patterns(evaluation: Evaluation) -> list[np.ndarray]:
    """(M, N) each: who is fooled at every point that the run kept, and each member that was fooled alone."""
    points = _points(evaluation)
    seen = [predictions != evaluation.labels for predictions in points]
    if evaluation.alone is not None:
        for i, bits in enumerate(evaluation.alone):
            only = np.zeros_like(evaluation.alone)
            only[i] = ~bits
            seen.append(only)
    return seen


def curve_over_alpha(
    seen: Sequence[np.ndarray], alone: np.ndarray, alpha: Sequence[float], best: int
) -> list[list[float]]:
    """(t, accuracy at the points found, floor) as the best member's probability t goes from 0 to 1.

    The other members keep their proportions. No more than the accuracy, as other points may be worse at another alpha.
    """
    if len(alpha) == 1:
        return []
    others = np.array(alpha, dtype=float)
    others[best] = 0.0
    if not others.any():  # the best member was the only one drawn
        others = np.ones_like(others)
        others[best] = 0.0
    curve = []
    for t in np.linspace(0, 1, POINTS):
        weights = (1 - t) * others / others.sum()
        weights[best] = t
        error = np.max([weights @ pattern for pattern in seen], axis=0).mean()
        curve.append([float(t), float(1 - error), float(weights @ alone.mean(1))])
    return curve


def _points(evaluation: Evaluation) -> Sequence[np.ndarray]:
    return [evaluation.clean_predictions, *evaluation.stages.values(), *evaluation.adversarial_predictions]


def _joint(seen: Sequence[np.ndarray]) -> float:
    """P(R): both members were fooled somewhere, but never at one point."""
    alone, both = np.any(seen, axis=0).all(0), np.any([pattern.all(0) for pattern in seen], axis=0)
    return float((alone & ~both).mean())


def _json(figure: Estimate) -> Json:
    return {"value": figure.value, "low": figure.low, "high": figure.high}
