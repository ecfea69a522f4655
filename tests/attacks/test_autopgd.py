"""AutoPGD: its schedule, its losses by hand, and what it does on one member and on the mixture."""

from __future__ import annotations

from dataclasses import fields as fields_of

import pytest
import torch
from torch import Tensor, nn

from recarc import PGD, AdaptivePGD, AutoPGD, Ball, InputError, RandomizedEnsemble
from recarc.attacks import Problem
from recarc.attacks.autopgd import _State, checkpoints, phases, sparse_checkpoints
from recarc.losses import difference_of_logits_ratio, targeted_dlr
from tiny import binary, labels_of, mlp, mlp_ensemble, points


def test_checkpoints_of_the_published_schedule() -> None:
    """p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06), of 100 steps."""
    assert sorted(checkpoints(100)) == [22, 41, 57, 70, 80, 87, 93, 99]


def test_dlr_losses_by_hand() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.5, -2.0]])
    y = torch.tensor([0])
    assert difference_of_logits_ratio(logits, y).item() == pytest.approx(-(3 - 1) / (3 - 0.5))
    assert targeted_dlr(logits, y, torch.tensor([2])).item() == pytest.approx(-(3 - 0.5) / (3 - (0.5 - 2) / 2))
    equal = torch.zeros(1, 4)
    assert bool(difference_of_logits_ratio(equal, y).isfinite().all())


@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr_targeted", "margin"])
@pytest.mark.parametrize("p,eps", [("linf", 0.1), ("l2", 0.25), ("l1", 0.35)])
def test_at_least_as_strong_as_pgd_on_one_member(loss: str, p: str, eps: float) -> None:
    ensemble = mlp_ensemble(1)
    x = points(150, 6)
    y = labels_of(ensemble, x)
    ball = Ball(p, eps)
    x_adv = AutoPGD(member=0, steps=50, loss=loss)(ensemble, x, y, ball)
    assert float(ball.violation(x, x_adv).max()) < 1e-7
    ours = ensemble.expected_accuracy(x_adv, y).mean()
    pgd = ensemble.expected_accuracy(PGD(steps=50)(ensemble, x, y, ball), y).mean()
    behind = 1.01 / 150 if p == "l1" else 0  # sparse steps with cross-entropy: one sample of the 150 more than PGD's
    assert 0 < float(ours) <= float(pgd) + behind + 1e-12


class Counting(nn.Module):
    def __init__(self, member: nn.Module) -> None:
        super().__init__()
        self.member, self.gradients = member, 0

    def forward(self, x: Tensor) -> Tensor:
        self.gradients += len(x) * x.requires_grad
        out: Tensor = self.member(x)
        return out


def test_scouts_save_most_of_the_gradients_and_lose_next_to_nothing() -> None:
    member = Counting(mlp(0, classes=10))
    ensemble = RandomizedEnsemble([member])
    x, ball = points(150, 6), Ball("linf", 0.1)
    y = labels_of(ensemble, x)

    def left(**knobs: int) -> tuple[float, int]:
        member.gradients = 0
        x_adv = AutoPGD(member=0, steps=20, loss="dlr_targeted", **knobs)(ensemble, x, y, ball)
        return float(ensemble.expected_accuracy(x_adv, y).sum()), member.gradients

    (all_nine, dear), (two, cheap), (one, cheapest) = left(), left(scout=4), left(scout=4, finalists=1)
    standing = int(two)
    assert all_nine <= two <= all_nine + 1 and two <= one and two > 0
    assert standing * (9 * 5 + 2 * 21) <= cheap < 0.6 * dear and cheapest < cheap


def test_mixture_keeps_the_lowest_expected_accuracy_seen() -> None:
    ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2])
    x = points(100, 6)
    y = labels_of(ensemble, x)
    v = ensemble.expected_accuracy(AutoPGD(steps=30)(ensemble, x, y, Ball("linf", 0.1)), y)
    assert bool((v <= ensemble.expected_accuracy(x, y)).all())


def test_l1_follows_the_support_of_the_best_point() -> None:
    """The best of two points changes 2 of 8 values. Had it been 3, that is fewer: back to it with the first step.
    Had it been 2, the step shrinks by 1.5, though never below a tenth of the first."""
    x = torch.full((3, 8), 0.5)
    peak, elsewhere = x.clone(), x + 0.1
    peak[:, :2] += 0.2
    fields = dict.fromkeys([f.name for f in fields_of(_State)], torch.zeros(3))
    s = _State(**fields)
    s.point, s.peak, s.gradient, s.peak_gradient = elsewhere, peak, torch.zeros_like(x), torch.ones_like(x)
    s.step, s.support = torch.tensor([0.3, 0.3, 0.11]), torch.tensor([3.0, 2.0, 2.0])
    AutoPGD._adapt_support(s, x, torch.ones(3))
    assert s.support.tolist() == [2, 2, 2]
    torch.testing.assert_close(s.step, torch.tensor([1.0, 0.2, 0.1]))
    assert torch.equal(s.point, torch.stack([peak[0], elsewhere[1], elsewhere[2]]))
    assert s.gradient.sum(1).tolist() == [8, 0, 0]


def test_l1_adapts_every_25th_of_its_steps() -> None:
    assert sorted(sparse_checkpoints(100)) == list(range(4, 101, 4))
    assert sorted(sparse_checkpoints(10)) == list(range(1, 11))


def test_l1_starts_in_larger_balls() -> None:
    """Three tenths of the steps at 3 eps, three tenths at 2 eps, the rest at eps; with very few steps only there."""
    assert phases(100) == [(30, 3.0), (30, 2.0), (40, 1.0)]
    assert phases(3) == [(3, 1.0)]


def test_l1_starts_at_few_values_and_others_with_every_seed() -> None:
    """A uniform point of the ball would change all 192 values; projected noise changes about as many as it must."""
    x, ball = points(5, 192), Ball("l1", 6.0)
    problem = Problem(mlp_ensemble(1, dim=192), x, torch.zeros(5, dtype=torch.long), ball)
    first, second = ((AutoPGD(seed=seed)._start(problem) - x != 0) for seed in (0, 1))
    assert float(ball.violation(x, AutoPGD()._start(problem)).max()) < 1e-9
    assert bool((first.sum(1) >= 6).all())
    assert bool((first.sum(1) < 40).all())
    assert bool(((first & second).sum(1) < first.sum(1) / 2).all())


def test_l1_offers_nothing_from_the_larger_balls() -> None:
    """At 3 eps the member is fooled, at eps it cannot be: x1 alone decides, and the plane is at twice eps."""
    ensemble = RandomizedEnsemble([binary([1.0, 0.0], 0.0)])
    x, y, ball = torch.tensor([[0.2, 0.5]]).double(), torch.ones(1, dtype=torch.long), Ball("l1", 0.1, box=(-1, 1))
    x_adv = AutoPGD(member=0, steps=20)(ensemble, x, y, ball)
    assert float(ball.violation(x, x_adv)) == 0
    assert float(ensemble.expected_accuracy(x_adv, y)) == 1
    larger = AutoPGD(member=0, steps=20)(ensemble, x, y, Ball("l1", 0.21, box=(-1, 1)))
    assert float(ensemble.expected_accuracy(larger, y)) == 0


def test_batch_does_not_matter() -> None:
    ensemble = mlp_ensemble(2)
    x = points(8, 6)
    y = labels_of(ensemble, x)
    ball, attack = Ball("linf", 0.08), AutoPGD(steps=15)
    together = attack(ensemble, x, y, ball)
    apart = torch.cat([attack(ensemble, x[i : i + 1], y[i : i + 1], ball) for i in range(8)])
    assert torch.allclose(together, apart, atol=1e-9)


class Flattening(nn.Module):
    """Refuses an empty batch, as every model that flattens with `view(len(x), -1)` does."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.view(x.size(0), -1))


@pytest.mark.parametrize("member", [0, None])
@pytest.mark.parametrize("loss,scout", [("ce", 0), ("dlr_targeted", 0), ("dlr_targeted", 2)])
def test_members_never_see_an_empty_batch(loss: str, scout: int, member: int | None) -> None:
    ensemble = RandomizedEnsemble([Flattening(mlp(0))])
    x, ball = points(20, 2, 3), Ball("linf", 0.9)
    right = labels_of(ensemble, x)
    attack = AutoPGD(member=member, steps=5, loss=loss, scout=scout)
    wrong = (right + 1) % 5
    assert torch.equal(attack(ensemble, x, wrong, ball), x), "nothing to do where every answer is wrong already"
    fooled = attack(ensemble, x, right, ball)
    assert float(ensemble.expected_accuracy(fooled, right).max()) == 0, "all fall before the last target"


def test_bad_knobs() -> None:
    with pytest.raises(InputError, match=r"unknown loss 'drl'.*dlr"):
        AutoPGD(loss="drl")
    with pytest.raises(InputError, match="scout is -1"):
        AutoPGD(scout=-1)
    with pytest.raises(InputError, match="finalists is 0"):
        AutoPGD(finalists=0)
    two = mlp_ensemble(1, classes=2)
    x = points(3, 6)
    with pytest.raises(InputError, match="needs 4 classes"):
        AutoPGD(member=0, loss="dlr_targeted")(two, x, labels_of(two, x), Ball("linf", 0.1))
    with pytest.raises(InputError, match="member 5 does not exist"):
        AutoPGD(member=5)(two, x, labels_of(two, x), Ball("linf", 0.1))


def test_every_gradient_attack_takes_the_same_losses() -> None:
    ensemble = mlp_ensemble(2, seed=1)
    x = points(6, 6)
    y = labels_of(ensemble, x)
    for attack in (AdaptivePGD(steps=2, loss="dlr"), PGD(steps=2, loss="dlr")):
        assert attack(ensemble, x, y, Ball("linf", 0.1)).shape == x.shape
    with pytest.raises(InputError, match="loss 'dlr' needs 3 classes or more, the members have 2; use 'ce'"):
        AdaptivePGD(loss="dlr").check_fit(2, 2, Ball("linf", 0.1))
