"""What every attack shares: how it is called, what it hands to the judge, checks of knobs, gradients in the input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from recarc.attacks.problem import Problem, frozen_problem
from recarc.ensemble import Member, RandomizedEnsemble, frozen
from recarc.errors import AttackViolation, InputError
from recarc.geometry import Ball, working_dtype


@dataclass(frozen=True)
class Stage:
    """The points at which a stage of an attack ended, (B, ...).

    `alone`: they are what this stage finds by itself; otherwise the best of all stages so far.
    """

    name: str
    x_adv: Tensor
    alone: bool = False


@dataclass(frozen=True)
class Outcome:
    """The points that an attack hands to the judge, who believes nothing else.

    `mixture`: (probability, x_adv) pairs, several where the attacker randomizes too. `stages`: for a staged attack,
    where each stage ended, in order. `witnesses`: (M, B, ...), for each member a point at which it is fooled, or x
    where no attack on that member alone succeeded. `challenged`: (M, B) int8, which of the pairs that withstood were
    drawn to be attacked again (see `recarc.attacks.challenge`).
    """

    mixture: list[tuple[float, Tensor]]
    stages: Sequence[Stage] = ()
    witnesses: Tensor | None = None
    challenged: Tensor | None = None


@dataclass(frozen=True)
class Attack(ABC):
    """Knobs in the constructor, the problem at the call: `x_adv = attack(ensemble, x, y, ball)`."""

    def __call__(self, ensemble: RandomizedEnsemble | Member, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        """Adversarial inputs for (x, y), inside the ball and its box; same shape and dtype as x."""
        with frozen_problem(ensemble, x, y, ball) as problem:
            return self.run_on(problem)

    def run_on(self, problem: Problem) -> Tensor:
        """`perturb` on a checked problem, which may hold no samples: many models cannot take an empty batch."""
        if not len(problem):
            return problem.x.clone()
        self.check_fit(len(problem.ensemble), problem.classes, problem.ball)
        return self.perturb(problem)

    @abstractmethod
    def perturb(self, problem: Problem) -> Tensor:
        """The algorithm itself: x_adv for a checked problem. Gradients are off unless it turns them on."""

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:  # noqa: B027 (most have nothing to refuse)
        """Raise InputError if a knob does not fit the number of members or of classes, or the ball."""

    def outcome(self, problem: Problem) -> Outcome:
        """The points that an evaluation judges; attacks with more to show than one x_adv override it."""
        return Outcome([(1.0, self.run_on(problem))])


def outcome_of(attack: Any, problem: Problem) -> Outcome:
    """What an attack hands to the judge: its `outcome`, or the points that a plain callable returns."""
    if not hasattr(attack, "outcome"):
        with torch.enable_grad():
            return Outcome([(1.0, attack(problem.ensemble, problem.x, problem.y, problem.ball))])
    with frozen(problem.ensemble), torch.no_grad():
        outcome: Outcome = attack.outcome(problem)
        return outcome


def name_of(attack: Any) -> str:
    """The class of an attack, or the name of a function."""
    return str(getattr(attack, "__name__", type(attack).__name__))


def points_of(attack: Any, problem: Problem) -> Tensor:
    """The points that an attack or a plain callable returns."""
    if hasattr(attack, "perturb"):
        points: Any = attack.perturb(problem)
        return points
    points = outcome_of(attack, problem).mixture[0][1]
    if not isinstance(points, Tensor) or points.shape != problem.x.shape:
        shape = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise AttackViolation(
            f"{name_of(attack)} returned {shape} for inputs {tuple(problem.x.shape)}; expected the same shape"
        )
    return points.detach()


def check_at_least(name: str, value: float, low: float) -> None:
    if not value >= low:
        raise InputError(f"{name} is {value!r}; it must be at least {low:g}")


def check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name} is {value!r}; it must be a whole number of at least 1")


def check_step_size(step_size: float | None) -> None:
    if step_size is not None and not 0 < step_size < float("inf"):
        raise InputError(f"step_size is {step_size!r}; it must be > 0 in the units of x, or None for the default")


def step_of(step_size: float | None, fraction: float, ball: Ball, x: Tensor) -> Tensor:
    """The step size as a (B,) tensor: the number given, else this fraction of each sample's eps."""
    if step_size is None:
        return fraction * ball.radius(x)
    return torch.full((len(x),), step_size, device=x.device, dtype=working_dtype(x))


def input_gradient(objective: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Gradient of each sample's objective (B,) in x; NaN (saturated logits) becomes 0."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        gradient = differentiate(objective(x).sum(), x)
    return gradient.to(working_dtype(x)).nan_to_num(nan=0.0)


def differentiate(value: Tensor, x: Tensor, again: bool = False) -> Tensor:
    """The gradient of `value` in x; `again`: more gradients through the same graph will follow."""
    if not value.requires_grad:
        raise InputError("a member has no gradient in its input, which this attack needs; look for a detach() in it")
    try:
        return torch.autograd.grad(value, x, retain_graph=again)[0]
    except RuntimeError as error:
        if "donated buffers" not in str(error):
            raise
        raise InputError(
            "a compiled member can be differentiated only once; give it uncompiled (model._orig_mod), or set "
            "torch._functorch.config.donated_buffer = False before it runs for the first time"
        ) from error
