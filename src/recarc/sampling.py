"""Choosing the sampling probabilities: the paper's grid, OSP, and a cutting-plane linear program.

The error of an ensemble under the best attack is convex and piecewise linear in alpha, and the set of fooled members is
a subgradient. So every pattern of fooled members that an attack finds is a plane below that error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from recarc.attacks import AdaptivePGD, Attack, Climb, Tight
from recarc.attacks.polish import polish
from recarc.attacks.problem import Problem, frozen_problem
from recarc.ensemble import Member, RandomizedEnsemble, frozen
from recarc.errors import InputError
from recarc.evaluation.intervals import paired_interval, wilson
from recarc.evaluation.result import Estimate, estimate
from recarc.geometry import Ball
from recarc.randomness import sample_keys, uniform
from recarc.runtime import kernel_settings
from recarc.simplex import MOST_POINTS as MOST_POINTS
from recarc.simplex import ROUNDS, check_grid, projected_descent, simplex_grid
from recarc.simplex import grid_size as grid_size
from recarc.simplex import project_simplex as project_simplex

Patterns = np.ndarray  # (M, N) bool: which members are fooled
Watch = Callable[[str, list[float], float], None]  # given (method, alpha, accuracy) after each attack
MATTERS = 0.005  # a P(R) of less than half a point is none, however wide its interval
HALVES = 0x1A1F  # seed of the numbers that put a sample into one half or the other


@dataclass(frozen=True)
class Choice:
    """alpha as one method chose it, and the accuracy that this method's own attack left (`believed`)."""

    method: str
    alpha: list[float]
    believed: float
    history: list[tuple[list[float], float]]  # every alpha tried, with its accuracy under that attack


@dataclass(frozen=True)
class AttackedSamples:
    """Labelled inputs on the members' device, attacked in batches; remembers every pattern found on them.

    `search`: copies of the members to search with, such as accelerated ones; the members themselves judge.
    """

    x: Tensor
    y: Tensor
    ball: Ball
    batch_size: int = 512
    seen: list[Patterns] = field(default_factory=list)
    search: Sequence[Member] | None = None

    def batches(self) -> Iterator[tuple[Tensor, Tensor, Ball]]:
        for start in range(0, len(self.x), self.batch_size):
            rows = torch.arange(start, min(start + self.batch_size, len(self.x)), device=self.x.device)
            yield self.x[rows], self.y[rows], self.ball.take(rows)

    def patterns(self, ensemble: RandomizedEnsemble, attack: Attack) -> Patterns:
        """Which members the attack fools on each sample."""
        parts = []
        for x, y, ball in self.batches():
            x_adv = attack(self._searched(ensemble), x, y, ball)
            parts.append(self._fooled(Problem(ensemble, x, y, ball), x_adv))
        self.seen.append(torch.cat(parts, 1).cpu().numpy())
        return self.seen[-1]

    def witnessed(self, ensemble: RandomizedEnsemble, attack: Tight) -> None:
        """Remember what a tight attack finds: its best point, and for each member a point that fools it."""
        size = len(ensemble)
        found: list[list[Tensor]] = [[] for _ in range(size + 1)]
        for x, y, ball in self.batches():
            with frozen_problem(self._searched(ensemble), x, y, ball) as problem:
                outcome = attack.outcome(problem)
                assert outcome.witnesses is not None
            for i, x_adv in enumerate([*outcome.witnesses, outcome.mixture[0][1]]):
                found[i].append(self._fooled(Problem(ensemble, x, problem.y, ball), x_adv))
        self.seen.extend(torch.cat(parts, 1).cpu().numpy() for parts in found)

    def _fooled(self, problem: Problem, x_adv: Tensor) -> Tensor:
        """(M, B) whom x_adv fools; points that fool only the copies are pushed on first, as `evaluate` does."""
        ensemble = problem.ensemble
        with frozen(ensemble), torch.no_grad(), kernel_settings(x_adv.device, tf32=False):
            wrong = ~ensemble.correct(x_adv, problem.y)
            if self.search is None:
                return wrong
            pushed = polish(problem, self._searched(ensemble), x_adv, wrong)
            return ~ensemble.correct(pushed, problem.y)

    def _searched(self, ensemble: RandomizedEnsemble) -> RandomizedEnsemble:
        return ensemble if self.search is None else ensemble.with_members(self.search)

    def scores(self, alpha: list[float]) -> np.ndarray:
        """(N,) expected accuracy at `alpha` under the worst pattern seen on each sample."""
        return worst_scores(alpha, self.seen)

    def accuracy(self, alpha: list[float]) -> float:
        """The mean of `scores`."""
        return float(self.scores(alpha).mean())

    def halves(self) -> tuple[AttackedSamples, AttackedSamples]:
        """Two halves, one to choose on and one to score on. Which one a sample is in depends on its pixels alone."""
        first = uniform(sample_keys(self.x, HALVES), 1)[:, 0] < 0.5
        if not 0 < int(first.sum()) < len(first):
            raise InputError(f"{len(first)} samples cannot be cut into two halves: give more of them")
        rows = (first.nonzero()[:, 0], (~first).nonzero()[:, 0])
        return tuple(replace(self, x=self.x[r], y=self.y[r], ball=self.ball.take(r), seen=[]) for r in rows)  # type: ignore[return-value]


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
    known: dict[tuple[float, ...], np.ndarray] = {}  # members that err alike leave alpha where it is

    def errors(alpha: Tensor) -> Tensor:
        key = tuple(alpha.tolist())
        if key not in known:
            known[key] = samples.patterns(ensemble.with_alpha(alpha), attack).mean(1)
        g = known[key]
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


def certified(ensemble: RandomizedEnsemble, samples: AttackedSamples, watch: Watch | None = None) -> Choice:
    """The alpha with the highest certified floor: the same program over the sets that no certificate excludes."""
    from recarc.exact.certificate import Certificate
    from recarc.exact.joint import ALL_SETS

    if len(ensemble) > ALL_SETS:
        raise InputError(f"alpha is chosen by certificates for at most {ALL_SETS} members, not for {len(ensemble)}")
    found = [Certificate()(ensemble, x, y, ball) for x, y, ball in samples.batches()]
    open_sets = ~torch.cat([part.excluded for part in found], dim=1).cpu().numpy()
    patterns = []
    for members, is_open in zip(found[0].sets, open_sets):
        patterns.append(np.zeros((len(ensemble), len(samples.x)), dtype=bool))
        patterns[-1][list(members)] = is_open
    alpha, error = best_for_patterns(patterns)
    if watch is not None:
        watch("certified", alpha, 1 - error)
    return Choice("certified", alpha, 1 - error, [(alpha, 1 - error)])


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

    e_i: share of samples on which member i can be fooled alone; P(R): share on which each can be fooled alone, but not
    both together. `p_r` is its upper end, the share on which no perturbation that was found fools both; its lower end
    is 0, as the floor has it: what can be fooled alone can be fooled together.
    """

    e_1: float
    e_2: float
    p_r: float
    samples: int = field(default=0, compare=False)

    @property
    def helps(self) -> bool:
        return self.p_r > abs(self.e_1 - self.e_2)

    def error(self, alpha_1: float, p_r: float | None = None) -> float:
        """alpha_1 e_1 + alpha_2 e_2 - min(alpha) P(R); P(R) as found, unless given."""
        p_r = self.p_r if p_r is None else p_r
        return alpha_1 * self.e_1 + (1 - alpha_1) * self.e_2 - min(alpha_1, 1 - alpha_1) * p_r

    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % intervals of e_1, e_2 and P(R) as found."""
        return {name: wilson(getattr(self, name), self.samples) for name in ("e_1", "e_2", "p_r")}

    def identity(self, alpha_1: float) -> str:
        """The error at alpha in terms of e_1, e_2 and P(R), at both ends of P(R)."""
        e_1, e_2, p_r = (_shown(getattr(self, name), ends) for name, ends in self.intervals().items())
        return (
            f"error = alpha_1 e_1 + alpha_2 e_2 - min(alpha) P(R), with e_1 = {e_1}, e_2 = {e_2} and P(R) between 0 "
            f"(the floor) and {p_r} (as found): at alpha = ({alpha_1:.4g}, {1 - alpha_1:.4g}) the error is between "
            f"{100 * self.error(alpha_1):.2f} % and {100 * self.error(alpha_1, 0.0):.2f} %."
        )

    @property
    def sentence(self) -> str:
        better, other = ("first", "second") if self.e_1 <= self.e_2 else ("second", "first")
        figures = (
            f"on {100 * self.p_r:.2f} % of the samples each member can be fooled, but not both by the same "
            f"perturbation, and the {other} can be fooled alone on {100 * abs(self.e_1 - self.e_2):.2f} % more samples "
            f"than the {better}"
        )
        low, high = self.intervals()["p_r"]
        if self.samples and low <= abs(self.e_1 - self.e_2) <= high and high > MATTERS:
            return (
                f"These {self.samples} samples are too few to tell whether randomizing helps: {figures}. The {better} "
                f"member alone keeps {100 * (1 - min(self.e_1, self.e_2)):.2f} % of them, alpha = (1/2, 1/2) "
                f"{100 * (1 - self.error(0.5)):.2f} %."
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
    samples.witnessed(ensemble.with_alpha([0.5, 0.5]), attack or Tight())
    alone, both = np.any(samples.seen, axis=0), np.any([pattern.all(0) for pattern in samples.seen], axis=0)
    e_1, e_2 = alone.mean(1).tolist()
    return TwoMembers(e_1, e_2, float((alone.all(0) & ~both).mean()), len(samples.x))


@dataclass(frozen=True)
class Gain:
    """What drawing members at random gains in accuracy over one of them alone, and the most that any alpha could gain.

    `most` is a bound as far as the attacks on the member alone reach: every pattern found is a plane below the error.
    """

    member: int
    alone: Estimate  # accuracy of that member
    gain: Estimate  # of the given alpha; paired over the samples
    most: Estimate  # of the best alpha for the patterns found

    @property
    def sentence(self) -> str:
        alone, gain, most = (_shown(e.value, (e.low, e.high), "") for e in (self.alone, self.gain, self.most))
        return (
            f"Over member {self.member} alone, which keeps {alone} %, this alpha gains {gain} points, and no alpha "
            f"can gain more than {most}."
        )


def gain_over(member: int, alpha: list[float], samples: AttackedSamples) -> Gain:
    """What `alpha` and what the best alpha gain over a member; choose alpha and member on other samples."""
    alone = worst_scores(_only(member, len(alpha)), samples.seen)
    return Gain(member, estimate(alone), _gain(alpha, member, samples.seen), most_gain(member, samples.seen))


def most_gain(member: int, seen: Sequence[Patterns]) -> Estimate:
    """What the best alpha gains over a member, for the patterns found.

    Which alpha is the best of all does not depend on the samples, and on them it gains no more than the one that is
    best for them. So the latter's gain is an upper bound. Its interval ends where the highest of several ends: of that
    alpha, of the uniform one and of the vertices.
    """
    size = len(seen[0])
    best = _gain(best_for_patterns(list(seen))[0], member, seen)
    others = [[1 / size] * size, *(_only(i, size) for i in range(size))]
    high = max(_gain(other, member, seen).high for other in others)
    return Estimate(best.value, max(0.0, best.low), max(best.high, high))


def worst_scores(alpha: Sequence[float], seen: Sequence[Patterns]) -> np.ndarray:
    """(N,) expected accuracy at `alpha` under the worst pattern seen on each sample."""
    return 1 - np.max(np.array(alpha) @ np.stack(seen), axis=0).clip(0, 1)


def _gain(alpha: list[float], member: int, seen: Sequence[Patterns]) -> Estimate:
    alone = _only(member, len(alpha))
    gains = worst_scores(alpha, seen) - worst_scores(alone, seen)
    return Estimate(float(gains.mean()), *((0.0, 0.0) if alpha == alone else paired_interval(gains)))


def _only(member: int, members: int) -> list[float]:
    return [float(i == member) for i in range(members)]


def _shown(share: float, ends: tuple[float, float], unit: str = " %") -> str:
    """A share in percent with its interval."""
    return f"{100 * share:.2f}{unit} [{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]"
