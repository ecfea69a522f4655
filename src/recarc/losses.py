"""Per-sample losses on logits, and the margin that every attack here reasons about."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.errors import InputError, unknown


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(f)_y, (B,); half-precision logits are computed in float32."""
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), y, reduction="none")


def margin(logits: Tensor, y: Tensor) -> Tensor:
    """f_y - max_{c != y} f_c, (B,): negative only where the member is fooled; 0 at a tie."""
    own = logits.gather(1, y[:, None])[:, 0]
    others = logits.scatter(1, y[:, None], -torch.inf).amax(1)
    return own - others


def margin_over(logits: Tensor, y: Tensor, rival: Tensor) -> Tensor:
    """f_y - f_c for the class c = rival (B,) of each sample."""
    return (logits.gather(1, y[:, None]) - logits.gather(1, rival[:, None]))[:, 0]


def negative_margin(logits: Tensor, y: Tensor) -> Tensor:
    """The margin as a loss to be increased."""
    return -margin(logits, y)


def difference_of_logits_ratio(logits: Tensor, y: Tensor) -> Tensor:
    """Croce and Hein's DLR: the margin over the spread of the top three logits, so that scale does not matter."""
    top = logits.topk(3, dim=1).values
    return -margin(logits, y) / (top[:, 0] - top[:, 2] + _tiny(logits))


def targeted_dlr(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """DLR towards one class: -(f_y - f_t) over the spread of the top four logits."""
    top = logits.topk(4, dim=1).values
    return -margin_over(logits, y, target) / (top[:, 0] - (top[:, 2] + top[:, 3]) / 2 + _tiny(logits))


def _tiny(logits: Tensor) -> float:
    """Keeps equal logits from dividing by zero in any precision."""
    return 1e-12 if logits.dtype in (torch.float32, torch.float64) else 1e-4


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": cross_entropy,
    "dlr": difference_of_logits_ratio,
    "margin": negative_margin,
}


def loss_named(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    return LOSSES[name]


def check_loss(name: str, classes: int) -> None:
    """Refuse a loss that compares more classes than the members have."""
    needed = {"dlr": 3, "dlr_targeted": 4}.get(name, 2)
    if classes < needed:
        raise InputError(f"loss {name!r} needs {needed} classes or more, the members have {classes}; use 'ce'")
