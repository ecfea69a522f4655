"""The judge believes nothing: all that is recorded follows from points that it checked and predicted itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, problem
from torch import Tensor

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble, Tight, evaluate
from recarc.attacks import Outcome, Problem, Stage
from recarc.errors import AttackViolation
from tiny import cnn, labels_of, points

pytestmark = pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
WIDE = Ball("linf", 0.3)


class Claims:
    """An attack that returns whatever it is told to."""

    def __init__(self, outcome: Callable[[Problem], Outcome]) -> None:
        self.outcome = outcome


def strong(problem: Problem) -> Tensor:
    return ARC(steps=5)(problem.ensemble, problem.x, problem.y, problem.ball)


def at_x(problem: Problem) -> Tensor:
    return torch.stack([problem.x] * len(problem.ensemble))


def judged(outcome: Callable[[Problem], Outcome]) -> Any:
    ensemble, data = problem()
    return evaluate(ensemble, Claims(outcome), data, WIDE, progress=False)


def test_stages_are_judged_at_their_points() -> None:
    """A stage that claims to be the best so far and is not: the entry is the best that was judged."""

    def outcome(p: Problem) -> Outcome:
        stages = [Stage("alone", strong(p), alone=True), Stage("worse", p.x), Stage("worse alone", p.x, alone=True)]
        return Outcome([(1.0, p.x)], stages)

    result = judged(outcome)
    ensemble, (x, y) = problem()
    expected = ensemble.predictions(ARC(steps=5)(ensemble, x, y, WIDE)).numpy()
    assert list(result.stages) == ["clean", "alone", "worse", "worse alone"]
    assert np.array_equal(result.stages["alone"], expected)
    assert np.array_equal(result.stages["worse alone"], result.clean_predictions)
    best, clean, alone = result.stages["worse"], result.clean_scores, result.score(expected)
    assert np.array_equal(result.score(best), np.minimum(clean, alone))
    assert np.array_equal(result.robust_scores, np.minimum(clean, alone)), "the answer was worse than a stage"
    assert np.array_equal(result.decided_by, np.where(alone < clean, 1, 0))


def test_an_answer_below_every_stage_is_decided_by_none() -> None:
    result = judged(lambda p: Outcome([(1.0, strong(p))], [Stage("idle", p.x)]))
    assert np.array_equal(result.decided_by, np.where(result.robust_scores < result.clean_scores, -1, 0))
    assert result.robust_accuracy < result.clean_accuracy


def test_withstanding_alone_is_judged_at_the_witness() -> None:
    """Witnesses that fool nobody count for nothing; those that do are believed, whatever the answer does."""
    ensemble, (x, y) = problem()
    clean = ensemble.correct(x, y).numpy()
    assert np.array_equal(judged(lambda p: Outcome([(1.0, p.x)], witnesses=at_x(p))).alone, clean)

    def with_witness(p: Problem) -> Outcome:
        witnesses = at_x(p)
        witnesses[1] = strong(p)
        return Outcome([(1.0, p.x)], witnesses=witnesses)

    fooled = ~ensemble.correct(ARC(steps=5)(ensemble, x, y, WIDE), y).numpy()
    expected = clean.copy()
    fell = clean[1] & fooled[1]
    expected[:, fell] &= ~fooled[:, fell]  # and whomever else that witness fools
    result = judged(with_witness)
    assert fooled[1].any() and np.array_equal(result.alone, expected)
    most = np.where(result.alone, np.inf, 1 - result.alpha[:, None]).min(0)
    assert (result.robust_scores <= most + 1e-9).all(), "a member fell alone: the others are all that is left"
    assert result.robust_accuracy < result.clean_accuracy
    staged = judged(lambda p: Outcome([(1.0, p.x)], [Stage("idle", p.x)], witnesses=with_witness(p).witnesses))
    assert np.array_equal(staged.decided_by, np.where(staged.robust_scores < staged.clean_scores, -1, 0))


def test_a_witness_counts_for_every_member_that_it_fools() -> None:
    """One against member 0 that fools member 1, too, against which there is none."""

    def outcome(p: Problem) -> Outcome:
        witnesses = at_x(p)
        witnesses[0] = strong(p)
        return Outcome([(1.0, p.x)], witnesses=witnesses)

    result = judged(outcome)
    assert result.floor_scores is not None and (result.floor_scores <= result.robust_scores + 1e-9).all()
    assert result.robust_accuracy < result.clean_accuracy


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (lambda p: Outcome([(1.0, p.x)], [Stage("far", p.x * 0)]), "left the allowed set"),
        (lambda p: Outcome([(1.0, p.x)], witnesses=at_x(p) * 0), "left the allowed set"),
        (lambda p: Outcome([(1.0, p.x)], [Stage("short", p.x[:1])]), "expected the same shape"),
        (lambda p: Outcome([(1.0, p.x)], witnesses=at_x(p) / 0), "NaN or infinity on sample 0"),
        (lambda p: Outcome([(1.0, p.x)], witnesses=at_x(p)[:1]), "1 witnesses for 3 members"),
        (lambda p: Outcome([(1.0, p.x)], [Stage("a", p.x), Stage("a", p.x)]), "names must be unique"),
        (lambda p: Outcome([(1.0, p.x)], [Stage("clean", p.x)]), "names must be unique, other than clean"),
        (lambda p: Outcome([(0.5, p.x), (0.5, p.x)], [Stage("a", p.x)]), "stages with 2 answers"),
    ],
)
def test_every_point_is_checked(outcome: Callable[[Problem], Outcome], message: str) -> None:
    with pytest.raises(AttackViolation, match=f"Claims .*{message}"):
        judged(outcome)


def test_an_attack_cannot_change_what_it_is_judged_by() -> None:
    """Overwriting the inputs or labels it was given does not move the centre of the ball or the truth."""

    def overwrites(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        y.zero_()
        return x.mul_(0)

    ensemble, data = problem()
    with pytest.raises(AttackViolation, match="overwrites left the allowed set"):
        evaluate(ensemble, overwrites, data, WIDE, progress=False)


@pytest.mark.parametrize("precision", [None, "float64", "bfloat16"])
def test_the_stages_of_tight_are_what_separate_runs_find(precision: str | None) -> None:
    """In any precision of the search: the same points are judged, and polished, in the same way."""
    ensemble = RandomizedEnsemble([cnn(i, dtype=torch.float32) for i in range(2)], [0.7, 0.3])
    x = points(60, 2, 4, 4, dtype=torch.float32)
    data, ball = (x, labels_of(ensemble, x)), Ball("linf", 0.06)
    tight = evaluate(ensemble, Tight("quick", steps=3), data, ball, precision=precision, progress=False)
    for name, attack in {"adaptive_pgd": AdaptivePGD(steps=3), "arc": ARC(steps=3, planes=4)}.items():
        alone = evaluate(ensemble, attack, data, ball, precision=precision, progress=False)
        assert np.array_equal(tight.stages[name], alone.adversarial_predictions[0])
    best = [tight.score(tight.stages[name]) for name in ("clean", "members", "corrected_arc", "climb")]
    assert all((after <= before).all() for before, after in itertools.pairwise(best))
    assert np.array_equal(best[-1], tight.robust_scores)
    assert (tight.floor_scores <= tight.robust_scores).all()
    so_far = np.minimum.accumulate([tight.score(p) for p in tight.stages.values()])
    assert np.array_equal(tight.decided_by, (so_far == tight.robust_scores).argmax(0))


def test_clean_logits_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the members on the samples that withstood everything is another matter, after the attack."""
    monkeypatch.setattr("recarc.evaluation.engine._Process.measure_survivors", lambda self, result: [])
    seen: list[Tensor] = []

    class Watched(torch.nn.Linear):
        def forward(self, u: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                seen.append(u.clone())
            return super().forward(u)

    torch.manual_seed(0)
    x = points(8, 6, dtype=torch.float32)
    ensemble = RandomizedEnsemble([Watched(6, 5).eval()])
    y = labels_of(ensemble, x)
    evaluate(ensemble, AdaptivePGD(steps=1), (x, y), BALL, tile=8, progress=False)
    before = sum(torch.equal(u, x) for u in seen)
    seen.clear()
    evaluate(ensemble, Tight("quick", steps=1), (x, y), BALL, tile=8, progress=False)
    assert sum(torch.equal(u, x) for u in seen) == before, "Tight needs them no more often than AdaptivePGD"
