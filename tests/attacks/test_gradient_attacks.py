"""PGD, AdaptivePGD and Carlini-Wagner against closed forms on linear members and against their own definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from recarc import PGD, AdaptivePGD, Ball, CarliniWagner, InputError, Norm, RandomizedEnsemble
from tiny import binary, labels_of, mlp, mlp_ensemble, points


@pytest.mark.parametrize("loss", ["ce", "margin"])
@pytest.mark.parametrize("p", [1, 1.5, 2, 3, math.inf])
def test_pgd_solves_a_linear_classifier(p: float, loss: str) -> None:
    """On one linear member the best point is x - eps mu_p(w); steps of eps/4 get there and stay."""
    w = torch.tensor([0.7, -2.0, 0.3, 1.1], dtype=torch.float64)
    x, y, ball = torch.full((1, 4), 0.5, dtype=torch.float64), torch.tensor([1]), Ball(p, 0.2, box=None)
    x_adv = PGD(steps=50, loss=loss)(binary(w, 0.1), x, y, ball)
    best = x - 0.2 * Norm(p).steepest(w[None])
    assert float((x_adv - x)[0] @ w) == pytest.approx(float((best - x)[0] @ w), rel=1e-3)
    if p in (1, 2, math.inf):  # exact projections converge to the point itself
        torch.testing.assert_close(x_adv, best, rtol=0, atol=1e-6)


def test_pgd_is_equation_5() -> None:
    """Three iterations in l-infinity written out: clip(delta + eta sgn(g), -eps, eps), then the box."""
    net = mlp(0)
    x = points(6, 6)
    y = net(x).argmax(1)
    delta = torch.zeros_like(x)
    for _ in range(3):
        u = (x + delta).clamp(0, 1).requires_grad_()
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(net(u), y, reduction="sum"), u)
        delta = (delta + 0.03 * g.sign()).clamp(-0.08, 0.08)
        delta = (x + delta).clamp(0, 1) - x
    found = PGD(steps=3, step_size=0.03)(net, x, y, Ball("linf", 0.08))
    torch.testing.assert_close(found, x + delta, rtol=0, atol=1e-12)


def test_adaptive_pgd_of_one_member_is_pgd() -> None:
    net, x = mlp(3), points(6, 6)
    y = net(x).argmax(1)
    ball = Ball("l2", 0.3)
    expected = PGD(steps=5)(net, x, y, ball)
    for expectation in ("loss", "logits"):
        torch.testing.assert_close(AdaptivePGD(steps=5, expectation=expectation)(net, x, y, ball), expected)


def test_default_step_is_a_quarter_of_each_eps() -> None:
    ensemble, x = mlp_ensemble(2), points(5, 6)
    y, eps = labels_of(ensemble, x), torch.linspace(0.05, 0.4, 5, dtype=torch.float64)
    moved = AdaptivePGD(steps=1)(ensemble, x, y, Ball("l2", eps, box=None)) - x
    torch.testing.assert_close(moved.norm(dim=1), eps / 4)


def test_random_init_starts_at_the_ball_s_random_start() -> None:
    """A step too small to matter leaves the start itself, inside the ball; each seed has its own."""
    ensemble, x = mlp_ensemble(2), points(50, 6)
    y = labels_of(ensemble, x)
    for p in (1, 2, math.inf):
        ball = Ball(p, 0.2)
        found = PGD(steps=1, step_size=1e-12, random_init=True, seed=8)(ensemble, x, y, ball)
        torch.testing.assert_close(found, x + ball.random_start(x, 8), rtol=0, atol=1e-11)
        assert float(ball.violation(x, found).max()) <= 1e-12
        other = PGD(steps=1, step_size=1e-12, random_init=True, seed=9)(ensemble, x, y, ball)
        assert float((found - other).abs().amax(1).min()) > 1e-6


def test_more_steps_do_not_lower_the_expected_loss_of_adaptive_pgd() -> None:
    ensemble, x = mlp_ensemble(3), points(40, 6)
    y, ball = labels_of(ensemble, x), Ball("l2", 0.2)
    losses = [float(ensemble.expected_loss(x, y).detach().mean())]
    for steps in (1, 5, 20):
        x_adv = AdaptivePGD(steps=steps)(ensemble, x, y, ball)
        losses.append(float(ensemble.expected_loss(x_adv, y).detach().mean()))
    assert losses == sorted(losses)


# Carlini and Wagner


def minimal_distance(w: Tensor, b: float, x: Tensor) -> Tensor:
    return (x @ w + b).abs() / w.norm()


def test_carlini_wagner_finds_the_shortest_perturbation_of_a_linear_member() -> None:
    """The smallest l2 perturbation is known: |f(x)| / ||w||; C&W comes within a few per cent before projecting."""
    w, b = torch.tensor([2.0, -1.0, 1.5, 0.5], dtype=torch.float64), -1.3
    member = binary(w, b)
    x = 0.3 + 0.4 * points(20, 4)
    y = member(x).argmax(1)
    attack = CarliniWagner(member=0, steps=100)
    x_adv = attack(member, x, y, Ball("l2", 10.0))
    assert bool((member(x_adv).argmax(1) != y).all())
    ratio = (x_adv - x).norm(dim=1) / minimal_distance(w, b, x)
    assert float(ratio.min()) >= 1 - 1e-9
    assert float(ratio.median()) < 1.05


def test_carlini_wagner_then_projects_onto_the_ball() -> None:
    w, b = torch.tensor([2.0, -1.0, 1.5, 0.5], dtype=torch.float64), -1.3
    member = binary(w, b)
    x = 0.3 + 0.4 * points(40, 4)
    y = member(x).argmax(1)
    eps = 0.12
    x_adv = CarliniWagner(member=0, steps=100)(member, x, y, Ball("l2", eps))
    assert float((x_adv - x).norm(dim=1).max()) <= eps + 1e-12
    near, far = minimal_distance(w, b, x) < 0.9 * eps, minimal_distance(w, b, x) > eps
    fooled = member(x_adv).argmax(1) != y
    assert bool(fooled[near].all()) and not bool(fooled[far].any())
    assert int(near.sum()) > 3 and int(far.sum()) > 3


def test_carlini_wagner_kappa_asks_for_confidence() -> None:
    member = binary([2.0, -1.0, 1.5, 0.5], -1.3)
    x = 0.3 + 0.4 * points(10, 4)
    y = member(x).argmax(1)
    x_adv = CarliniWagner(member=0, steps=100, kappa=0.3)(member, x, y, Ball("l2", 10.0))
    logits = member(x_adv).detach()
    lead = logits.gather(1, 1 - y[:, None]) - logits.gather(1, y[:, None])
    assert float(lead.min()) >= 0.3 - 1e-9


@pytest.mark.parametrize("expectation", ["loss", "logits"])
def test_carlini_wagner_costs(expectation: str) -> None:
    """h of the paper: the clipped margin's expectation, or the clipped margin of the expectation.

    Success is h at its minimum -kappa, that is, the highest of the margins at most -kappa.
    """
    ensemble, x = mlp_ensemble(3, [0.2, 0.5, 0.3]), points(8, 6)
    y = labels_of(ensemble, x)
    logits, alpha = ensemble.logits(x), ensemble.alpha
    if expectation == "logits":
        logits, alpha = (alpha[:, None, None] * logits).sum(0)[None], torch.ones(1, dtype=torch.float64)
    own = logits[:, torch.arange(8), y]
    margins = own - logits.masked_fill(nn.functional.one_hot(y, 5).bool(), -torch.inf).amax(2)
    h, highest = CarliniWagner(expectation=expectation, kappa=0.1).cost(ensemble, x, y)
    torch.testing.assert_close(h, (alpha[:, None] * margins.clamp(min=-0.1)).sum(0))
    torch.testing.assert_close(highest, margins.amax(0))
    assert torch.equal(highest <= -0.1, h <= -0.1 + 1e-12)


def test_carlini_wagner_does_not_take_one_member_driven_deep_for_success() -> None:
    """A steep member pulls the mean of the margins below 0 long before the heavy one is fooled."""
    heavy, steep = binary([1.0, 0.0], -0.3), binary([0.0, 100.0], -30.0)
    ensemble = RandomizedEnsemble([heavy, steep], [0.9, 0.1])
    x, y = torch.full((1, 2), 0.5, dtype=torch.float64), torch.tensor([1])
    x_adv = CarliniWagner(steps=200)(ensemble, x, y, Ball("l2", 10.0))
    assert not bool(ensemble.correct(x_adv, y).any())
    assert float((x_adv - x).norm()) < 1.1 * math.hypot(0.2, 0.2)


def test_carlini_wagner_works_in_another_box_and_needs_one() -> None:
    w, b = torch.tensor([2.0, -1.0, 1.5, 0.5], dtype=torch.float64), -1.3
    x = 0.3 + 0.4 * points(10, 4)
    y = binary(w, b)(x).argmax(1)
    here = CarliniWagner(member=0, steps=60)(binary(w, b), x, y, Ball("l2", 10.0))
    wide = binary(w / 2, b + float(w.sum()) / 2)  # the same classifier in the coordinates 2x - 1 of the box (-1, 1)
    there = CarliniWagner(member=0, steps=60)(wide, 2 * x - 1, y, Ball("l2", 20.0, box=(-1.0, 1.0)))
    assert bool((wide(there).argmax(1) != y).all())
    assert float((there - (2 * here - 1)).abs().max()) < 0.2
    with pytest.raises(InputError, match="CarliniWagner works inside a pixel box; give the ball one"):
        CarliniWagner()(binary(w, b), x, y, Ball("l2", 0.1, box=None))


def test_carlini_wagner_on_the_ensemble_lowers_its_accuracy() -> None:
    ensemble, x = mlp_ensemble(3, [0.2, 0.5, 0.3]), points(30, 6)
    y = labels_of(ensemble, x)
    ball = Ball("l2", 0.3)
    clean = float(ensemble.expected_accuracy(x, y).mean())
    for attack in (CarliniWagner(), CarliniWagner(expectation="logits"), CarliniWagner(member=1)):
        assert float(ensemble.expected_accuracy(attack(ensemble, x, y, ball), y).mean()) < clean


def test_same_box_for_all_members() -> None:
    """A member with its own normalisation sees pixels: the attack never leaves [0, 1] for it."""
    mean, std = torch.tensor([0.4]), torch.tensor([0.2])
    normalised = nn.Sequential(Normalise(mean, std), nn.Linear(6, 5))
    ensemble = RandomizedEnsemble([normalised.double()])
    x = points(5, 6)
    x_adv = AdaptivePGD()(ensemble, x, torch.zeros(5, dtype=torch.long), Ball("linf", 0.5))
    assert float(x_adv.min()) >= 0 and float(x_adv.max()) <= 1


class Normalise(nn.Module):
    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
