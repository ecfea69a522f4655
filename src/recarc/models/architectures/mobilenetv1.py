"""MobileNetV1 (Howard et al. 2017, Table 1): depthwise 3x3 then pointwise 1x1 convolutions."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from recarc.models.blocks import conv1x1, conv3x3, global_average, init_convolutions

Stem = Literal["cifar", "imagenet"]
# (output channels, stride) of the thirteen separable layers.
_LAYERS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))


class Separable(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv2, self.bn2 = conv1x1(inputs, outputs), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)))


class MobileNetV1(nn.Module):
    def __init__(self, classes: int, channels: int, stem: Stem) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, 32, stride=2 if stem == "imagenet" else 1)
        self.bn1 = nn.BatchNorm2d(32)
        layers: list[nn.Module] = []
        inputs = 32
        for outputs, stride in _LAYERS:
            layers.append(Separable(inputs, outputs, stride))
            inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(F.relu(self.bn1(self.conv1(x))))
        return self.fc(global_average(x))


def make(classes: int, channels: int, image_size: int, *, stem: Stem = "cifar") -> nn.Module:
    """`stem`: the stride of the first convolution, 2 as in the paper ("imagenet") or 1 ("cifar")."""
    return MobileNetV1(classes, channels, stem)
