"""Tight: its stages, its floor, its gap to the exact optimum."""

from __future__ import annotations

import pytest
import torch

from bank import bank
from recarc import ARC, Ball, InputError, RandomizedEnsemble, Tight
from recarc.attacks.tight import STAGES
from recarc.exact import optimum
from tiny import labels_of, mlp, mlp_ensemble, points


def test_gap_to_the_exact_optimum_of_200_linear_ensembles(record_property: pytest.RecordProperty) -> None:
    """M = 5, D = 20, linf: the mean gap is at most 0.01 where ARC's own is about 0.25."""
    b = bank(200)
    outcome = Tight().outcome(b.ensemble, b.x, b.y, b.ball)
    best = torch.cat([optimum(*b.single(k), b.ball).accuracy for k in range(200)])
    gap = b.ensemble.expected_accuracy(outcome.mixture[0][1], b.y) - best
    arc = b.ensemble.score(outcome.stages["arc"] == b.y) - best
    assert bool((gap >= -1e-12).all())
    record_property("mean gap of tight to the optimum", [float(gap.mean())])
    record_property("mean gap of ARC to the optimum", [float(arc.mean())])
    assert float(gap.mean()) <= 0.01
    assert float(arc.mean()) > 0.2


def test_outcome_is_consistent() -> None:
    ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2])
    x = points(120, 6)
    y = labels_of(ensemble, x)
    outcome = Tight().outcome(ensemble, x, y, Ball("linf", 0.08))
    assert list(outcome.stages) == list(STAGES)
    v = ensemble.expected_accuracy(outcome.mixture[0][1], y)
    scores = {name: ensemble.score(p == y) for name, p in outcome.stages.items()}
    for score in scores.values():
        assert bool((v <= score).all()), "no stage beats what is returned"
    assert torch.equal(scores["restarts"], v)
    assert outcome.alone is not None and outcome.decided_by is not None
    floor = ensemble.score(outcome.alone)
    assert bool((floor <= v).all())
    running = torch.stack(list(scores.values())).cummin(0).values
    decided = outcome.decided_by
    assert torch.equal(running.gather(0, decided[None])[0], v), "the deciding stage reached the final value"
    assert torch.equal(Tight()(ensemble, x, y, Ball("linf", 0.08)), outcome.mixture[0][1])


def test_a_member_that_cannot_be_fooled_is_the_floor() -> None:
    """A constant classifier that is right withstands everything: its alpha is the floor, and the rest falls."""

    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 5).to(x) + 0 * x.sum(1)[:, None]

    ensemble = RandomizedEnsemble([mlp(0), Constant()], [0.7, 0.3])
    x = points(60, 6)
    y = torch.zeros(60, dtype=torch.long)
    outcome = Tight("quick").outcome(ensemble, x, y, Ball("linf", 0.5))
    assert outcome.alone is not None and bool(outcome.alone[1].all()) and not bool(outcome.alone[0].any())
    assert torch.allclose(ensemble.expected_accuracy(outcome.mixture[0][1], y), torch.tensor(0.3).double())


def test_presets() -> None:
    with pytest.raises(InputError, match=r"unknown preset 'standart' .did you mean 'standard'"):
        Tight("standart")
    ensemble = mlp_ensemble(2, classes=2)
    x = points(20, 6)
    y = labels_of(ensemble, x)
    ball = Ball("l2", 0.2)
    means = [float(ensemble.expected_accuracy(Tight(p)(ensemble, x, y, ball), y).mean()) for p in ("quick", "thorough")]
    assert means[1] <= means[0] + 1e-12


@pytest.mark.parametrize(("classes", "planes"), [(3, 2), (10, 9), (12, 9)])
def test_thorough_looks_at_nine_planes(classes: int, planes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noting(attack: ARC, ensemble: RandomizedEnsemble, x: torch.Tensor, *problem: object) -> torch.Tensor:
        seen.append(attack.planes or classes - 1)
        return x

    monkeypatch.setattr(ARC, "perturb", noting)
    ensemble = mlp_ensemble(2, classes=classes)
    x = points(2, 6)
    Tight("thorough", steps=1)(ensemble, x, labels_of(ensemble, x), Ball("linf", 0.001))
    assert seen and set(seen) == {planes}
