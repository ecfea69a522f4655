"""A training run at a size that takes seconds."""

from __future__ import annotations

from typing import Any

from recarc import Ball, RandomizedEnsemble
from recarc.training import Method, train

EPS = 0.15
BALL = Ball("linf", EPS)
SMALL: dict[str, Any] = {
    "arch": "cnn",
    "arch_options": {"width": 8},
    "norm": "linf",
    "eps": EPS,
    "device": "cpu",  # exact, also where there is a GPU
    "say": None,
}


def small(method: str | Method, *, epochs: float = 10, **more: Any) -> RandomizedEnsemble:
    """`train` at a size that takes seconds."""
    changes = {"epochs": epochs, **more.pop("changes", {})}
    return train(method, more.pop("data", "digits"), **{**SMALL, **more}, changes=changes)
