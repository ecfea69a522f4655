"""ARC(variant="paper") against the literal per-sample transcription of Algorithm 2 in oracle.py."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from oracle import Algorithm2
from recarc import ARC, Ball, RandomizedEnsemble
from tiny import cnn, labels_of, mlp, points

SAMPLES, STEPS = 2, 3
EPS = {  # of the size at which some members give way and others do not
    ("mlp", 1): 0.5,
    ("mlp", 2): 0.3,
    ("mlp", 3): 0.25,
    ("mlp", math.inf): 0.12,
    ("cnn", 1): 0.4,
    ("cnn", 2): 0.18,
    ("cnn", 3): 0.12,
    ("cnn", math.inf): 0.04,
}
ALPHAS = {
    1: [["1"]],
    2: [["1/2", "1/2"], ["0.1", "0.9"]],
    3: [["1/3", "1/3", "1/3"], ["0.2", "0.5", "0.3"], ["0.35", "0.30", "0.35"]],
    4: [["1/4"] * 4, ["0.1", "0.4", "0.2", "0.3"], ["0.05", "0.30", "0.35", "0.30"]],
}
CASES = [
    pytest.param(kind, members, alpha, p, id=f"{kind}-M{members}-{'_'.join(alpha)}-l{p}")
    for kind, members in itertools.product(("mlp", "cnn"), (1, 2, 3, 4))
    for alpha in ALPHAS[members]
    for p in (1, 2, 3, math.inf)
]


class Problem:
    """The ensemble and the samples of one case."""

    def __init__(self, kind: str, members: int, alpha: list[str], p: float) -> None:
        seed = next(n for n, case in enumerate(CASES) if case.values == (kind, members, alpha, p))
        self.nets = [(mlp if kind == "mlp" else cnn)(1000 * seed + i) for i in range(members)]
        self.alpha = [Fraction(a) for a in alpha]
        self.ensemble = RandomizedEnsemble(self.nets, [float(a) for a in self.alpha])
        self.x = points(SAMPLES, *((6,) if kind == "mlp" else (2, 4, 4)), seed=seed)
        self.y = labels_of(self.ensemble, self.x)
        self.ball = Ball(p, EPS[kind, p])


@pytest.mark.parametrize(("kind", "members", "alpha", "p"), CASES)
def test_agrees_with_algorithm_2(
    kind: str, members: int, alpha: list[str], p: float, record_property: Callable[[str, object], None]
) -> None:
    problem = Problem(kind, members, alpha, p)
    ensemble, x, y, ball = problem.ensemble, problem.x, problem.y, problem.ball
    gaps = []
    for planes, step_size in ((1, None), (3, ball.eps / 2), (None, None)):
        eta = step_size or ball.eps * (1 if math.isinf(p) else 1 / 4)
        x_adv = ARC(steps=STEPS, step_size=step_size, planes=planes)(ensemble, x, y, ball)
        found = ensemble.expected_accuracy(x_adv, y)
        for n in range(SAMPLES):
            literal = Algorithm2(problem.nets, problem.alpha, x[n], int(y[n]), p, ball.eps, eta, STEPS, planes)
            delta, v = literal.perturbation()
            assert abs(float(v) - float(found[n])) < 1e-12, (planes, n)
            if v > 0:  # ARC rests where nothing is left to gain; Algorithm 2 goes on
                gaps.append(float(((x_adv[n] - x[n]).reshape(-1) - torch.from_numpy(delta)).abs().max()))
                assert gaps[-1] < 1e-9, (planes, n)
    record_property("ARC against Algorithm 2, delta", gaps)


def test_the_comparison_is_worth_making() -> None:
    """Among the cases are samples that fall, that fall in part, and that stand."""
    clean, attacked = [], []
    for case in CASES[::2]:
        problem = Problem(*case.values)
        x_adv = ARC(steps=STEPS)(problem.ensemble, problem.x, problem.y, problem.ball)
        clean.append(problem.ensemble.expected_accuracy(problem.x, problem.y))
        attacked.append(problem.ensemble.expected_accuracy(x_adv, problem.y))
    before, after = torch.cat(clean), torch.cat(attacked)
    shares = [(after == 0), (after > 0) & (after < before), after == before]
    assert min(float(s.float().mean()) for s in shares) > 0.1
