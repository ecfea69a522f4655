"""ResNet-20 for CIFAR (He et al. 2016, Section 4.2): three stages of three blocks, 0.27M parameters."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import BasicBlock, conv3x3, global_average, init_convolutions

Shortcut = Literal["identity", "conv"]


class ResNet20(nn.Module):
    def __init__(self, classes: int, channels: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels, 16), nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, 1, shortcut)
        self.layer2 = self._stage(16, 32, 2, shortcut)
        self.layer3 = self._stage(32, 64, 2, shortcut)
        self.fc = nn.Linear(64, classes)
        init_convolutions(self)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> nn.Sequential:
        first = BasicBlock(inputs, outputs, stride, shortcut)
        return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1, shortcut) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(global_average(x))


def make(classes: int, channels: int, image_size: int, *, shortcut: Shortcut = "identity") -> nn.Module:
    """`shortcut`: the paper's parameter-free option A ("identity"), or a 1x1 convolution with batch norm ("conv")."""
    return ResNet20(classes, channels, shortcut)
