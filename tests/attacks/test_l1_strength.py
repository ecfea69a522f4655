"""p = 1: sparse steps and the exact projection on digits, where steps of a single value left 58 to 79 %."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recarc import PGD, AdaptivePGD, Attack, AutoPGD, Ball, Climb, RandomizedEnsemble, Tight
from recarc.data.loading import load

BALL = Ball("l1", 2.0)


def trained(seed: int, x: Tensor, y: Tensor) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    adam = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        adam.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        adam.step()
    return net.eval()


@pytest.fixture(scope="module")
def ensemble() -> RandomizedEnsemble:
    with torch.random.fork_rng():
        return RandomizedEnsemble([trained(seed, *load("digits", "train").tensors()) for seed in (0, 1)])


@pytest.mark.parametrize(
    ("attack", "bound"),
    [
        (PGD(), 0.23),
        (AdaptivePGD(), 0.20),
        (AutoPGD(steps=40), 0.195),
        (Climb(orders=1), 0.20),
        (Tight("quick"), 0.18),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Attack) else "",
)
def test_what_is_left_on_digits(attack: Attack, bound: float, ensemble: RandomizedEnsemble) -> None:
    """100 images at eps 2, two values out of 64 at full swing; the bounds are two points above what was measured."""
    x, y = load("digits", "test", limit=100).tensors()
    assert float(ensemble.expected_accuracy(x, y).mean()) > 0.9
    x_adv = attack(ensemble, x, y, BALL)
    assert float(BALL.violation(x, x_adv).max()) < 1e-6
    assert float(ensemble.expected_accuracy(x_adv, y).mean()) <= bound
