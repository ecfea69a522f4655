"""The exact method for small ReLU networks, against brute force, every attack and every certificate."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor, nn

from exact.random_networks import relu_mlp
from recarc import ARC, AdaptivePGD, Ball, InputError, RandomizedEnsemble
from recarc.exact import relu
from recarc.exact.bounds import margins
from recarc.exact.joint import Certified, joint_certificates
from recarc.exact.network import network_of
from recarc.exact.relu import exact_certificates

WEAK = ARC(steps=3)  # leaves work for the programs


def ensemble(members: int = 3, seed: int = 0, **kw: int) -> RandomizedEnsemble:
    sizes = {"dim": 2, "classes": 3, "width": 8, **kw}
    alpha = [0.5, 0.3, 0.2] if members == 3 else None
    return RandomizedEnsemble([relu_mlp(seed + i, steep=3.0, **sizes) for i in range(members)], alpha)


def labelled(rec: RandomizedEnsemble, count: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, rec.predictions(x)[0]


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.08), ("l1", 0.12)])
def test_a_dense_grid_agrees(norm: str, eps: float) -> None:
    """Every image is solved; no point of a fine grid fools a set that is excluded; the optimum is attained."""
    rec, ball = ensemble(), Ball(norm, eps)
    x, y = labelled(rec, 6, 2, seed=2)
    found = exact_certificates(rec, x, y, ball, attack=WEAK)
    floor = found.floor(rec.alpha)
    assert torch.equal(floor.per_sample, floor.upper), "solved"
    assert found.x_adv is not None and float(ball.violation(x, found.x_adv).max()) < 1e-9
    assert torch.equal(rec.expected_accuracy(found.x_adv, y), floor.upper), "attained"
    side = torch.linspace(-eps, eps, 121, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    for n in range(len(x)):
        points = ball.move(x[n : n + 1].repeat(len(grid), 1), ball.project(grid, x[n : n + 1].repeat(len(grid), 1)))
        wrong = ~rec.correct(points, y[n].repeat(len(points)))
        for s, no in zip(found.sets, found.excluded[:, n].tolist()):
            assert not (no and bool(wrong[list(s)].all(0).any()))
        assert float(rec.score(~wrong).min()) >= float(floor.per_sample[n]) - 1e-9
    assert 0.05 < floor.mean < 0.95


def test_enumerating_activation_patterns_agrees() -> None:
    """On two members with three ReLUs each, one linear program for every pattern and every choice of classes."""
    rec, ball = ensemble(2, seed=7, width=3, depth=1), Ball("linf", 0.15)
    x, y = labelled(rec, 5, 2, seed=5)
    found = exact_certificates(rec, x, y, ball, attack=WEAK).floor(rec.alpha)
    truth = [
        1 - max(len(s) / 2 for s in ((), (0,), (1,), (0, 1)) if foolable(rec, s, x[n], int(y[n]), 0.15))
        for n in range(5)
    ]
    assert found.per_sample.tolist() == found.upper.tolist() == truth
    assert len(set(truth)) > 1


def foolable(rec: RandomizedEnsemble, s: tuple[int, ...], x: Tensor, y: int, eps: float) -> bool:
    """Is there a point of the box |x' - x| <= eps, 0 <= x' <= 1 at which all members of s prefer wrong classes?"""
    limits = [(max(0.0, v - eps), min(1.0, v + eps)) for v in x.tolist()]

    def met(*pieces: tuple[np.ndarray, np.ndarray]) -> bool:
        rows, right = (np.concatenate(part) for part in zip((np.zeros((1, 2)), np.zeros(1)), *pieces))
        return bool(linprog(np.zeros(2), rows, right, bounds=limits).status == 0)

    patterns = list(itertools.product((0, 1), repeat=3))
    alone = [[p for k in patterns for p in wrong_pieces(rec.members[i], k, y) if met(p)] for i in s]
    return any(met(*choice) for choice in itertools.product(*alone))


def wrong_pieces(net: nn.Module, pattern: tuple[int, ...], y: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows A x' <= b of the points with this activation pattern at which class c beats y, for every wrong class c."""
    (w1, b1), (w2, b2) = ((m.weight.detach().numpy(), m.bias.detach().numpy()) for m in (net[0], net[2]))
    sign = np.where(pattern, -1.0, 1.0)
    on = np.array(pattern, dtype=float)
    logits, bias = w2 @ (on[:, None] * w1), w2 @ (on * b1) + b2
    region = sign[:, None] * w1, -sign * b1
    return [
        (np.vstack([region[0], logits[y] - logits[c]]), np.append(region[1], bias[c] - bias[y]))
        for c in range(len(bias))
        if c != y
    ]


def test_between_every_certificate_and_every_attack() -> None:
    rec, ball = ensemble(seed=5, dim=5), Ball("linf", 0.08)
    x, y = labelled(rec, 8, 5, seed=6)
    exact = exact_certificates(rec, x, y, ball, attack=WEAK)
    bounds = [margins(network_of(member, x), x, y, ball) for member in rec.members]
    certified = Certified(joint_certificates(bounds), exact.fooled)
    assert bool((certified.excluded <= exact.excluded).all())
    floor = exact.floor(rec.alpha)
    assert bool((certified.floor(rec.alpha).per_sample <= floor.per_sample).all())
    assert bool((rec.score(exact.alone) <= floor.per_sample + 1e-12).all())
    for attack in (ARC(), AdaptivePGD()):
        left = rec.expected_accuracy(attack(rec, x, y, ball), y)
        assert bool((floor.per_sample <= left + 1e-12).all())
    assert torch.equal(floor.per_sample, floor.upper)


def test_the_solver_cannot_print(capfd: pytest.CaptureFixture[str]) -> None:
    with relu._silent():
        os.write(1, b"a line of the solver")
    os.write(1, b"a document")
    assert capfd.readouterr().out == "a document"


def test_no_time_means_unknown_not_a_guess() -> None:
    rec, ball = ensemble(seed=5, dim=5), Ball("linf", 0.08)
    x, y = labelled(rec, 3, 5, seed=6)
    hurried, patient = exact_certificates(rec, x, y, ball, 0.0, WEAK), exact_certificates(rec, x, y, ball, attack=WEAK)
    assert bool((hurried.excluded <= patient.excluded).all())
    low, high = hurried.floor(rec.alpha), patient.floor(rec.alpha)
    assert bool((low.per_sample <= high.per_sample).all()) and bool((low.upper >= high.upper).all())


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    rec = ensemble()
    x, y = labelled(rec, 2, 2, seed=0)
    with pytest.raises(InputError, match="linf and l1, not l2; use --method bounds"):
        exact_certificates(rec, x, y, Ball("l2", 0.1))
    monkeypatch.setattr(relu, "MOST_RELUS", 40)
    with pytest.raises(InputError, match=r"48 ReLUs, too many for the exact method \(at most 40\)"):
        exact_certificates(rec, x, y, Ball("linf", 0.1))
