"""The heaviest set of members that one point can fool, by branching over members with learned infeasible cores."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recarc.exact.halfspaces import TAU, Array, Region, common_point, depth

SAME = 1e-12  # masses closer than this are equal


class Planes(NamedTuple):
    """Half-spaces of wrong answers: a member is fooled where w_k . u + m_k < 0 for one of the k it owns."""

    w: Array  # (K, D)
    m: Array  # (K,)
    owner: NDArray[np.intp]  # (K,)


def heaviest_set(planes: Planes, alpha: Array, region: Region) -> tuple[int, ...]:
    """argmax over jointly foolable sets S of sum_{i in S} alpha_i, as the planes crossed, one for each member of S.

    Foolable sets are closed downwards, so a set grows member by member, heaviest first, and a branch ends when
    it cannot outweigh the best or contains a core: planes that an earlier program proved to have no common point.
    """
    search = _Search(planes, alpha, region)
    search.extend(0, (), np.zeros(planes.w.shape[1]), 0.0)
    return search.best


class _Search:
    def __init__(self, planes: Planes, alpha: Array, region: Region) -> None:
        self.planes, self.alpha, self.region = planes, alpha, region
        self.members = sorted(set(planes.owner.tolist()), key=lambda i: -alpha[i])
        nearest_first = np.argsort(planes.m, kind="stable")
        self.options = {i: [int(k) for k in nearest_first if planes.owner[k] == i] for i in self.members}
        self.rest = [float(sum(alpha[i] for i in self.members[n:])) for n in range(len(self.members) + 1)]
        self.cores: list[frozenset[int]] = []
        self.best: tuple[int, ...] = ()
        self.best_mass = 0.0

    def extend(self, n: int, chosen: tuple[int, ...], point: Array, mass: float) -> None:
        """Try the members from the n-th on, given that `point` is inside all `chosen` half-spaces."""
        if mass > self.best_mass + SAME:
            self.best, self.best_mass = chosen, mass
        if mass + self.rest[n] <= self.best_mass + SAME:
            return
        member = self.members[n]
        for plane in self.options[member]:
            candidate = (*chosen, plane)
            inside = self._point(candidate, point)
            if inside is not None:
                self.extend(n + 1, candidate, inside, mass + float(self.alpha[member]))
        self.extend(n + 1, chosen, point, mass)

    def _point(self, chosen: tuple[int, ...], hint: Array) -> Array | None:
        """A point inside all chosen half-spaces: the hint, if it is inside the last one, or a new one."""
        w, m, _ = self.planes
        if depth(w[chosen[-1:], :], m[chosen[-1:],], hint) > TAU:
            return hint
        if any(core.issubset(chosen) for core in self.cores):
            return None
        index = list(chosen)
        point, core = common_point(w[index], m[index], self.region)
        if point is None:
            self.cores.append(frozenset(index[k] for k in core))
        return point
