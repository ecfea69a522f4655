"""Members trained once for all tests here, on digits, with a net of a few thousand weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_training import BALL, small

from recarc import PGD, Ball, RandomizedEnsemble
from recarc.data.loading import load


@pytest.fixture(scope="session")
def test_set() -> tuple[torch.Tensor, torch.Tensor]:
    return load("digits", "test").tensors()


@pytest.fixture(scope="session")
def cross(test_set: tuple[torch.Tensor, torch.Tensor]) -> Callable[[RandomizedEnsemble], torch.Tensor]:
    """(M, M) accuracy: row i is attacked by PGD on member i, column j answers."""
    x, y = test_set

    def matrix(ensemble: RandomizedEnsemble) -> torch.Tensor:
        rows = [ensemble.correct(PGD(member=i, steps=10)(ensemble, x, y, BALL), y) for i in range(len(ensemble))]
        return torch.stack([row.double().mean(1) for row in rows])

    return matrix


@pytest.fixture(scope="session")
def transfer(test_set: tuple[torch.Tensor, torch.Tensor]) -> Callable[[RandomizedEnsemble], float]:
    """Of the samples that both members know and that fool i, how many fool j too; the mean over i != j."""
    x, y = test_set

    def rate(ensemble: RandomizedEnsemble) -> float:
        clean, rates = ensemble.correct(x, y), []
        for i in range(len(ensemble)):
            attacked = ensemble.correct(PGD(member=i, steps=10)(ensemble, x, y, Ball("linf", 0.1)), y)
            for j in set(range(len(ensemble))) - {i}:
                fooled = clean[i] & clean[j] & ~attacked[i]
                rates.append(float((~attacked[j])[fooled].double().mean()))
        return sum(rates) / len(rates)

    return rate


@pytest.fixture(scope="session")
def natural() -> RandomizedEnsemble:
    """Three plain members."""
    return small("natural", members=3, epochs=4)


@pytest.fixture(scope="session")
def at() -> RandomizedEnsemble:
    return small("at", epochs=4)
