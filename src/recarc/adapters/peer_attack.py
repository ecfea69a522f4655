"""Other people's attacks as attacks of this package: on the expected logits or on one member, judged like any other."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.attacks.base import Attack
from recarc.attacks.problem import Problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.geometry import Ball

Run = Callable[[nn.Module, Tensor, Tensor, Ball], Tensor]


class Target(nn.Module):
    """The single model a peer attacks: x -> sum_i alpha_i f_i(x), or the logits of one member."""

    def __init__(self, ensemble: RandomizedEnsemble, member: int | None) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.member = member
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.ensemble.expected_logits(x) if self.member is None else self.ensemble.members[self.member](x)


@dataclass(frozen=True)
class PeerAttack(Attack):
    """An attack of another package as a stage of `WorstOf`; made by `stage(...)` of the package's adapter.

    Whatever the peer returns is projected into the ball and the box, and its success is measured here. Peers draw from
    the global generators, which are seeded before and put back after; so, unlike this package's own attacks, a peer
    that draws may treat a sample differently in another batch.
    """

    name: str  # package, version and attack
    knobs: Mapping[str, Any]
    run: Run = field(repr=False)
    member: int | None = None  # None: the expected logits
    seed: int = 0

    def perturb(self, problem: Problem) -> Tensor:
        ensemble, x, y, ball = problem.ensemble, problem.x, problem.y, problem.ball
        if self.member is not None and not 0 <= self.member < len(ensemble):
            raise InputError(f"member is {self.member}; the ensemble has members 0..{len(ensemble) - 1}")
        target, x_adv = Target(ensemble, self.member), x.clone()
        radius = ball.radius(x)
        with global_seed(self.seed):
            for eps in radius.unique().tolist():  # peers know one eps a batch
                rows = (radius == eps).nonzero()[:, 0]
                one = Ball(ball.norm, eps if isinstance(ball.eps, Tensor) else ball.eps, ball.box)
                with torch.enable_grad():
                    found = self.run(target, x[rows].detach().contiguous(), y[rows], one)
                x_adv[rows] = _inside(found, x[rows], one, self.name)
        return x_adv


def _inside(found: Tensor, x: Tensor, ball: Ball, name: str) -> Tensor:
    if found.shape != x.shape:
        raise InputError(f"{name} returned shape {tuple(found.shape)} for inputs {tuple(x.shape)}")
    found = found.detach().to(x)
    found = torch.where(torch.isfinite(found), found, x)  # a diverged pixel is no perturbation
    return ball.move(x, ball.project(found - x, x))


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that can be written down; runs are compared by them."""
    kinds = (bool, int, float, str, type(None))
    return {k: v for k, v in values.items() if not k.startswith("_") and isinstance(v, kinds)}


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """torch's, numpy's and Python's generators start at `seed` and are put back at the end."""
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)
