"""The shape of a training method: which members are trained when, how a batch is attacked, what is minimised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from recarc.ensemble import RandomizedEnsemble
from recarc.geometry import Ball
from recarc.training.step_context import Team

Parts = dict[str, Tensor]  # named scalars; their sum is minimised


@dataclass(frozen=True)
class Stage:
    """One run of the loop. `start[k]`: the member whose weights `members[k]` starts from (None: fresh ones)."""

    members: tuple[int, ...]
    fixed: tuple[int, ...] = ()
    start: tuple[int | None, ...] | None = None
    method: Method | None = None  # another method's objective for this stage
    phase: int = 0  # sets the random numbers of repeated stages of a member apart

    @property
    def label(self) -> str:
        names = ", ".join(str(i + 1) for i in self.members)
        return f"member {names}" if len(self.members) == 1 else f"members {names}"

    @property
    def name(self) -> str:
        """The label, told apart from other phases of the same members: unique within a run."""
        return self.label if not self.phase else f"{self.label}, phase {self.phase + 1}"


def together(members: int, given: int) -> list[list[Stage]]:
    """The plan of methods that train all members at once; the given ones go on from their weights."""
    return [[Stage(tuple(range(members)), start=tuple(i if i < given else None for i in range(members)))]]


class Method:
    """A method is one subclass in one file; the loop calls it, it calls nothing of the loop.

    Everything between `attacked` and `after` runs on the device without asking for a value, so that it can be captured
    into a CUDA graph; a method that cannot says so with `capturable = False`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    members: ClassVar[int] = 1  # how many by default
    least: ClassVar[int] = 1  # how few make sense
    needs_ball: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    looks_inside: ClassVar[bool] = False  # `attacked` takes layers: no folded copies
    differentiates_twice: ClassVar[bool] = False  # `attacked` takes second derivatives: no fused copies
    wants_input_gradient: ClassVar[bool] = False  # `after` gets the loss's gradient in the attacked batch

    def plan(self, members: int, given: int) -> list[list[Stage]]:
        """Groups of stages in order; the stages of one group do not depend on each other.

        `given` members (0..given-1) are there already.
        """
        return [[Stage((i,)) for i in range(given, members)]]

    def alpha(self, members: int) -> Sequence[float] | None:
        """Sampling probabilities of the finished ensemble; None: equiprobable."""
        return None

    def choose_alpha(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor | None:
        """Sampling probabilities found on validation data, for methods that search for them."""
        return None

    def mixture_alpha(self, fixed: int, trained: int) -> list[float]:
        """Sampling probabilities while training."""
        return [1 / (fixed + trained)] * (fixed + trained)

    def setup(self, team: Team, x: Tensor) -> None:
        """Called once before the first step with a batch of the right shape: a place for persistent tensors.

        Those in `team.memory` have one row an image of the batch; of several processes each has its share of them.
        """

    def attacked(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        """The batch to train on, (B, ...) or (k, B, ...); called without gradients."""
        return x

    def loss(self, team: Team, x: Tensor, x_adv: Tensor, y: Tensor) -> Parts:
        """What is minimised over the trained members."""
        return {"ce": sum((team.loss(member(x_adv), y) for member in team.trained), x.new_zeros(()))}

    def after(self, team: Team, x: Tensor, x_adv: Tensor, gradient: Tensor) -> None:
        """Called after the update where `wants_input_gradient`."""

    def probe(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        """The batch on which validation measures the trained members: by default what the method trains on."""
        return self.attacked(team, x, y)

    def score(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        """(B,) how right the trained members are on x: what validation averages."""
        with torch.no_grad():
            return torch.stack([(member(x).argmax(1) == y).float() for member in team.trained]).mean(0)

    def epoch_end(self, team: Team, epoch: int, epochs: int, measure: Callable[[], Tensor]) -> None:
        """Called after every epoch's validation; `measure()` gives the members' error rates under `probe`."""
