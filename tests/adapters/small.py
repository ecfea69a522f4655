"""A small image problem for the tests of the adapters, and a way to run code that needs a torchvision."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from interpreter import run_python
from recarc import ARC, AdaptivePGD, Attack, Ball, Climb, RandomizedEnsemble, Tight
from tiny import cnn

ALPHA = [0.5, 0.3, 0.2]
BALL = Ball("linf", 0.1)
HINT = "not installed: `make peers`"
OURS = [ARC(steps=5), AdaptivePGD(steps=5), Climb(start=ARC(variant="corrected"), steps=5), Tight("quick")]


def name_of(attack: Attack) -> str:
    return type(attack).__name__


def models() -> list[nn.Module]:
    return [cnn(i, dtype=torch.float32) for i in range(3)]


def problem(count: int = 12) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Three small networks on (B, 2, 4, 4), with the labels of the heaviest."""
    ensemble = RandomizedEnsemble(models(), ALPHA)
    x = torch.rand(count, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return ensemble, x, ensemble.members[0](x).argmax(1)


class Scaled(nn.Module):
    """The model for inputs that were mapped to (x - mean) / std."""

    def __init__(self, net: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        self.net, self.shift, self.scale = net, mean, std
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x * self.scale + self.shift)


def with_stand_ins(script: str, *arguments: str) -> str:
    """Run a script where packages like `torchvision`, which need not install beside this torch, are empty shells."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    done = run_python("-W", "ignore", "-c", f"import shells\n{script}", *arguments, PYTHONPATH=path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
