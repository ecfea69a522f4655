"""The search value by value: what an l1 ball allows and gradients do not see."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recarc import AutoPGD, Ball, InputError, RandomizedEnsemble, Tight, evaluate
from recarc.attacks.value_search import ValueSearch

BALL = Ball("l1", 1.0)


def curved(u: Tensor) -> Tensor:
    """Two classes; the second one wins when the last value comes near 1, but no slope leads from 0 to there."""
    return torch.stack([torch.full_like(u.flatten(1)[:, 0], 0.5), (u.flatten(1)[:, -1] - 0.6).clamp(min=0) * 2], dim=1)


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 1, 4, 4), torch.zeros(count, dtype=torch.long)


def test_a_member_that_is_flat_at_0_falls_to_one_value() -> None:
    x, y = images(3)
    rec = RandomizedEnsemble([curved])
    assert rec.correct(AutoPGD(steps=20)(rec, x, y, BALL), y).all(), "gradients see nothing"
    x_adv = ValueSearch()(rec, x, y, BALL)
    assert not rec.correct(x_adv, y).any() and (x_adv != x).flatten(1).sum(1).max() == 1, "one value of sixteen"
    assert float(BALL.norm.norm(x_adv - x).max()) <= 1
    assert rec.correct(ValueSearch()(rec, x, y, Ball("l1", 0.7)), y).all(), "too little"


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_tight_runs_it_on_members_for_l1() -> None:
    x, y = images(4)
    assert evaluate(RandomizedEnsemble([curved]), Tight(), (x, y), BALL, progress=False).robust_accuracy == 0
    assert evaluate(RandomizedEnsemble([curved]), Tight("quick"), (x, y), BALL, progress=False).robust_accuracy == 1


def test_several_values_share_eps_and_the_box_may_be_open() -> None:
    weights = torch.linspace(1, 2, 16)

    def steep(u: Tensor) -> Tensor:
        return torch.stack([torch.full_like(u[:, 0, 0, 0], 7.0), (u.flatten(1) * weights).sum(1)], dim=1)

    x, y = images(2)
    rec = RandomizedEnsemble([steep])
    for ball, least in ((Ball("l1", 4.0), 4), (Ball("l1", 4.0, box=None), 1)):
        x_adv = ValueSearch(rounds=4)(rec, x, y, ball)
        assert not rec.correct(x_adv, y).any(), "the four largest weights, or all of eps on one"
        assert (x_adv != x).flatten(1).sum(1).min() >= least
        assert float(ball.norm.norm(x_adv - x).max()) <= 4 * (1 + 1e-6)


def test_a_sample_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(6, 1, 4, 4), torch.zeros(6, dtype=torch.long)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    y = net(x).argmax(1)
    attack = ValueSearch(values=5, rounds=3, seed=2)
    together = attack(net, x, y, Ball("l1", 0.5))
    apart = torch.cat([attack(net, x[k : k + 1], y[k : k + 1], Ball("l1", 0.5)) for k in range(6)])
    assert torch.allclose(together, apart, atol=1e-6)


@pytest.mark.parametrize("knob", ["values", "rounds"])
def test_bad_numbers_are_refused(knob: str) -> None:
    with pytest.raises(InputError, match=f"{knob} is 0"):
        ValueSearch(**{knob: 0})
