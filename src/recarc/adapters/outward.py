"""What this package's attacks need when they are called in a peer's style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.checks import look_like_probabilities, warn

PROBE = 8  # inputs that are looked at


def as_rec(models: Any, alpha: Sequence[float] | Tensor | None) -> RandomizedEnsemble:
    """One model, several with sampling probabilities, or a randomized ensemble as it is."""
    if isinstance(alpha, float | int):
        raise InputError(f"alpha is {alpha!r}; here it holds a sampling probability a model; the step is step_size")
    if isinstance(models, RandomizedEnsemble):
        return models if alpha is None else models.with_alpha(alpha)
    several = list(models) if isinstance(models, list | tuple) else [models]
    return RandomizedEnsemble(several, alpha)


def as_labels(y: Any, one_hot: bool = False) -> Tensor:
    """Integer labels (B,). Strings are refused; one-hot rows too, unless the peer's convention is one-hot."""
    if not isinstance(y, Tensor):
        try:
            y = torch.as_tensor(y)
        except (TypeError, ValueError, RuntimeError):
            shown = type(y[0]).__name__ if len(y) else type(y).__name__
            raise InputError(f"labels are {shown}; expected whole numbers 0..classes-1: encode names") from None
    if y.dim() == 2 and one_hot:
        if not bool(((y == 0) | (y == 1)).all() & (y.sum(1) == 1).all()):
            raise InputError("labels are rows of numbers that are not one-hot; give whole numbers or one-hot rows")
        return y.argmax(1)
    return y


@torch.no_grad()
def warn_about_probabilities(ensemble: RandomizedEnsemble, x: Tensor) -> None:
    """The same warning that an evaluation gives, for attacks that are called outside of one."""
    for i, member in enumerate(ensemble.members):
        if len(x) and look_like_probabilities(member(x[:PROBE])):
            warn(f"the outputs of model {i} look like probabilities; attacks expect logits: take the softmax out of it")
