"""Floors and bounds from what is known of each member alone."""

from __future__ import annotations

import pytest
import torch

from recarc import Ball, InputError, RandomizedEnsemble
from recarc.exact import certified_floor, member_floor, optimum
from tiny import binary, points


def test_member_floor_by_hand() -> None:
    ensemble = RandomizedEnsemble([binary([1.0], 0.0)] * 3, [0.5, 0.3, 0.2])
    alone = torch.tensor([[True, False, False], [True, False, True], [True, False, False]])
    floor = member_floor(ensemble, alone)
    assert floor.per_sample.tolist() == pytest.approx([1.0, 0.0, 0.3])
    assert floor.upper.tolist() == pytest.approx([1.0, 0.5, 0.5])
    assert floor.mean == pytest.approx(1.3 / 3)
    assert floor.members.tolist() == pytest.approx([1 / 3, 2 / 3, 1 / 3])


def test_certified_radii_of_linear_members_bound_the_optimum() -> None:
    torch.manual_seed(0)
    w = torch.randn(3, 4, dtype=torch.float64)
    ensemble = RandomizedEnsemble([binary(row, 0.3) for row in w], [0.5, 0.3, 0.2])
    x, ball = points(40, 4) - 0.5, Ball("l2", 0.2, box=None)
    y = torch.ones(40, dtype=torch.long)

    def radius(i: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ w[i] + 0.3).abs() / w[i].norm()

    floor = certified_floor(ensemble, x, y, ball, radius)
    best = optimum(ensemble, x, y, ball).accuracy
    assert bool((floor.per_sample <= best + 1e-12).all()) and bool((best <= floor.upper + 1e-12).all())
    assert 0 < floor.mean < float(best.mean())


def test_radii_of_the_wrong_shape_are_refused() -> None:
    ensemble = RandomizedEnsemble([binary([1.0], 0.5)])
    x = torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(InputError, match="radii of member 0"):
        certified_floor(ensemble, x, torch.ones(3).long(), Ball("l2", 0.1, box=None), lambda i, x, y: torch.ones(2))
