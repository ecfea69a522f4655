"""ResNet-20 for CIFAR (He et al. 2016, Section 4.2): three stages of three blocks, 0.27M parameters."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import BasicBlock, conv3x3, global_average, init_convolutions, stage

Shortcut = Literal["identity", "conv"]


class ResNet20(nn.Module):
    def __init__(self, classes: int, channels: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels, 16), nn.BatchNorm2d(16)
        block = partial(BasicBlock, shortcut=shortcut)
        self.layer1 = stage(block, 16, 16, 1, 3)
        self.layer2 = stage(block, 16, 32, 2, 3)
        self.layer3 = stage(block, 32, 64, 2, 3)
        self.fc = nn.Linear(64, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(global_average(x))


def make(classes: int, channels: int, image_size: int, *, shortcut: Shortcut = "identity") -> nn.Module:
    """`shortcut`: the paper's parameter-free option A ("identity"), or a 1x1 convolution with batch norm ("conv")."""
    return ResNet20(classes, channels, shortcut)
