"""Pre-activation ResNet-18 for CIFAR (He et al. 2016b), the network of many adversarially trained checkpoints."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import PreActBlock, conv3x3, global_average, init_convolutions, stage


class PreActResNet18(nn.Module):
    """The residual sum leaves the last block without an activation, so one more batch norm and ReLU follow."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, 64)
        self.layer1 = stage(PreActBlock, 64, 64, 1, 2)
        self.layer2 = stage(PreActBlock, 64, 128, 2, 2)
        self.layer3 = stage(PreActBlock, 128, 256, 2, 2)
        self.layer4 = stage(PreActBlock, 256, 512, 2, 2)
        self.bn = nn.BatchNorm2d(512)
        self.fc = nn.Linear(512, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        return self.fc(global_average(F.relu(self.bn(x))))


def make(classes: int, channels: int, image_size: int) -> nn.Module:
    return PreActResNet18(classes, channels)
