"""What models are made of: normalisation, so that every one maps images in [0, 1] to logits, and shared blocks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recarc.errors import InputError
from recarc.models.registry import ModelSpec


class Normalize(nn.Module):
    """(x - mean) / std per channel. It checks the shape of its input, because broadcasting would hide a wrong one.

    The constants belong to the description of the model (JSON), not to its weights: the buffers follow device and
    dtype but are not in the state dict.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.expected = (spec.channels, spec.image_size, spec.image_size)
        mean, std = spec.mean or (0.0,) * spec.channels, spec.std or (1.0,) * spec.channels
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.expected:
            c, h, w = self.expected
            raise InputError(f"the model expects images of shape (B, {c}, {h}, {w}), got {tuple(x.shape)}")
        return (x - self.mean) / self.std


class Classifier(nn.Module):
    """Images in [0, 1] (B, C, H, W) -> logits (B, classes). `spec` tells how to rebuild it."""

    spec: ModelSpec | None

    def __init__(self, net: nn.Module, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.normalize = Normalize(spec)
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.normalize(x))


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def conv1x1(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 1, stride, bias=False)


class PadShortcut(nn.Module):
    """Option A of He et al. (2016), Section 4.2: subsample, and fill the new channels with zeros.

    The paper does not say where the zeros go. Here half of them go before and half after, as in the widespread CIFAR
    checkpoints.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        before = (outputs - inputs) // 2
        self.stride, self.pad = stride, (0, 0, 0, 0, before, outputs - inputs - before)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.pad)


class BasicBlock(nn.Module):
    """relu(F(x) + shortcut(x)) with two 3x3 convolutions (He et al. 2016, Figure 5 left)."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            if shortcut == "conv":
                self.downsample = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
            else:
                self.downsample = PadShortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class PreActBlock(nn.Module):
    """x + F(x) with batch norm and ReLU before each convolution (He et al. 2016b; Zagoruyko and Komodakis 2016).

    Where the shape changes, the 1x1 shortcut starts from the activated input.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv3x3(inputs, outputs, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv3x3(outputs, outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv1x1(inputs, outputs, stride))

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return out + (x if self.downsample is None else self.downsample(active))


def stage(block: Callable[[int, int, int], nn.Module], inputs: int, outputs: int, stride: int, count: int) -> nn.Module:
    """`count` blocks, made by block(inputs, outputs, stride); the first of them changes the shape."""
    return nn.Sequential(block(inputs, outputs, stride), *(block(outputs, outputs, 1) for _ in range(count - 1)))


def global_average(x: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, C)."""
    return x.mean(dim=(2, 3))


def init_convolutions(net: nn.Module) -> None:
    """He et al. (2015): normal with variance 2 / fan_out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # holds no values
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
