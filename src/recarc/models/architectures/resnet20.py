"""ResNet-20 for CIFAR (He et al. 2016, Section 4.2): three stages of three blocks, 0.27M parameters."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import BasicBlock, conv3x3, global_average, init_convolutions, stage
from recarc.models.registry import check_count

Shortcut = Literal["identity", "conv"]


class ResNet20(nn.Module):
    def __init__(self, classes: int, channels: int, shortcut: Shortcut, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(channels, width), nn.BatchNorm2d(width)
        block = partial(BasicBlock, shortcut=shortcut)
        self.layer1 = stage(block, width, width, 1, 3)
        self.layer2 = stage(block, width, 2 * width, 2, 3)
        self.layer3 = stage(block, 2 * width, 4 * width, 2, 3)
        self.fc = nn.Linear(4 * width, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(global_average(x))


def make(
    classes: int, channels: int, image_size: int, *, shortcut: Shortcut = "identity", width: int = 16
) -> nn.Module:
    """`shortcut`: the paper's parameter-free option A ("identity"), or a 1x1 convolution with batch norm ("conv").

    `width`: channels of the first stage. Cost grows with its square: 28 costs as much as three of 16.
    """
    check_count("width", width, 1)
    return ResNet20(classes, channels, shortcut, width)
