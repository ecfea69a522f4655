"""Is this a problem that can be attacked? Checks of inputs and labels, each refused in one clear line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recarc.errors import InputError


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


def check_labels(y: Tensor, classes: int) -> None:
    """Labels that the members know."""
    if bool(((y < 0) | (y >= classes)).any()):
        raise InputError(f"labels span {int(y.min())}..{int(y.max())}; the members know 0..{classes - 1}")


def _kind(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
