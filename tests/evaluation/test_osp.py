"""Sampling probabilities: the projection against brute force, the search against the known optimum."""

from __future__ import annotations

import pytest
import torch

from recarc import Ball, RandomizedEnsemble
from recarc.sampling import AttackedSamples, osp, project_simplex, projected_descent
from tiny import labels_of, mlp, points


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    generator = torch.Generator().manual_seed(0)
    grid = torch.arange(101, dtype=torch.float64) / 100
    a, b = torch.meshgrid(grid, grid, indexing="ij")
    inside = a + b <= 1 + 1e-12
    points = torch.stack([a[inside], b[inside], 1 - a[inside] - b[inside]], 1)
    for _ in range(50):
        v = 2 * torch.randn(3, dtype=torch.float64, generator=generator)
        found = project_simplex(v)
        assert float(found.sum()) == pytest.approx(1) and float(found.min()) >= 0
        assert float((found - v).norm()) <= float((points - v).norm(dim=1).min()) + 1e-9
    assert torch.allclose(project_simplex(torch.tensor([0.2, 0.3, 0.5])), torch.tensor([0.2, 0.3, 0.5]))


def test_two_members_that_cannot_be_fooled_together_are_mixed_evenly() -> None:
    # The attacker fools whichever member is likelier, never both: the error is max(alpha), best at (1/2, 1/2).
    def errors(alpha: torch.Tensor) -> torch.Tensor:
        g = torch.nn.functional.one_hot(alpha.argmax(), 2).double()
        seen.append(float(alpha @ g))
        return g

    seen: list[float] = []
    alpha, error = projected_descent(errors, torch.tensor([0.9, 0.1], dtype=torch.float64), rounds=40)
    assert error == pytest.approx(0.5, abs=0.03) and error == float(alpha.max())
    assert error == min(seen) and len(seen) == 40


def test_a_useless_member_gets_nothing() -> None:
    def useless(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.int64), 5).to(x) + 0 * x.sum()

    x = points(40, 6)
    ensemble = RandomizedEnsemble([mlp(0), useless])
    y = labels_of(ensemble, x)
    kept = y != 0
    found = osp(ensemble, AttackedSamples(x[kept], y[kept], Ball("linf", 0.03)), rounds=4)
    assert found.alpha[0] > 0.9
    assert found.believed > found.history[0][1]
