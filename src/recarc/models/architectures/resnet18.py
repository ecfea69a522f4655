"""ResNet-18 (He et al. 2016, Table 1), with the ImageNet stem or the 3x3 stem usual for CIFAR."""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import BasicBlock, conv3x3, global_average, init_convolutions, stage

Stem = Literal["cifar", "imagenet"]


class ResNet18(nn.Module):
    def __init__(self, classes: int, channels: int, stem: Stem) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
            self.pool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1, self.pool = conv3x3(channels, 64), nn.Identity()
        self.bn1 = nn.BatchNorm2d(64)
        block = partial(BasicBlock, shortcut="conv")
        self.layer1 = stage(block, 64, 64, 1, 2)
        self.layer2 = stage(block, 64, 128, 2, 2)
        self.layer3 = stage(block, 128, 256, 2, 2)
        self.layer4 = stage(block, 256, 512, 2, 2)
        self.fc = nn.Linear(512, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(global_average(x))


def make(classes: int, channels: int, image_size: int, *, stem: Stem = "cifar") -> nn.Module:
    """`stem`: a 3x3 convolution ("cifar"), or 7x7 with stride 2 and max-pooling as in the paper ("imagenet")."""
    return ResNet18(classes, channels, stem)
