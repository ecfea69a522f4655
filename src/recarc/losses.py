"""Per-sample losses on logits, and the margin that every attack here reasons about."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.errors import unknown


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(f)_y, (B,); half-precision logits are computed in float32."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """f_y - max_{c != y} f_c, (B,): negative iff the member is fooled."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return own - others


def negative_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The margin as a loss to be increased."""
    return -margin(logits, y)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"ce": cross_entropy, "margin": negative_margin}


def loss_named(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    return LOSSES[name]
