"""Joint certificates: sets of members that no point of the ball fools together.

Let margin_ic(x') >= a_ic . x' + b_ic on the ball. The members S are not all wrong at one point if for every choice of
wrong classes c_i there are weights lambda on the simplex such that sum_i lambda_i (a_ic_i . x' + b_ic_i) is positive on
the whole ball: wherever it is, some margin is. Choices grow member by member, and one that contains an excluded choice
is excluded.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.ensemble import rounded
from recarc.exact.bounds import NUMBERS, Margins
from recarc.exact.floors import Floor
from recarc.simplex import project_simplex

ALL_SETS = 8  # members up to which every set is looked at; beyond, only single members and pairs
MOST_CHOICES = 2**20  # of wrong classes, for one set on all samples of a batch; with more it is not excluded
ITERATIONS = 30  # of the search for lambda
Set = tuple[int, ...]


def sets_of(members: int) -> list[Set]:
    """The sets that certificates speak of, small ones first."""
    most = members if members <= ALL_SETS else 2
    return [s for size in range(1, most + 1) for s in itertools.combinations(range(members), size)]


@dataclass(frozen=True)
class Certified:
    """What is proved on each of B samples: `excluded` (K, B) says of each of `sets_of(M)` that no point fools it.

    `fooled` (M, B) are members that were seen to be wrong together at one point of the ball, such as x itself.
    """

    excluded: Tensor
    fooled: Tensor
    x_adv: Tensor | None = None  # (B, ...) that point

    @property
    def sets(self) -> list[Set]:
        return sets_of(len(self.fooled))

    @property
    def alone(self) -> Tensor:
        """(M, B) members that no point fools."""
        return self.excluded[: len(self.fooled)]

    def worst(self, alpha: Tensor) -> Tensor:
        """(M, B) the heaviest set of members that no certificate excludes; beyond ALL_SETS members a superset of it."""
        members, alpha = len(self.fooled), alpha.to(self.excluded.device)
        if members <= ALL_SETS:
            inside = torch.zeros(len(self.excluded) + 1, members, dtype=torch.bool, device=self.excluded.device)
            for row, s in enumerate(self.sets, 1):
                inside[row, list(s)] = True
            weight = (
                (alpha * inside)
                .sum(1)[:, None]
                .masked_fill(torch.cat([torch.zeros_like(self.excluded[:1]), self.excluded]), -1.0)
            )
            return inside[weight.argmax(0)].T
        return self._packed(alpha)

    def _packed(self, alpha: Tensor) -> Tensor:
        """Of disjoint excluded pairs one member each is right, at least the lighter: greedily, heavy pairs first."""
        right, used = self.alone.clone(), self.alone.clone()
        pairs = [(k, s) for k, s in enumerate(self.sets) if len(s) == 2]
        for k, (i, j) in sorted(pairs, key=lambda pair: -min(float(alpha[m]) for m in pair[1])):
            free = self.excluded[k] & ~used[i] & ~used[j]
            lighter = i if alpha[i] <= alpha[j] else j
            right[lighter] |= free
            used[i] |= free
            used[j] |= free
        return ~right

    def floor(self, alpha: Tensor) -> Floor:
        """No attack leaves less than this: 1 - max alpha(S) over the sets that are not excluded."""
        alpha = alpha.to(self.excluded.device)
        lowest = rounded(1 - (alpha[:, None] * self.worst(alpha)).sum(0))
        upper = rounded(1 - (alpha[:, None] * self.fooled).sum(0))
        return Floor(lowest, upper, self.alone.double().mean(1))


def joint_certificates(margins: Sequence[Margins]) -> Tensor:
    """(K, B): which of `sets_of(M)` cannot be fooled together, from every member's linear bounds on the same balls."""
    return _Search(margins).run()


class _Search:
    def __init__(self, margins: Sequence[Margins]) -> None:
        self.x, self.ball, self.margins = margins[0].known.x, margins[0].known.ball, margins
        self.a = [m.a.flatten(2) for m in margins]
        self.open = [m.open for m in margins]
        self.slack = torch.stack([m.slack for m in margins]).amax(0)
        self.classes = self.open[0].shape[1]
        self.left: dict[Set, Tensor] = {}  # choices that are not excluded, (n, 1 + |S|): the sample, then a class each

    def run(self) -> Tensor:
        excluded: list[Tensor] = []
        for s in sets_of(len(self.margins)):
            bits = torch.ones(len(self.x), dtype=torch.bool, device=self.x.device)
            for part in itertools.combinations(s, len(s) - 1):
                if part and part not in self.left:  # too many choices: nothing is known
                    break
            else:
                choices = self._choices(s)
                if choices is not None:
                    self.left[s] = choices if len(s) == 1 else choices[~self._excluded(s, choices)]
            if s in self.left:
                bits[self.left[s][:, 0]] = False
            else:
                bits = self._by_parts(s, excluded)
            excluded.append(bits)
        return torch.stack(excluded)

    def _by_parts(self, s: Set, excluded: list[Tensor]) -> Tensor:
        """A set is excluded at least where one of its parts is."""
        parts = [bits for part, bits in zip(sets_of(len(self.margins)), excluded) if set(part) < set(s)]
        return torch.stack(parts).any(0)

    def _choices(self, s: Set) -> Tensor | None:
        """The choices of classes for s none of whose parts is excluded; None if they are too many."""
        if len(s) == 1:
            return self.open[s[0]].nonzero()
        head, last = self.left[s[:-1]], self.left[s[-1:]]
        count = torch.bincount(last[:, 0], minlength=len(self.x))
        total = int(count[head[:, 0]].sum())
        if total > MOST_CHOICES or len(self.x) * self.classes ** len(s) >= 2**62:
            return None
        first = torch.cumsum(count, 0) - count  # `last` is ordered by sample
        row = torch.arange(len(head), device=head.device).repeat_interleave(count[head[:, 0]])
        offset = torch.arange(total, device=head.device) - (torch.cumsum(count[head[:, 0]], 0) - count[head[:, 0]])[row]
        choices = torch.cat([head[row], last[first[head[row, 0]] + offset, 1:]], dim=1)
        for skipped in range(len(s) - 1):
            part = (*s[:skipped], *s[skipped + 1 :])
            columns = [0, *(1 + k for k in range(len(s)) if k != skipped)]
            choices = choices[torch.isin(self._key(choices[:, columns]), self._key(self.left[part]))]
        return choices

    def _key(self, choices: Tensor) -> Tensor:
        key = choices[:, 0]
        for column in choices.T[1:]:
            key = key * self.classes + column
        return key

    def _excluded(self, s: Set, choices: Tensor) -> Tensor:
        """(n,) bits: does some lambda show that these margins are not all <= 0 at one point?"""
        at_once = max(1, NUMBERS.get(self.x.device.type, NUMBERS["cpu"]) // (len(s) * self.a[0].shape[2]))
        parts = [self._ascend(s, part) for part in choices.split(at_once)]
        return torch.cat(parts) if parts else choices.new_zeros(0, dtype=torch.bool)

    def _ascend(self, s: Set, choices: Tensor) -> Tensor:
        """Polyak steps on the concave g(lambda) = min over the ball of sum_i lambda_i (a_i . x' + b_i).

        Its supergradient are the margins' bounds at the minimiser; where none of them is positive, no lambda helps.
        """
        sample = choices[:, 0]
        columns = list(zip(s, choices.T[1:]))
        a = torch.stack([self.a[i][sample, c] for i, c in columns], dim=1)
        b = torch.stack([self.margins[i].b[sample, c] for i, c in columns], dim=1)
        x, enough = self.x[sample].flatten(1), self.slack[sample]
        found = torch.zeros(len(choices), dtype=torch.bool, device=x.device)
        todo = torch.arange(len(choices), device=x.device)
        weights = torch.full_like(b, 1 / len(s))
        for _ in range(ITERATIONS):
            if not len(todo):
                break
            point = x + self.ball.take(sample).lowest(torch.einsum("rk,rkd->rd", weights, a), x)
            values = torch.einsum("rkd,rd->rk", a, point) + b
            g = (weights * values).sum(1)
            found[todo[g > enough]] = True
            tangent = values - values.mean(1, keepdim=True)
            step = (2 * enough - g).clamp(min=0) / tangent.square().sum(1).clamp(min=1e-300)
            weights = project_simplex(weights + step[:, None] * tangent)
            rest = ((g <= enough) & (values.amax(1) > 0)).nonzero()[:, 0]
            todo, weights, a, b, x = todo[rest], weights[rest], a[rest], b[rest], x[rest]
            sample, enough = sample[rest], enough[rest]
        return found


def vacuous(excluded: Tensor) -> bool:
    """Whether nothing at all is excluded on any sample: such a certificate says nothing, not that the floor is 0."""
    return not bool(excluded.any())
