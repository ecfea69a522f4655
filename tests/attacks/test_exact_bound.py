"""No attack is ever below the exact optimum of a linear ensemble, and the optimum is never above an attack."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recarc import (
    ARC,
    PGD,
    AdaptivePGD,
    Attack,
    AutoPGD,
    Ball,
    CarliniWagner,
    Climb,
    LinearARC,
    RandomizedEnsemble,
    Restarts,
    Tight,
    WorstOf,
)
from recarc.exact import optimum
from tiny import labels_of, linear, points

ATTACKS: dict[str, Attack] = {
    "PGD": PGD(steps=10),
    "AdaptivePGD": AdaptivePGD(steps=10),
    "AdaptivePGD-L": AdaptivePGD(steps=10, expectation="logits"),
    "AdaptivePGD+RR": Restarts(AdaptivePGD(steps=10, random_init=True), 2, keep="loss"),
    "ARC": ARC(steps=8),
    "ARC-corrected": ARC(steps=8, variant="corrected"),
    "LinearARC": LinearARC(),
    "C&W": CarliniWagner(steps=15, search_steps=2, learning_rate=0.05, initial_c=1.0),
    "AutoPGD": AutoPGD(steps=10),
    "Climb": Climb(steps=10),
    "Tight": Tight("quick", steps=5),
    "WorstOf": WorstOf([ARC(steps=5), LinearARC(), Restarts(PGD(steps=5, random_init=True), 2)]),
}
EPS = {1: 0.35, 2: 0.25, math.inf: 0.12}


@pytest.mark.parametrize("box", [(0.0, 1.0), None], ids=["box", "no box"])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_no_attack_is_below_the_optimum(p: float, classes: int, box: tuple[float, float] | None) -> None:
    rng = np.random.default_rng([classes, int(min(p, 9))])
    met: dict[str, int] = dict.fromkeys(ATTACKS, 0)
    total = 0
    for seed in range(2):
        weights = torch.from_numpy(rng.normal(size=(3, classes, 5)))
        weights += torch.from_numpy(rng.normal(size=(classes, 5)))
        members = [linear(w, -w @ torch.full((5,), 0.5, dtype=torch.float64)) for w in weights]
        ensemble = RandomizedEnsemble(members, rng.dirichlet(np.ones(3)))
        x = points(8, 5, seed=seed)
        y, ball = labels_of(ensemble, x), Ball(p, EPS[p], box)
        best = optimum(ensemble, x, y, ball)
        assert bool(best.realised.all())
        torch.testing.assert_close(ensemble.expected_accuracy(best.x_adv, y), best.accuracy)
        assert float(ball.violation(x, best.x_adv).max()) <= 1e-12
        total += len(x)
        for name, attack in ATTACKS.items():
            if box is None and isinstance(attack, CarliniWagner):
                continue
            reached = ensemble.expected_accuracy(attack(ensemble, x, y, ball), y)
            assert bool((reached >= best.accuracy - 1e-12).all()), name
            met[name] += int((reached <= best.accuracy + 1e-12).sum())
    assert 0 < met["WorstOf"] <= total
    assert met["ARC-corrected"] > total / 2
