"""Optimal sampling probabilities (OSP, Dbouk and Shanbhag 2023): the alpha under which the best attack hurts least.

The error under attack is convex and piecewise linear in alpha; the fooled members' rates are a sub-gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 10


@dataclass(frozen=True)
class Sampling:
    """The best alpha seen, its error under attack, and every (alpha, error) in order."""

    alpha: Tensor
    error: float
    rounds: list[tuple[list[float], float]]


def projected_descent(
    errors: Callable[[Tensor], Tensor], alpha: Tensor, rounds: int = ROUNDS, step: float = 1.0
) -> Sampling:
    """Projected sub-gradient descent on the simplex; `errors(alpha)` gives the members' errors under attack there."""
    seen: list[tuple[list[float], float]] = []
    best, lowest = alpha, float("inf")
    for t in range(1, rounds + 1):
        g = errors(alpha)
        error = float((alpha * g).sum())
        seen.append((alpha.tolist(), error))
        if error < lowest:
            best, lowest = alpha, error
        alpha = project_simplex(alpha - step / t * g)
    return Sampling(best, lowest, seen)


def project_simplex(v: Tensor) -> Tensor:
    """The nearest point of {a >= 0, sum a = 1} in the Euclidean norm: v - theta, cut at zero."""
    ordered = v.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    count = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    last = int((ordered * count > excess).sum()) - 1
    return (v - excess[last] / (last + 1)).clamp(min=0)
