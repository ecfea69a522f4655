"""Ground truth for small ReLU networks: which members can be fooled at one point, by mixed-integer programs.

One program a set S of members: is there a point of the ball at which every member of S prefers a wrong class? A ReLU
whose sign is open on the ball is one binary variable, with bounds tightened before (`exact.bounds`). An answer "no" is
a proof within the solver's tolerances; every "yes" is a point at which the members were run; a program that ran out of
time proves nothing and the set stays unknown.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds as Limits
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_matrix
from torch import Tensor

from recarc.attacks.base import Attack
from recarc.attacks.climb import Climb
from recarc.attacks.problem import Problem, frozen_problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.exact.bounds import SLACK, Margins, margins
from recarc.exact.joint import Certified, Set, joint_certificates, sets_of
from recarc.exact.network import Network, network_of, sizes
from recarc.geometry import Ball

Array = NDArray[np.float64]
Answer = Array | Literal["no", "unknown"]
MOST_RELUS = 2000  # of all members together
TAU, DEEP = 1e-5, 1e-2  # in units of the largest logit: margins up to TAU count as lost; no deeper point is sought
TIME_LIMIT = 60.0  # seconds a program


def exact_certificates(
    ensemble: RandomizedEnsemble,
    x: Tensor,
    y: Tensor,
    ball: Ball,
    time_limit: float = TIME_LIMIT,
    attack: Attack | None = None,
) -> Certified:
    """Certified sets and the worst point for each sample, for p in {1, inf}: where both meet, the optimum is known.

    The attack (`Climb` by default) goes first: what it fools needs no program.
    """
    if ball.norm.p not in (1, np.inf):
        raise InputError(f"the exact method knows linf and l1, not {ball.norm}; use --method bounds")
    if x.device.type != "cpu":
        raise InputError(f"the exact method runs on the CPU, not on {x.device.type}; use --device cpu")
    with frozen_problem(ensemble, x.detach(), y, ball) as problem:
        networks = [network_of(member, x, i) for i, member in enumerate(problem.ensemble.members)]
        count = sum(size for net in networks for size, step in zip(sizes(net), net.steps) if step.is_relu)
        if count > MOST_RELUS:
            raise InputError(
                f"the members have {count} ReLUs, too many for the exact method (at most {MOST_RELUS}); "
                "use --method bounds"
            )
        found = [margins(network, problem.x, problem.y, ball) for network in networks]
        members = [_Member(m, affine_maps(network)) for m, network in zip(found, networks)]
        excluded, x_adv = joint_certificates(found), (attack or Climb())(problem.ensemble, problem.x, problem.y, ball)
        fooled = ~problem.ensemble.correct(x_adv, problem.y)
        for n in range(len(problem)):
            one = problem.take(torch.tensor([n]))
            search = _Sample(one, excluded[:, n], fooled[:, n], x_adv[n])
            search.run(partial(_solve, members=members, problem=one, n=n, time_limit=time_limit))
            excluded[:, n], fooled[:, n], x_adv[n] = search.excluded, search.fooled, search.x_adv
        return Certified(excluded, fooled, x_adv)


class _Member(NamedTuple):
    found: Margins
    maps: dict[int, tuple[dict[int, Array], Array]]  # of each ReLU's argument and of the logits


class _Sample:
    """The search for the heaviest foolable set of one sample: members alone first, then the heaviest that is open."""

    def __init__(self, problem: Problem, excluded: Tensor, fooled: Tensor, x_adv: Tensor) -> None:
        self.problem, self.excluded, self.fooled, self.x_adv = problem, excluded.clone(), fooled.clone(), x_adv
        self.alpha = problem.ensemble.alpha.to(fooled.device)
        self.sets = sets_of(len(fooled))
        self.seen = {i for i in range(len(fooled)) if bool(fooled[i])}  # members known to be foolable alone
        self.tried: set[Set] = set()

    def run(self, solve_set: Callable[[Set], Answer]) -> None:
        while (s := self._next()) is not None:
            self.tried.add(s)
            answer = solve_set(s)
            if isinstance(answer, str) and answer == "no":
                self.excluded |= torch.tensor([set(s) <= set(t) for t in self.sets], device=self.excluded.device)
            elif isinstance(answer, np.ndarray):
                self._consider(torch.from_numpy(answer))

    def _next(self) -> Set | None:
        best = float((self.alpha * self.fooled).sum())
        heavy = [
            (float(self.alpha[list(s)].sum()), -len(s), s)
            for s, no in zip(self.sets, self.excluded.tolist())
            if not no and s not in self.tried
        ]
        heavy = [entry for entry in heavy if entry[0] > best + 1e-12]
        if not heavy:
            return None
        s = max(heavy)[2]
        alone = [(i,) for i in s if i not in self.seen and (i,) not in self.tried]
        return alone[0] if alone else s

    def _consider(self, point: Tensor) -> None:
        """Run the members at a program's answer, moved into the ball in the precision of x."""
        x, ball = self.problem.x, self.problem.ball
        x_adv = ball.move(x, ball.project(point.to(x.device).reshape(x.shape) - x.double(), x).to(x.dtype))
        wrong = ~self.problem.ensemble.correct(x_adv, self.problem.y)[:, 0]
        self.seen |= {i for i in range(len(wrong)) if bool(wrong[i])}
        if float((self.alpha * wrong).sum()) > float((self.alpha * self.fooled).sum()):
            self.fooled, self.x_adv = wrong, x_adv[0]


def _solve(s: Set, members: Sequence[_Member], problem: Problem, n: int, time_limit: float) -> Answer:
    """A point at which all of S are wrong (D,), "no" if there is none, "unknown" if time ran out."""
    program = _Program(problem, members[0].found.known.ball.take(torch.tensor([n])))
    for i in s:
        program.add_member(members[i], int(problem.y), n)
    return program.solve(time_limit)


@dataclass
class _Program:
    """min t over points x' of the ball with margin_ic(x') <= t for one wrong class c a member; -DEEP <= t <= TAU."""

    problem: Problem
    ball: Ball
    low: list[Array] = field(default_factory=list)
    high: list[Array] = field(default_factory=list)
    integral: list[Array] = field(default_factory=list)
    blocks: list[tuple[Any, Any, Array]] = field(default_factory=list)  # rows, columns, values
    limits: list[tuple[Array, Array]] = field(default_factory=list)
    variables: int = 0
    constraints: int = 0

    def __post_init__(self) -> None:
        x, eps = self.problem.x.double().flatten().cpu().numpy(), float(self.ball.radius(self.problem.x.double())[0])
        low, high = self.ball.box or (-np.inf, np.inf)
        self.x = self.add_variables(np.maximum(x - eps, low), np.minimum(x + eps, high))
        self.t = self.add_variables(np.array([-DEEP]), np.array([TAU]))
        if self.ball.norm.p == 1:
            moved = self.add_variables(np.zeros_like(x), np.full_like(x, eps))
            eye = np.eye(len(x))
            self.require({self.x: eye, moved: -eye}, -np.inf, x)
            self.require({self.x: -eye, moved: -eye}, -np.inf, -x)
            self.require({moved: np.ones((1, len(x)))}, -np.inf, np.array([eps]))

    def add_variables(self, low: Array, high: Array, integral: bool = False) -> range:
        self.low.append(low)
        self.high.append(high)
        self.integral.append(np.full(len(low), float(integral)))
        self.variables += len(low)
        return range(self.variables - len(low), self.variables)

    def require(self, terms: dict[range, Array], low: Array | float, high: Array | float) -> None:
        """low <= sum of matrix @ variables <= high."""
        count = len(next(iter(terms.values())))
        for columns, matrix in terms.items():
            r, c = np.nonzero(matrix)
            self.blocks.append((r + self.constraints, np.array(columns)[c], matrix[r, c]))
        self.limits.append((np.broadcast_to(low, count), np.broadcast_to(high, count)))
        self.constraints += count

    def add_member(self, member: _Member, y: int, n: int) -> None:
        """The member's ReLUs, and one margin of it that is to be at most t, in units of its largest logit."""
        found, known = member.found, member.found.known
        values: dict[int, range] = {0: self.x}  # the variables of the input and of every ReLU
        for k, (low, high) in known.intervals.items():
            before, b = member.maps[known.network.steps[k].inputs[0]]
            terms = {values[j]: matrix for j, matrix in before.items()}
            values[k] = self._add_relu(terms, b, low[n].flatten().numpy(), high[n].flatten().numpy())
        wrong, scale = found.open[n].nonzero()[:, 0], float(found.slack[n]) / SLACK
        last, b = member.maps[known.network.output]
        eye = torch.eye(len(b), dtype=torch.float64)
        rows = (eye[y] - eye[wrong]) / scale
        most = -known.linear(known.network.output, -rows, torch.full_like(wrong, n)).lowest.numpy() + DEEP
        chosen = self.add_variables(np.zeros(len(wrong)), np.ones(len(wrong)), integral=True)
        self.require({chosen: np.ones((1, len(wrong)))}, 1.0, 1.0)
        terms = {values[j]: rows.numpy() @ matrix for j, matrix in last.items()}
        terms |= {self.t: -np.ones((len(wrong), 1)), chosen: np.diag(most)}
        self.require(terms, -np.inf, most - rows.numpy() @ b)

    def _add_relu(self, terms: dict[range, Array], b: Array, low: Array, high: Array) -> range:
        """z = relu(sum of matrix @ variables + b), whose argument is between low and high."""
        z = self.add_variables(np.maximum(low, 0), np.maximum(high, 0))
        eye = np.eye(len(b))
        active, free = np.flatnonzero(low >= 0), np.flatnonzero((low < 0) & (high > 0))
        if len(active):
            self.require({z: eye[active], **{v: -m[active] for v, m in terms.items()}}, b[active], b[active])
        if len(free):
            on = self.add_variables(np.zeros(len(free)), np.ones(len(free)), integral=True)
            beyond = {z: eye[free], **{v: -m[free] for v, m in terms.items()}}  # z - argument + b
            self.require(beyond, b[free], np.inf)
            self.require({**beyond, on: -np.diag(low[free])}, -np.inf, b[free] - low[free])
            self.require({z: eye[free], on: -np.diag(high[free])}, -np.inf, 0.0)
        return z

    def solve(self, time_limit: float) -> Answer:
        rows, columns, entries = (np.concatenate(part) for part in zip(*self.blocks))
        matrix = coo_matrix((entries, (rows, columns)), shape=(self.constraints, self.variables)).tocsr()
        low, high = (np.concatenate(part) for part in zip(*self.limits))
        objective = np.zeros(self.variables)
        objective[self.t[0]] = 1
        with _silent():
            solution = milp(
                objective,
                integrality=np.concatenate(self.integral),
                bounds=Limits(np.concatenate(self.low), np.concatenate(self.high)),
                constraints=LinearConstraint(matrix, low, high),
                options={"time_limit": time_limit},
            )
        if solution.x is not None:
            return solution.x[self.x[0] : self.x[-1] + 1]
        return "no" if solution.status == 2 else "unknown"


@contextmanager
def _silent() -> Iterator[None]:
    """HiGHS now and then prints a line of its own, which must not get into a document on standard output."""
    flush = ctypes.CDLL(None).fflush if os.name == "posix" else None
    if flush is None:
        yield
        return
    flush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def affine_maps(network: Network) -> dict[int, tuple[dict[int, Array], Array]]:
    """The argument of every ReLU, and the logits, as affine functions of the input and of the ReLUs before."""
    ends = {step.inputs[0] for step in network.steps if step.is_relu} | {network.output}
    return {k: affine_map(network, k) for k in ends}


def affine_map(network: Network, k: int) -> tuple[dict[int, Array], Array]:
    """z_k as sum_j matrix_j z_j + b over the input (j = 0) and the ReLUs j before it."""
    size = sizes(network)[k]
    steps = network.steps
    coefficients = {k: torch.eye(size, dtype=torch.float64).reshape(size, *steps[k].shape)}
    result: dict[int, Array] = {}
    b = torch.zeros(size, dtype=torch.float64)
    for j in range(k, -1, -1):
        if j not in coefficients:
            continue
        a = coefficients.pop(j)
        if j == 0 or steps[j].is_relu:
            result[j] = a.flatten(1).numpy()
            continue
        parts, more = network.transposed(j, a)
        b = b + more
        for source, part in parts:
            coefficients[source] = coefficients[source] + part if source in coefficients else part
    return result, b.numpy()
