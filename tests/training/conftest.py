"""Members trained once for all tests here, on digits, with a net of a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from recarc import PGD, Ball, RandomizedEnsemble
from recarc.data.loading import load
from recarc.training import train

EPS = 0.15
BALL = Ball("linf", EPS)
SMALL: dict[str, Any] = {"arch": "cnn", "arch_options": {"width": 8}, "norm": "linf", "eps": EPS, "say": None}


def small(method: str, *, epochs: float = 10, **more: Any) -> RandomizedEnsemble:
    """`train` at a size that takes seconds."""
    changes = {"epochs": epochs, **more.pop("changes", {})}
    return train(method, more.pop("data", "digits"), **{**SMALL, **more}, changes=changes)


@pytest.fixture(scope="session")
def test_set() -> tuple[torch.Tensor, torch.Tensor]:
    return load("digits", "test").tensors()


@pytest.fixture(scope="session")
def cross(test_set: tuple[torch.Tensor, torch.Tensor]) -> Callable[..., torch.Tensor]:
    """(M, M) accuracy: row i is attacked by PGD on member i, column j answers."""
    x, y = test_set

    def matrix(ensemble: RandomizedEnsemble, eps: float = EPS) -> torch.Tensor:
        rows = [
            ensemble.correct(PGD(member=i, steps=10)(ensemble, x, y, Ball("linf", eps)), y).double().mean(1)
            for i in range(len(ensemble))
        ]
        return torch.stack(rows)

    return matrix


@pytest.fixture(scope="session")
def natural() -> RandomizedEnsemble:
    """Three plain members."""
    return small("natural", members=3)


@pytest.fixture(scope="session")
def at() -> RandomizedEnsemble:
    return small("at")
