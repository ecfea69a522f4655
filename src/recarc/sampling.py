"""Choosing the sampling probabilities: the paper's grid, OSP, and a cutting-plane linear program.

The error of an ensemble under the best attack is convex and piecewise linear in alpha, and the set of fooled members is
a subgradient. So every pattern of fooled members that an attack finds is a plane below that error.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from recarc.attacks import AdaptivePGD, Attack, Climb, Tight
from recarc.attacks.problem import frozen_problem
from recarc.ensemble import RandomizedEnsemble, frozen
from recarc.errors import InputError
from recarc.geometry import Ball

Patterns = np.ndarray  # (M, N) bool: which members are fooled
Watch = Callable[[str, list[float], float], None]  # given (method, alpha, accuracy) after each attack
ROUNDS = 10  # of OSP
MOST_POINTS = 1000  # attacks that a grid search may take


@dataclass(frozen=True)
class Choice:
    """alpha as one method chose it, and the accuracy that this method's own attack left (`believed`)."""

    method: str
    alpha: list[float]
    believed: float
    history: list[tuple[list[float], float]]  # every alpha tried, with its accuracy under that attack


@dataclass(frozen=True)
class AttackedSamples:
    """Labelled inputs on the members' device, attacked in batches; remembers every pattern found on them."""

    x: Tensor
    y: Tensor
    ball: Ball
    batch_size: int = 512
    seen: list[Patterns] = field(default_factory=list)

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Ball]]:
        for start in range(0, len(self.x), self.batch_size):
            rows = torch.arange(start, min(start + self.batch_size, len(self.x)), device=self.x.device)
            yield self.x[rows], self.y[rows], self.ball.take(rows)

    def patterns(self, ensemble: RandomizedEnsemble, attack: Attack) -> Patterns:
        """Which members the attack fools on each sample."""
        parts = []
        for x, y, ball in self.batches():
            x_adv = attack(ensemble, x, y, ball)
            with frozen(ensemble):
                parts.append(~ensemble.correct(x_adv, y))
        self.seen.append(torch.cat(parts, 1).cpu().numpy())
        return self.seen[-1]

    def accuracy(self, alpha: list[float]) -> float:
        """The accuracy at `alpha` under the worst pattern seen on each sample."""
        return 1 - float(np.max(np.array(alpha) @ np.stack(self.seen), axis=0).mean())


def grid_search(
    ensemble: RandomizedEnsemble,
    samples: AttackedSamples,
    attack: Attack | None = None,
    points: int = 11,
    watch: Watch | None = None,
) -> Choice:
    """The paper's choice: the alpha on an even grid of the simplex with the highest accuracy under AdaptivePGD."""
    check_grid(len(ensemble), points)
    attack = attack or AdaptivePGD()
    history = []
    for alpha in simplex_grid(len(ensemble), points):
        fooled = samples.patterns(ensemble.with_alpha(alpha), attack)
        history.append((alpha, 1 - float(np.array(alpha) @ fooled.mean(1))))
        if watch is not None:
            watch("grid", *history[-1])
    alpha, believed = max(history, key=lambda row: row[1])
    return Choice("grid", alpha, believed, history)


def osp(
    ensemble: RandomizedEnsemble,
    samples: AttackedSamples,
    attack: Attack | None = None,
    rounds: int = ROUNDS,
    step: float = 1.0,
    watch: Watch | None = None,
) -> Choice:
    """Dbouk and Shanbhag 2023: alpha <- proj(alpha - (step / t) g), with g_m the error of member m under the attack."""
    attack = attack or Climb(orders=1)
    history: list[tuple[list[float], float]] = []

    def errors(alpha: Tensor) -> Tensor:
        g = samples.patterns(ensemble.with_alpha(alpha), attack).mean(1)
        history.append((alpha.tolist(), 1 - float(alpha.numpy() @ g)))
        if watch is not None:
            watch("osp", *history[-1])
        return torch.from_numpy(g)

    uniform = torch.full((len(ensemble),), 1 / len(ensemble), dtype=torch.float64)
    alpha, error = projected_descent(errors, uniform, rounds, step)
    return Choice("osp", alpha.tolist(), 1 - error, history)


def cutting_planes(
    ensemble: RandomizedEnsemble,
    samples: AttackedSamples,
    attack: Attack | None = None,
    rounds: int = 10,
    tolerance: float = 1e-3,
    watch: Watch | None = None,
) -> Choice:
    """Alternate the attack at alpha with the linear program over all patterns found, until the two agree.

    The program's value is a lower bound on the error of the best alpha under the attack, and the attack's error at the
    proposed alpha an upper one. Starts from the uniform alpha and every vertex.
    """
    attack = attack or Climb(orders=1)
    size = len(ensemble)
    history: list[tuple[list[float], float]] = []
    seen: list[Patterns] = []
    queue = [[1 / size] * size, *np.eye(size).tolist()]
    for _ in range(rounds + len(queue)):
        bound = None
        alpha = queue.pop(0) if queue else None
        if alpha is None:
            alpha, bound = best_for_patterns(seen)
        seen.append(samples.patterns(ensemble.with_alpha(alpha), attack))
        history.append((alpha, 1 - float(np.array(alpha) @ seen[-1].mean(1))))
        if watch is not None:
            watch("lp", *history[-1])
        if bound is not None and 1 - max(value for _, value in history) <= bound + tolerance:
            break
    best, believed = max(history, key=lambda row: row[1])
    return Choice("lp", best, believed, history)


def best_for_patterns(seen: list[Patterns]) -> tuple[list[float], float]:
    """(alpha, value) of min (1/n) sum_j s_j over alpha, with s_j >= u . alpha for every pattern u found on sample j."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_matrix

    stacked = np.stack(seen)  # (R, M, N)
    size, count = stacked.shape[1:]
    groups = Counter(frozenset(map(tuple, stacked[:, :, j].astype(int).tolist())) for j in range(count))
    rows, columns, values = [], [], []
    row = 0
    for g, group in enumerate(groups):
        for pattern in group:
            hit = [m for m in range(size) if pattern[m]]
            rows += [row] * (len(hit) + 1)
            columns += [*hit, size + g]
            values += [1.0] * len(hit) + [-1.0]
            row += 1
    cost = np.concatenate([np.zeros(size), np.array(list(groups.values())) / count])
    matrix = coo_matrix((values, (rows, columns)), shape=(row, size + len(groups)))
    total = np.concatenate([np.ones(size), np.zeros(len(groups))])[None]
    solved = linprog(cost, A_ub=matrix, b_ub=np.zeros(row), A_eq=total, b_eq=[1.0], bounds=(0, 1), method="highs")
    if solved.status != 0:
        raise InputError(f"the linear program for alpha failed: {solved.message}")
    alpha = np.clip(solved.x[:size], 0, None)
    return (alpha / alpha.sum()).tolist(), float(solved.fun)


@dataclass(frozen=True)
class TwoMembers:
    """Does randomizing over two members help at all? Only if P(R) > |e_1 - e_2|.

    e_i: share of samples on which member i can be fooled alone; P(R): share on which each can be fooled alone, but no
    perturbation that was found fools both.
    """

    e_1: float
    e_2: float
    p_r: float

    @property
    def helps(self) -> bool:
        return self.p_r > abs(self.e_1 - self.e_2)

    def error(self, alpha_1: float) -> float:
        """alpha_1 e_1 + alpha_2 e_2 - min(alpha) P(R)."""
        return alpha_1 * self.e_1 + (1 - alpha_1) * self.e_2 - min(alpha_1, 1 - alpha_1) * self.p_r

    @property
    def sentence(self) -> str:
        better, other = ("first", "second") if self.e_1 <= self.e_2 else ("second", "first")
        figures = (
            f"on {100 * self.p_r:.2f} % of the samples each member can be fooled, but not both by the same "
            f"perturbation, and the {other} can be fooled alone on {100 * abs(self.e_1 - self.e_2):.2f} % more samples "
            f"than the {better}"
        )
        if not self.helps:
            return (
                f"Randomizing does not help: {figures}. Use the {better} member alone: it keeps "
                f"{100 * (1 - min(self.e_1, self.e_2)):.2f} %, and drawing the {other} never helps."
            )
        return (
            f"Randomizing helps: {figures}. Use alpha = (1/2, 1/2): it keeps {100 * (1 - self.error(0.5)):.2f} %, "
            f"the {better} member alone {100 * (1 - min(self.e_1, self.e_2)):.2f} %."
        )


def two_members(ensemble: RandomizedEnsemble, samples: AttackedSamples, attack: Tight | None = None) -> TwoMembers:
    """Analyse an ensemble of two, from one tight attack at alpha = (1/2, 1/2) and every pattern seen before."""
    if len(ensemble) != 2:
        raise InputError(f"the two-member analysis needs an ensemble of 2, this one has {len(ensemble)}")
    even, attack = ensemble.with_alpha([0.5, 0.5]), attack or Tight()
    foolable, together = [], []
    for x, y, ball in samples.batches():
        with frozen_problem(even, x, y, ball) as problem:
            outcome = attack.outcome(problem)
            assert outcome.witnesses is not None
            singles = [problem.on_member(i).ensemble.correct(outcome.witnesses[i], problem.y) for i in range(2)]
            foolable.append(~torch.cat(singles))
            together.append(~even.correct(outcome.mixture[0][1], problem.y))
    fooled = torch.cat(foolable, 1).cpu().numpy()
    samples.seen.extend(np.eye(2, dtype=bool)[i, :, None] & fooled for i in range(2))  # each by a point of its own
    samples.seen.append(torch.cat(together, 1).cpu().numpy())
    alone, both = np.any(samples.seen, axis=0), np.any([pattern.all(0) for pattern in samples.seen], axis=0)
    e_1, e_2 = alone.mean(1).tolist()
    return TwoMembers(e_1, e_2, float((alone.all(0) & ~both).mean()))


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
    """The nearest point of {a >= 0, sum a = 1} in the Euclidean norm: v - theta, clamped at zero."""
    ordered = v.sort(descending=True).values
    excess = ordered.cumsum(0) - 1
    count = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    last = int((ordered * count > excess).sum()) - 1
    return (v - excess[last] / (last + 1)).clamp(min=0)
