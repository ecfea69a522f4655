"""What the members answer on the first samples: a run goes on only with members that still answer the same.

The hash of a member cannot see the code of its `forward`; its answers can.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recarc.ensemble import RandomizedEnsemble
from recarc.evaluation.members import dtype_of

Answers = list[list[str] | None]  # a line of logits for each of the first samples; None: the member is random

SHOWN = 4  # samples
FAR, FAR_IN_HALF = 1e-3, 3e-2  # of the largest logit: more than another machine's rounding


def answers_of(ensemble: RandomizedEnsemble, logits: Tensor, again: Tensor) -> Answers:
    """The first of the (M, B, C) logits; `again` are those of a second call."""
    return [
        None if _apart(a, b) > _allowed(ensemble, i) else _lines(a)
        for i, (a, b) in enumerate(zip(logits.cpu().double().numpy(), again.cpu().double().numpy()))
    ]


def changed_answers(ensemble: RandomizedEnsemble, there: Answers, here: Answers) -> list[str]:
    """One phrase for each member that answers differently."""
    found = []
    for i, (before, now) in enumerate(zip(there, here)):
        if before is None or now is None:
            continue
        apart = _apart(_numbers(before), _numbers(now))
        if apart > _allowed(ensemble, i):
            found.append(f"members[{i}] by {100 * apart:.3g} % of its largest logit")
    return found


def _lines(logits: np.ndarray) -> list[str]:
    return [" ".join(f"{value:.6g}" for value in row) for row in logits[:SHOWN]]


def _numbers(lines: list[str]) -> np.ndarray:
    return np.array([[float(word) for word in line.split()] for line in lines])


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference in units of the largest finite logit; infinite where NaN or infinity moved."""
    finite = np.isfinite(a)
    if a.shape != b.shape or not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return float("inf")
    scale = max(np.abs(a[finite]).max(initial=0.0), np.abs(b[finite]).max(initial=0.0))
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / scale) if scale else 0.0


def _allowed(ensemble: RandomizedEnsemble, i: int) -> float:
    return FAR_IN_HALF if dtype_of(ensemble.members[i]) in (torch.float16, torch.bfloat16) else FAR
