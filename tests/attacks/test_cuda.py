"""The same results on a GPU; skipped where there is none."""

from __future__ import annotations

import math

import pytest
import torch

from recarc import (
    ARC,
    PGD,
    AdaptivePGD,
    Attack,
    Ball,
    CarliniWagner,
    InputError,
    RandomAttacker,
    Restarts,
    Square,
    WorstOf,
)
from tiny import assert_unchanged, labels_of, mlp_ensemble, photograph, points

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ATTACKS: list[Attack] = [
    ARC(steps=5),
    ARC(steps=5, variant="corrected", planes=2),
    Restarts(AdaptivePGD(steps=5, random_init=True), 2),
    RandomAttacker(PGD(steps=5)),
    CarliniWagner(steps=5, search_steps=2, learning_rate=0.05, initial_c=1.0),
    WorstOf([AdaptivePGD(steps=3), ARC(steps=2)]),
    Square(queries=20),
    Square(member=1, queries=20),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
def test_cuda_agrees_with_the_cpu(attack: Attack, p: float) -> None:
    ensemble, x = mlp_ensemble(3, [0.3, 0.5, 0.2]), points(30, 6)
    y, ball = labels_of(ensemble, x), Ball(p, torch.linspace(0.05, 0.3, 30))
    on_cpu = attack(ensemble, x, y, ball)
    ensemble.cuda()
    x_gpu, y_gpu = x.cuda(), y.cuda()
    before = photograph(ensemble, x_gpu, y_gpu)
    on_gpu = attack(ensemble, x_gpu, y_gpu, ball)
    assert_unchanged(before, photograph(ensemble, x_gpu, y_gpu))
    assert on_gpu.device == x_gpu.device
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_cuda_in_every_precision(p: float, dtype: torch.dtype) -> None:
    ensemble, x = mlp_ensemble(3, [0.3, 0.5, 0.2], dtype=dtype).cuda(), points(30, 6, dtype=dtype).cuda()
    y, ball = labels_of(ensemble, x), Ball(p, 0.1)
    for attack in ATTACKS:
        x_adv = attack(ensemble, x, y, ball)
        assert x_adv.dtype == dtype
        assert float(ball.violation(x, x_adv).max()) <= 1e-6


def test_cuda_random_numbers_are_the_cpu_s() -> None:
    x = points(20, 6)
    for p in (1, 1.5, 2, math.inf):
        torch.testing.assert_close(Ball(p, 0.3).random_start(x.cuda(), 4).cpu(), Ball(p, 0.3).random_start(x, 4))


def test_cuda_members_and_cpu_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="x is on cpu, y on cpu, the members on cuda:0; move them to one device"):
        ARC()(mlp_ensemble(2).cuda(), points(3, 6), torch.zeros(3, dtype=torch.long), Ball("l2", 0.1))
