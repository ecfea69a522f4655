"""VGG-16 with batch norm (Simonyan and Zisserman 2015, configuration D) and one linear layer as its head.

The paper's head of three wide layers is meant for 224x224 images. On CIFAR a single layer on the 512 pooled features
is usual; the 14.7M parameters that are quoted for VGG-16 on CIFAR are those of this network.
"""

from __future__ import annotations

from torch import Tensor, nn

from recarc.errors import InputError
from recarc.models.blocks import global_average, init_convolutions

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # (channels, convolutions), a max-pool after each


class VGG16(nn.Module):
    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width, repeats in _STAGES:
            for _ in range(repeats):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, classes)
        init_convolutions(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(global_average(self.features(x)))


def make(classes: int, channels: int, image_size: int) -> nn.Module:
    if image_size < 32:
        raise InputError(f"vgg16 halves the image five times: image_size must be at least 32, got {image_size}")
    return VGG16(classes, channels)
