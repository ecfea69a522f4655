"""Small models and ensembles for the tests, beside those of `recarc.testing`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc import RandomizedEnsemble
from recarc.testing import assert_unchanged, labels_of, mlp, photograph, points

__all__ = ["assert_unchanged", "labels_of", "mlp", "photograph", "points"]  # and what is defined here


def binary(w: Sequence[float] | Tensor, b: float, dtype: torch.dtype = torch.float64) -> nn.Linear:
    """The paper's binary linear classifier f(x) = <w, x> + b as two logits (0, f): label 1 iff f > 0, else 0."""
    w = torch.as_tensor(w, dtype=dtype)
    member = nn.Linear(len(w), 2, dtype=dtype)
    with torch.no_grad():
        member.weight.copy_(torch.stack([torch.zeros_like(w), w]))
        member.bias.copy_(torch.tensor([0.0, b], dtype=dtype))
    return member


def linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """The affine member with these weights (C, D) and biases (C,)."""
    member = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    with torch.no_grad():
        member.weight.copy_(weight)
        member.bias.copy_(bias)
    return member


def cnn(seed: int, classes: int = 5, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random small convolutional network on (B, 2, 4, 4)."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(3.0)
    return net.eval()


def mlp_ensemble(
    members: int = 3, alpha: Sequence[float] | None = None, seed: int = 0, dtype: torch.dtype = torch.float64, **kw: int
) -> RandomizedEnsemble:
    return RandomizedEnsemble([mlp(100 * seed + i, dtype=dtype, **kw) for i in range(members)], alpha)


class Malicious:
    """A pickle of this creates a folder when it is loaded without care."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


class Recorder(nn.Module):
    """Passes inputs on and remembers them; `with_gradient` counts the calls that build a graph."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[Tensor] = []
        self.with_gradient = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        self.with_gradient += int(x.requires_grad and torch.is_grad_enabled())
        return self.inner(x)
