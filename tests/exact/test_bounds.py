"""Bounds on a ball: no point ever violates one, they are exact where that is known, and refusals are one line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor, nn

from exact.random_networks import points_of, relu_mlp, residual
from recarc import Ball, InputError
from recarc.exact import bounds as module
from recarc.exact.bounds import bounds, margins
from recarc.exact.network import network_of
from recarc.models import build

BALLS = [Ball("linf", 0.1), Ball("l2", 0.3), Ball("l1", 0.6), Ball("linf", 0.2, box=None), Ball("l2", 0.3, box=None)]


def inputs(net: nn.Module, count: int, *shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, net(x).argmax(1).detach()


def test_no_point_violates_a_bound() -> None:
    """100,000 random and attacked points: true margins are above the linear bounds, and those above their lowest."""
    tried = 0
    for k, ball in enumerate([*BALLS, Ball("linf", 0.05)]):
        for net, shape in ((relu_mlp(k), (6,)), (relu_mlp(10 + k, depth=3), (6,)), (residual(k), (2, 4, 4))):
            x, y = inputs(net, 8, *shape, seed=k)
            found = margins(network_of(net, x), x, y, ball, steps=5)
            points = points_of(ball, x, y, net, 700, seed=k)
            assert float(ball.violation(x.repeat(700, *[1] * len(shape)), points.flatten(0, 1)).max()) < 1e-9
            with torch.no_grad():
                logits = net(points.flatten(0, 1)).reshape(700, 8, -1)
            true = logits.gather(2, y.repeat(700, 1)[..., None]) - logits
            linear = torch.einsum("nbd,bcd->nbc", points.flatten(2), found.a.flatten(2)) + found.b
            wrong = torch.arange(4) != y[:, None]
            assert float((linear - true)[:, wrong].max()) <= 1e-9
            assert float((found.lowest - linear)[:, wrong].max()) <= 1e-9
            tried += 700 * 8
    assert tried >= 100_000


@pytest.mark.parametrize("ball", BALLS, ids=str)
def test_linear_members_are_bounded_exactly(ball: Ball) -> None:
    """The lowest margin of a linear member is a linear (or, for l2 in a box, a convex) program."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 3)).double().eval()
    x, y = inputs(net, 5, 6)
    tight = margins(network_of(net, x), x, y, ball).lowest
    w, b = net[1].weight.detach().numpy(), net[1].bias.detach().numpy()
    for n in range(5):
        for c in {0, 1, 2} - {int(y[n])}:
            gap = w[int(y[n])] - w[c]
            exact = _lowest(gap, x[n].numpy(), ball) + gap @ x[n].numpy() + b[int(y[n])] - b[c]
            assert exact - 1e-4 < float(tight[n, c]) <= exact + 1e-9


def _lowest(a: np.ndarray, x: np.ndarray, ball: Ball) -> float:
    """min a . delta, by a linear program, or from many tangents of the l2 ball."""
    low, high = (-np.inf, np.inf) if ball.box is None else (ball.box[0] - x, ball.box[1] - x)
    low, high = np.broadcast_to(low, x.shape), np.broadcast_to(high, x.shape)
    eps, dim = float(ball.eps), len(x)
    if np.isinf(ball.norm.p):
        return float(np.where(a > 0, a * np.maximum(low, -eps), a * np.minimum(high, eps)).sum())
    if ball.norm.p == 1:
        both = linprog(
            np.r_[a, -a], np.ones((1, 2 * dim)), [eps], bounds=[*zip([0] * dim, high), *zip([0] * dim, -low)]
        )
        return float(both.fun)
    cone = {"type": "ineq", "fun": lambda d: eps**2 - d @ d, "jac": lambda d: -2 * d}
    start = -0.1 * eps * a / np.linalg.norm(a)
    far = minimize(lambda d: a @ d, start, jac=lambda d: a, bounds=list(zip(low, high)), constraints=cone, tol=1e-12)
    return float(far.fun)


def test_each_refinement_only_raises_the_bounds() -> None:
    net = relu_mlp(3, steep=3.0)
    x, y = inputs(net, 20, 6)
    network, ball = network_of(net, x), Ball("linf", 0.08)
    plain, tight = bounds(network, x, ball), bounds(network, x, ball, torch.ones(len(x), dtype=torch.bool))
    for k, (low, high) in tight.intervals.items():
        assert bool((low >= plain.intervals[k][0] - 1e-12).all()) and bool(
            (high <= plain.intervals[k][1] + 1e-12).all()
        )
    crown, optimised = margins(network, x, y, ball, steps=0), margins(network, x, y, ball, steps=20)
    assert bool((optimised.lowest >= crown.lowest - 1e-12).all())
    assert float(optimised.lowest[crown.open & (optimised.lowest < torch.inf)].mean()) > float(
        crown.lowest[crown.open & (crown.lowest < torch.inf)].mean()
    )


def test_intervals_are_exact_behind_one_mixing_layer() -> None:
    net = build("cnn", 10, 1, 4, width=2, batch_norm=True, mean=(0.3,), std=(0.4,)).double().eval()
    x = inputs(net, 3, 1, 4, 4)[0]
    network = network_of(net, x)
    relus = [k for k, step in enumerate(network.steps) if step.is_relu]
    first, second = (network.steps[k].inputs[0] for k in relus)
    assert first in network.exact_intervals() and second not in network.exact_intervals()
    known = bounds(network, x, Ball("linf", 0.1))
    low = known.intervals[relus[0]][0].flatten(1)
    rows = torch.eye(low.shape[1], dtype=x.dtype).reshape(-1, *network.steps[first].shape)
    for n in range(len(x)):
        lowest = known.linear(first, rows, torch.full((len(rows),), n)).lowest
        assert torch.allclose(lowest, low[n], atol=1e-9)


def test_known_transposed_layers_are_those_of_autograd() -> None:
    net = build("cnn", 10, 2, 7, width=3, stride=2, hidden=5, mean=(0.3, 0.2), std=(0.4, 0.5)).double().eval()
    network = network_of(net, torch.rand(2, 2, 7, 7, dtype=torch.float64))
    known = [k for k, step in enumerate(network.steps) if step.adjoint is not None]
    assert len(known) == 4
    for k in known:
        a = torch.rand(6, *network.steps[k].shape, dtype=torch.float64)
        ((source, fast),), b = network.transposed(k, a)
        network.steps[k] = replace(network.steps[k], adjoint=None)
        ((other, slow),), constant = network.transposed(k, a)
        assert source == other and torch.allclose(fast, slow, atol=1e-12) and torch.allclose(b, constant, atol=1e-12)


def test_memory_and_batch_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    net = relu_mlp(1)
    x, y = inputs(net, 4, 6)
    network, ball = network_of(net, x), Ball("l2", 0.2)
    whole = margins(network, x, y, ball, steps=3)
    monkeypatch.setitem(module.NUMBERS, "cpu", 50)
    parts = [margins(network, x[n : n + 1], y[n : n + 1], ball, steps=3).lowest for n in range(4)]
    assert torch.allclose(whole.lowest, torch.cat(parts), atol=1e-9)


@pytest.mark.parametrize("arch", ["cnn", "resnet20", "linear"])
def test_architectures_of_the_package_have_rules(arch: str) -> None:
    member = build(arch, 10, 3, 32, mean=(0.5,) * 3, std=(0.25,) * 3).eval()
    x = torch.rand(2, 3, 32, 32)
    network = network_of(member, x)
    with torch.no_grad():
        assert torch.allclose(network.logits(x.double()), member(x).double(), atol=1e-3)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (lambda x: x, "needs? a torch.nn.Module"),
        (nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), r"layer 1 \(Tanh\) has no bound rule"),
        (nn.Sequential(nn.Unflatten(1, (1, 1, 6)), nn.MaxPool2d((1, 2)), nn.Flatten()), "has no bound rule"),
        (Noisy(6, 3), "not deterministic"),
        (nn.Linear(6, 3).bfloat16(), "computes in bfloat16"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).train(), "not deterministic"),
    ],
)
def test_refusals_are_one_line(member: nn.Module, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        network_of(member, torch.rand(3, 6))
    assert "\n" not in str(caught.value)
    assert "member 0" in str(caught.value)
