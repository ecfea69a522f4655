"""A user's own module, as the factory tests import it."""

from __future__ import annotations

from torch import nn


def make(hidden: int = 4) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def not_a_model() -> str:
    return "logits"
