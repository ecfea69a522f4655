"""How to certify: from linear bounds, for any network that has rules, or exactly, for small ReLU networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from recarc.attacks.problem import frozen_problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.exact.bounds import margins
from recarc.exact.joint import Certified, joint_certificates
from recarc.exact.network import network_of
from recarc.exact.relu import TIME_LIMIT, exact_certificates
from recarc.geometry import Ball

METHODS = ("bounds", "exact")


@dataclass(frozen=True)
class Certificate:
    """Which sets of members no point of the ball fools together.

    `steps` optimise the bounds' slopes; `time_limit` (seconds) is that of each mixed-integer program.
    """

    method: str = "bounds"
    steps: int = 20
    time_limit: float = TIME_LIMIT
    proves: ClassVar[bool] = True  # tells it from an attack

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown("method", self.method, METHODS)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise InputError(f"steps is {self.steps!r}; expected a whole number of at least 0")
        if not (math.isfinite(self.time_limit) and self.time_limit > 0):
            raise InputError(f"the time limit is {self.time_limit!r}; expected a number of seconds above 0")

    def __call__(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Certified:
        if x.device.type == "mps":
            raise InputError("certificates need float64, which mps does not have; use --device cpu")
        if self.method == "exact":
            return exact_certificates(ensemble, x, y, ball, self.time_limit)
        with frozen_problem(ensemble, x.detach(), y, ball) as problem:
            wrong, y = problem.clean_predictions != problem.y, problem.y
            some = ~wrong.all(0)  # where all are wrong at x itself, nothing can be proved
            networks = [network_of(member, x, i) for i, member in enumerate(problem.ensemble.members)]
            found = [margins(network, x, y, ball, self.steps, some) for network in networks]
            return Certified(joint_certificates(found), wrong, x)
