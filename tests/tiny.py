"""Small models and ensembles for the tests, and a photograph of everything an attack must leave alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc import RandomizedEnsemble


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


def mlp(seed: int, dim: int = 6, classes: int = 5, width: int = 16, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random two-layer network with steep, bent decision boundaries inside the unit cube."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, classes)).to(dtype)
    return _steeper(net, 3.0)


def cnn(seed: int, classes: int = 5, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random small convolutional network on (B, 2, 4, 4)."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)).to(dtype)
    return _steeper(net, 3.0)


def _steeper(net: nn.Module, factor: float) -> nn.Module:
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(factor)
    return net.eval()


def mlp_ensemble(
    members: int = 3, alpha: Sequence[float] | None = None, seed: int = 0, dtype: torch.dtype = torch.float64, **kw: int
) -> RandomizedEnsemble:
    return RandomizedEnsemble([mlp(100 * seed + i, dtype=dtype, **kw) for i in range(members)], alpha)


def points(count: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random inputs in the unit box, away from its faces on average."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def labels_of(ensemble: RandomizedEnsemble, x: Tensor) -> Tensor:
    """The heaviest member's answers: labels for which an ensemble has something to lose."""
    with torch.no_grad():
        return ensemble.members[ensemble.order[0]](x).argmax(1)


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


def photograph(ensemble: RandomizedEnsemble, *inputs: Tensor) -> dict[str, Any]:
    """Everything an attack must leave as it was: flags, parameters, buffers, their gradients, inputs."""
    state: dict[str, Any] = {f"training {name}": m.training for name, m in ensemble.named_modules()}
    for name, p in ensemble.named_parameters():
        state[f"parameter {name}"] = p.detach().clone()
        state[f"requires_grad {name}"] = p.requires_grad
        state[f"grad {name}"] = None if p.grad is None else p.grad.clone()
    for name, b in ensemble.named_buffers():
        state[f"buffer {name}"] = b.clone()
    for i, x in enumerate(inputs):
        state[f"input {i}"] = x.detach().clone()
        state[f"input {i} requires_grad"] = x.requires_grad
        state[f"input {i} grad"] = None if x.grad is None else x.grad.clone()
    state["alpha"] = ensemble.alpha.clone()
    state["rng"] = torch.get_rng_state()
    state["grad mode"] = torch.is_grad_enabled()
    return state


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for key, value in before.items():
        other = after[key]
        if isinstance(value, Tensor):
            assert isinstance(other, Tensor) and value.dtype == other.dtype, key
            assert torch.equal(value.nan_to_num(nan=-7.0), other.nan_to_num(nan=-7.0)), f"{key} changed"
        else:
            assert value == other, f"{key} changed from {value} to {other}"
