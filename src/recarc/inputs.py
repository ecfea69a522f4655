"""Is this a problem that can be attacked? Checks of inputs and labels, each refused in one clear line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recarc.errors import InputError

EIGHT_BIT, NORMALISED = 16.0, 0.1  # above the one no image is normalised, below minus the other none is in [0, 1]
CHANNELS = (1, 3, 4)


def check_x(x: Any) -> None:
    """A floating-point tensor with a leading batch."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InputError(f"x is {_kind(x)}; expected a floating-point tensor, 8-bit images divided by 255")
    if x.dim() < 2:
        raise InputError(f"x has shape {tuple(x.shape)}; expected a leading batch, e.g. (B, C, H, W) or (B, D)")


def check_y(y: Any, x: Tensor) -> None:
    """Integer labels, one per sample of x."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool or y.is_complex():
        raise InputError(f"y is {_kind(y)}; expected a tensor of integer labels")
    if y.dim() == 2:
        raise InputError(f"y has shape {tuple(y.shape)}; expected labels (B,), so take y.argmax(1) of one-hot rows")
    if y.shape != x.shape[:1]:
        raise InputError(f"x has {len(x)} samples and y has shape {tuple(y.shape)}; expected one label per sample")


def check_finite(x: Tensor, rows: Sequence[int] | None = None) -> None:
    """No NaN and no infinity; `rows` are the indices of x in the data set."""
    bad = (~torch.isfinite(x.flatten(1)).all(1)).nonzero()
    if len(bad):
        first = int(bad[0]) if rows is None else int(rows[int(bad[0])])
        raise InputError(f"x holds NaN or infinity in {len(bad)} samples, the first is sample {first}")


def check_scale(x: Tensor, box: tuple[float, float] | None) -> None:
    """Refuse inputs that are plainly 8-bit, or normalised, where images in [0, 1] are expected."""
    if box != (0, 1) or not x.numel():
        return
    low, high = (float(v) for v in torch.aminmax(x))
    if not (math.isfinite(low) and math.isfinite(high)):
        return  # `check_finite` names the sample
    span = f"with values in [{low:.4g}, {high:.4g}]"
    if low >= 0 and high > EIGHT_BIT:
        raise InputError(f"x looks 8-bit, {span}: divide 8-bit images by 255, or give the ball another box")
    if low < -NORMALISED and high <= EIGHT_BIT:
        raise InputError(
            f"x looks normalised, {span}: pass images in [0, 1] and normalise inside the model, so that eps keeps its "
            "meaning, or give the ball another box"
        )


def layout_hint(x: Tensor) -> str | None:
    """What to do about images whose channels come last; None if these are not."""
    channels_last = x.dim() == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS
    return "x looks like HWC images: pass x.permute(0, 3, 1, 2)" if channels_last else None


def check_labels(y: Tensor, classes: int) -> None:
    """Labels that the members know."""
    if bool(((y < 0) | (y >= classes)).any()):
        raise InputError(f"labels span {int(y.min())}..{int(y.max())}; the members know 0..{classes - 1}")


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
