"""The simplex of sampling probabilities: an even grid on it, the projection onto it, and descent along it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from recarc.errors import InputError

ROUNDS = 10  # of a descent
MOST_POINTS = 1000  # attacks that a grid search may take


def grid_size(members: int, points: int) -> int:
    """How many points the grid on the simplex has."""
    if points < 2:
        raise InputError(f"a grid needs at least 2 points per side, got {points}")
    return math.comb(points + members - 2, members - 1)


def check_grid(members: int, points: int) -> None:
    """Refuse a grid that nobody would wait for."""
    size = grid_size(members, points)
    if size > MOST_POINTS:
        raise InputError(
            f"a grid of {points} points per side for {members} members takes {size:,} attacks, more than "
            f"{MOST_POINTS:,}; use osp or lp, or fewer points"
        )


def simplex_grid(members: int, points: int) -> list[list[float]]:
    """All alpha whose entries are multiples of 1 / (points - 1)."""
    grid_size(members, points)
    total = points - 1
    cuts = itertools.combinations(range(total + members - 1), members - 1)
    bars = ([-1, *cut, total + members - 1] for cut in cuts)
    return [[(b - a - 1) / total for a, b in itertools.pairwise(bar)] for bar in bars]


def projected_descent(
    errors: Callable[[Tensor], Tensor], alpha: Tensor, rounds: int = ROUNDS, step: float = 1.0
) -> tuple[Tensor, float]:
    """Projected subgradient descent on the simplex: the best alpha seen and its error under attack.

    `errors(alpha)` are the members' errors under attack at alpha.
    """
    best, lowest = alpha, float("inf")
    for t in range(1, rounds + 1):
        g = errors(alpha)
        error = float((alpha * g).sum())
        if error < lowest:
            best, lowest = alpha, error
        alpha = project_simplex(alpha - step / t * g)
    return best, lowest


def project_simplex(v: Tensor) -> Tensor:
    """The nearest point of {a >= 0, sum a = 1} to each row (..., M) in the Euclidean norm: v - theta, cut off at 0."""
    ordered = v.sort(descending=True).values
    excess = ordered.cumsum(-1) - 1
    count = torch.arange(1, v.shape[-1] + 1, dtype=v.dtype, device=v.device)
    last = (ordered * count > excess).sum(-1, keepdim=True) - 1
    return (v - excess.gather(-1, last) / (last + 1)).clamp(min=0)
