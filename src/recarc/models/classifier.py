"""Normalisation inside the model, so that every model maps images in [0, 1] to logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
