"""Tight: its stages, its floor, its gap to the exact optimum."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from bank import bank
from recarc import ARC, Ball, InputError, RandomizedEnsemble, Tight
from recarc.attacks import Outcome
from recarc.attacks.problem import Best, Problem, frozen_problem
from recarc.exact import optimum
from tiny import labels_of, mlp, mlp_ensemble, points

STAGES = [  # and whether each is an attack by itself
    *(("adaptive_pgd", True), ("arc", True)),
    *(("members", False), ("square", False), ("corrected_arc", False)),
    *(("lattice_climber", False), ("climb", False)),
    *(("round_1", True), ("round_2", True), ("round_3", True), ("restarts", False), ("challenge", False)),
]


def outcome_of(attack: Tight, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Outcome:
    with frozen_problem(ensemble, x, y, ball) as problem:
        return attack.outcome(problem)


def withstood(ensemble: RandomizedEnsemble, witnesses: Tensor, y: Tensor) -> Tensor:
    """(M, B): member i still gives the label at its own witness."""
    return torch.stack([ensemble.predictions(witness)[i] == y for i, witness in enumerate(witnesses)])


def test_gap_to_the_exact_optimum_of_200_linear_ensembles(record_property: pytest.RecordProperty) -> None:
    """M = 5, D = 20, linf: the mean gap is at most 0.01 where ARC's own is about 0.25."""
    b = bank(200)
    outcome = outcome_of(Tight(), b.ensemble, b.x, b.y, b.ball)
    best = torch.cat([optimum(*b.single(k), b.ball).accuracy for k in range(200)])
    gap = b.ensemble.expected_accuracy(outcome.mixture[0][1], b.y) - best
    (arc_points,) = [stage.x_adv for stage in outcome.stages if stage.name == "arc"]
    arc = b.ensemble.expected_accuracy(arc_points, b.y) - best
    assert bool((gap >= -1e-12).all())
    record_property("mean gap of tight to the optimum", [float(gap.mean())])
    record_property("mean gap of ARC to the optimum", [float(arc.mean())])
    assert float(gap.mean()) <= 0.01
    assert float(arc.mean()) > 0.2


def test_outcome_is_consistent() -> None:
    ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2])
    x = points(120, 6)
    y = labels_of(ensemble, x)
    outcome = outcome_of(Tight(), ensemble, x, y, Ball("linf", 0.08))
    assert [(stage.name, stage.alone) for stage in outcome.stages] == STAGES
    v = ensemble.expected_accuracy(outcome.mixture[0][1], y)
    scores = {stage.name: ensemble.expected_accuracy(stage.x_adv, y) for stage in outcome.stages}
    for score in scores.values():
        assert bool((v <= score).all()), "no stage beats what is returned"
    assert torch.equal(scores["challenge"], v)
    so_far = [ensemble.expected_accuracy(x, y), *(scores[name] for name, alone in STAGES if not alone)]
    assert all(bool((after <= before).all()) for before, after in itertools.pairwise(so_far))
    assert outcome.witnesses is not None
    floor = ensemble.score(withstood(ensemble, outcome.witnesses, y))
    assert bool((floor <= v).all())
    assert torch.equal(Tight()(ensemble, x, y, Ball("linf", 0.08)), outcome.mixture[0][1])


def test_a_witness_is_kept_for_every_member_that_was_fooled() -> None:
    """In ball and box, and each one fools its member: whoever was fooled anywhere can be checked again."""
    ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2])
    x, ball = points(80, 6), Ball("l2", 0.2)
    y = labels_of(ensemble, x)
    with frozen_problem(ensemble, x, y, ball) as problem:
        best = Best.clean(problem, witnesses=True)
        list(Tight("quick", steps=3)._stages(problem, best))
    assert best.witnesses is not None
    assert 0 < int(best.ever_wrong.sum()) < best.ever_wrong.numel()
    assert torch.equal(withstood(ensemble, best.witnesses, y), ~best.ever_wrong)
    for i, witness in enumerate(best.witnesses):
        assert float(ball.violation(x, witness).max()) <= 1e-12
        assert torch.equal(witness[~best.ever_wrong[i]], x[~best.ever_wrong[i]])


def test_a_member_that_cannot_be_fooled_is_the_floor() -> None:
    """A constant classifier that is right withstands everything: its alpha is the floor, and the rest falls."""

    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 5).to(x) + 0 * x.sum(1)[:, None]

    ensemble = RandomizedEnsemble([mlp(0), Constant()], [0.7, 0.3])
    x = points(60, 6)
    y = torch.zeros(60, dtype=torch.long)
    outcome = outcome_of(Tight("quick"), ensemble, x, y, Ball("linf", 0.5))
    assert outcome.witnesses is not None
    alone = withstood(ensemble, outcome.witnesses, y)
    assert bool(alone[1].all()) and not bool(alone[0].any())
    assert torch.allclose(ensemble.expected_accuracy(outcome.mixture[0][1], y), torch.tensor(0.3).double())


def test_presets() -> None:
    with pytest.raises(InputError, match=r"unknown preset 'standart' .did you mean 'standard'"):
        Tight("standart")
    ensemble = mlp_ensemble(2, classes=2)
    x = points(20, 6)
    y = labels_of(ensemble, x)
    ball = Ball("l2", 0.2)
    attacks = Tight("quick"), Tight("thorough", challenge=0)
    means = [float(ensemble.expected_accuracy(attack(ensemble, x, y, ball), y).mean()) for attack in attacks]
    assert means[1] <= means[0] + 1e-12


@pytest.mark.parametrize(("classes", "planes"), [(3, 2), (10, 9), (12, 9)])
def test_thorough_looks_at_nine_planes(classes: int, planes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noting(attack: ARC, problem: Problem) -> torch.Tensor:
        seen.append(attack.planes or classes - 1)
        return problem.x

    monkeypatch.setattr(ARC, "perturb", noting)
    ensemble = mlp_ensemble(2, classes=classes)
    x = points(2, 6)
    Tight("thorough", steps=1, challenge=0)(ensemble, x, labels_of(ensemble, x), Ball("linf", 0.001))
    assert seen and set(seen) == {planes}
