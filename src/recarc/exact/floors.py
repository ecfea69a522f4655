"""Floors and bounds that hold for any ensemble, from what is known of each member alone.

Per sample, no attack brings L below the sum of alpha_i over the members that cannot be fooled alone, and the best
attack brings it down to 1 - max alpha_i over those that can, or lower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.ensemble import RandomizedEnsemble, rounded
from recarc.errors import InputError
from recarc.geometry import Ball


@dataclass(frozen=True)
class Floor:
    """Bounds on the expected accuracy under the best attack, from (M, B) bits `alone`: member i withstands.

    `per_sample` and `mean` are the floor sum_i alpha_i alone_i; `upper` (B,) is 1 - max alpha_i over the others;
    `members` (M,) the share of samples on which each member withstands.
    """

    per_sample: Tensor
    upper: Tensor
    members: Tensor

    @property
    def mean(self) -> float:
        return float(self.per_sample.mean()) if len(self.per_sample) else float("nan")


def member_floor(ensemble: RandomizedEnsemble, alone: Tensor) -> Floor:
    """The floor from per-member attacks: relative to those attacks, since a stronger one may fool a member yet."""
    alpha = ensemble.alpha.to(alone.device)
    foolable = torch.where(alone, 0.0, alpha[:, None])
    upper = rounded(1 - foolable.amax(0))
    return Floor(ensemble.score(alone), upper, alone.double().mean(1))


def certified_floor(
    ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, radius: Callable[[int, Tensor, Tensor], Tensor]
) -> Floor:
    """The floor from certificates: no attack can go below it.

    `radius(i, x, y)` gives the (B,) radius in the ball's norm within which member i provably keeps the label y.
    """
    certified = []
    for i in range(len(ensemble)):
        values = radius(i, x, y)
        if values.shape != x.shape[:1] or bool(values.isnan().any()):
            raise InputError(
                f"certified radii of member {i} have shape {tuple(values.shape)} or NaN; expected ({len(x)},)"
            )
        certified.append(values.to(x.device) >= ball.radius(x))
    return member_floor(ensemble, torch.stack(certified) & ensemble.correct(x, y))
