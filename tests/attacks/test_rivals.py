"""The attacks of others, written anew: the lattice climber keeps its guarantee, MORA reweighs, both refuse nonsense."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bank import bank
from recarc import MORA, AdaptivePGD, Ball, InputError, LatticeClimber, RandomizedEnsemble
from recarc.attacks.problem import Best, Problem
from recarc.losses import difference_of_logits_ratio
from tiny import labels_of, mlp_ensemble, points

# What is foolable by less than this share of eps may be missed: a sum of hinges has kinks, at which sign steps stall.
BARELY = {"linf": 0.05, "l2": 0.02}


@pytest.mark.parametrize("p", BARELY)
def test_the_lattice_climber_is_effective_and_maximal_on_linear_members(p: str) -> None:
    """The theorem of the paper: one pass is enough, because foolable sets are closed downwards."""
    b = bank(30, members=4, dim=10, p=p, seed=1)
    x_adv = LatticeClimber(steps=300, kappa=1e-4)(b.ensemble, b.x, b.y, b.ball)
    assert not bool(b.ensemble.correct(x_adv, b.y).all(0).any())  # effective: a member is fooled on every sample
    missed = b.missed(x_adv, BARELY[p])
    assert missed and not any(missed)


def test_the_pool_of_the_lattice_climber_never_shrinks() -> None:
    """Whoever fools the heaviest members alone still does so at the end: a member joins only with the whole pool."""
    ensemble = mlp_ensemble(4, [0.4, 0.3, 0.2, 0.1])
    x = points(60, 6)
    y = labels_of(ensemble, x)
    ball, attack = Ball("linf", 0.1), LatticeClimber()
    heaviest = RandomizedEnsemble([ensemble.members[0]])
    alone = heaviest.correct(attack(heaviest, x, y, ball), y)[0]
    together = ensemble.correct(attack(ensemble, x, y, ball), y)
    assert bool((~alone).any()) and not bool(together[0, ~alone].any())
    assert float((~together).double().sum()) > float((~together[0]).sum())  # and others have joined


class Linear(nn.Module):
    """Four logits whose margin for class 0 is <w, x> + b."""

    def __init__(self, w: list[float], b: float) -> None:
        super().__init__()
        self.w, self.b = torch.tensor(w, dtype=torch.float64), b

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x @ self.w + self.b
        return torch.stack([h, *(torch.full_like(h, c) for c in (0.0, -1.0, -1.5))], 1)


def difference_gradient(member: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(difference_of_logits_ratio(member(leaf), y).sum(), leaf)[0]


def turned(a: torch.Tensor, b: torch.Tensor) -> float:
    """1 - cosine of the angle between two gradients."""
    return 1 - float(torch.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def test_mora_leaves_a_member_that_is_fooled_deep() -> None:
    """The member that is still right decides the direction, and more so than with fixed weights."""
    ensemble = RandomizedEnsemble([Linear([-1.2, 0.0], -4.0), Linear([1.0, 0.1], -0.3)])
    x, y = torch.full((1, 2), 0.5, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    problem = Problem(ensemble, x, y, Ball("linf", 0.4))
    index = torch.arange(1)
    fixed, reweighed = (MORA(beta=beta)._visit(problem, Best.clean(problem), index, x) for beta in (0.0, 1.0))
    losses = [float(difference_of_logits_ratio(member(x), y)) for member in ensemble.members]
    assert losses[0] > 0.9 and losses[1] < 0  # one member is fooled deep, the other is right
    own = difference_gradient(ensemble.members[1], x, y)
    assert turned(reweighed, own) < 1e-2 < turned(fixed, own)
    x_adv = MORA(steps=20)(ensemble, x, y, problem.ball)
    assert not bool(ensemble.correct(x_adv, y).any())


def test_both_do_better_than_adaptive_pgd_on_bent_members() -> None:
    ensemble = mlp_ensemble(4, [0.4, 0.3, 0.2, 0.1])
    x = points(80, 6)
    y = labels_of(ensemble, x)
    ball = Ball("linf", 0.1)
    usual, climber, mora = (
        float(ensemble.expected_accuracy(attack(ensemble, x, y, ball), y).mean())
        for attack in (AdaptivePGD(), LatticeClimber(), MORA(steps=20))
    )
    assert climber < usual and mora < usual


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LatticeClimber(steps=0), "steps is 0"),
        (lambda: LatticeClimber(step_size=0.0), "in units of eps"),
        (lambda: LatticeClimber(kappa=-1.0), "kappa is -1.0"),
        (lambda: MORA(beta=1.5), "beta is 1.5"),
        (lambda: MORA(temperature=0.0), "temperature is 0.0"),
    ],
)
def test_knobs_out_of_range_are_refused(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]


def test_mora_needs_three_classes() -> None:
    b = bank(2)
    with pytest.raises(InputError, match="needs 3 classes"):
        MORA()(b.ensemble, b.x, b.y, b.ball)
