"""Wide ResNet 28-4 (Zagoruyko and Komodakis 2016, Table 1): pre-activation blocks, four times as wide."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import PreActBlock, conv3x3, global_average, init_convolutions, stage


class WideResNet(nn.Module):
    """Depth 6n + 4: a convolution, three stages of n blocks with two convolutions each, a linear head."""

    def __init__(self, classes: int, channels: int, depth: int, widen: int) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        self.conv1 = conv3x3(channels, 16)
        self.layer1 = stage(PreActBlock, 16, 16 * widen, 1, blocks)
        self.layer2 = stage(PreActBlock, 16 * widen, 32 * widen, 2, blocks)
        self.layer3 = stage(PreActBlock, 32 * widen, 64 * widen, 2, blocks)
        self.bn1 = nn.BatchNorm2d(64 * widen)
        self.fc = nn.Linear(64 * widen, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(global_average(F.relu(self.bn1(x))))


def make(classes: int, channels: int, image_size: int) -> nn.Module:
    return WideResNet(classes, channels, depth=28, widen=4)
