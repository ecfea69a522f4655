"""Members that a coarse search took for fooled are fooled in float32 too, where that takes a small push."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recarc import ARC, PGD, Ball, RandomAttacker, RandomizedEnsemble, evaluate
from recarc.attacks.polish import polish
from recarc.attacks.problem import Problem
from tiny import cnn, labels_of, points

EPS = {"linf": 0.06, "l2": 0.25}


def rounded(ensemble: RandomizedEnsemble, y: Tensor, by: float) -> RandomizedEnsemble:
    """The same ensemble to somebody whose logits of the label come out a little too low."""

    def member(original: Any) -> Any:
        def logits(u: Tensor) -> Tensor:
            out = original(u)
            return out - by * torch.nn.functional.one_hot(y, out.shape[1])

        return logits

    return RandomizedEnsemble([member(m) for m in ensemble.members], ensemble.alpha)


@pytest.mark.parametrize("norm", EPS)
def test_what_the_search_believed_holds_in_float32(norm: str) -> None:
    ensemble = RandomizedEnsemble([cnn(i, dtype=torch.float32) for i in range(2)], [0.7, 0.3])
    x, ball = points(200, 2, 4, 4, dtype=torch.float32), Ball(norm, EPS[norm])
    y = labels_of(ensemble, x)
    x_adv = ARC(steps=3, rho=0.001)(ensemble, x, y, ball)  # ends just across the boundaries
    back = x_adv + 0.05 * (x - x_adv)  # and is carried back by a rounding
    searched = rounded(ensemble, y, 0.1)
    before = ensemble.expected_accuracy(back, y)
    believed = searched.expected_accuracy(back, y)
    wrong = ~ensemble.correct(back, y)
    moved = polish(Problem(ensemble, x, y, ball), searched, back, wrong)
    after = ensemble.expected_accuracy(moved, y)
    assert float(ball.violation(x, moved).max()) < 1e-6
    assert bool((after <= before).all())
    lost = believed < before
    assert int(lost.sum()) >= 3  # the comparison says something
    assert float((after[lost] <= believed[lost]).double().mean()) > 0.8
    assert torch.equal(moved[~lost], back[~lost])


def test_it_is_not_used_where_the_search_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("recarc.evaluation.judge.polish", lambda *given: calls.append(len(given[2])) or given[2])
    ensemble = RandomizedEnsemble([cnn(i, dtype=torch.float32) for i in range(2)], [0.7, 0.3])
    x = points(20, 2, 4, 4, dtype=torch.float32)
    data, ball = (x, labels_of(ensemble, x)), Ball("linf", 0.06)
    evaluate(ensemble, ARC(steps=2), data, ball, progress=False)
    assert not calls
    evaluate(ensemble, ARC(steps=2), data, ball, precision="bfloat16", progress=False)
    assert calls == [20]
    evaluate(ensemble, RandomAttacker(PGD(steps=2)), data, ball, precision="bfloat16", progress=False)
    assert calls == [20, 40]  # the points for either member
