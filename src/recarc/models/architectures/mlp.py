"""A small fully connected ReLU network: the case in which the optimum can be computed."""

from __future__ import annotations

import itertools

from torch import Tensor, nn

from recarc.models.registry import check_count


class MLP(nn.Module):
    def __init__(self, features: int, classes: int, width: int, depth: int) -> None:
        super().__init__()
        sizes = [features, *[width] * depth]
        pairs = itertools.pairwise(sizes)
        self.hidden = nn.Sequential(*(layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())))
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.hidden(x.flatten(1)))


def make(classes: int, channels: int, image_size: int, *, width: int = 24, depth: int = 2) -> nn.Module:
    """`depth` hidden layers of `width` ReLUs each."""
    check_count("width", width, 1)
    check_count("depth", depth, 1)
    return MLP(channels * image_size**2, classes, width, depth)
