"""DVERGE (Yang et al. 2020): each member learns to resist the features that fool the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from recarc.attacks.base import input_gradient
from recarc.errors import InputError
from recarc.geometry import Ball
from recarc.training.method import Method, Parts, Stage
from recarc.training.methods.natural import Natural
from recarc.training.shadow_models import without_weight_gradients
from recarc.training.step_context import Team

EPS, STEP, STEPS = 0.07, 0.007, 10


class DVERGE(Method):
    """sum_i sum_{j != i} CE(f_i(x'_j), y): x'_j is x with the features that member j sees in a random other image.

    x'_j minimises ||h_j(z) - h_j(x_s)||^2 over ||z - x||_inf <= 0.07, h_j the output of a random convolution of
    member j and x_s another image of the batch. Starts from plainly trained members (or given ones).
    """

    name = "dverge"
    summary = "members diversified on each other's distilled features"
    members = 3
    least = 2
    needs_ball = False
    capturable = False  # the layer is drawn in Python
    looks_inside = True

    def plan(self, members: int, given: int) -> list[list[Stage]]:
        baseline = [Stage((i,), method=Natural()) for i in range(given, members)]
        everyone = tuple(range(members))
        return [baseline, [Stage(everyone, start=everyone, phase=1)]]

    def attacked(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        """(M, B, ...) distilled images, one for each member j."""
        others = x.roll(1 + int(self._draw(team, max(len(x) - 1, 1))), 0)
        layer = int(self._draw(team, len(layers(team.victims[0]))))
        with without_weight_gradients(team.victims):
            return torch.stack([distilled(member, layer, x, others) for member in team.victims])

    def loss(self, team: Team, x: Tensor, x_adv: Tensor, y: Tensor) -> Parts:
        pairs = [(i, j) for i in range(len(team.trained)) for j in range(len(team.trained)) if i != j]
        return {"ce": torch.stack([team.loss(team.trained[i](x_adv[j]), y) for i, j in pairs]).sum()}

    def probe(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        return x

    @staticmethod
    def _draw(team: Team, below: int) -> Tensor:
        return torch.randint(below, (), generator=team.host)


def layers(member: nn.Module) -> list[nn.Module]:
    """Where features are taken: the outputs of the convolutions, or of linear maps where there are none."""
    for kind in (nn.Conv2d, nn.Linear):
        found: list[nn.Module] = [m for m in member.modules() if isinstance(m, kind)]
        if found:
            return found
    raise InputError(f"dverge needs members with convolutions or linear maps, got {type(member).__name__}")


def distilled(member: nn.Module, layer: int, x: Tensor, others: Tensor) -> Tensor:
    """x moved inside the ball until member's features at `layer` come close to those of `others`; with momentum."""
    ball = Ball("linf", EPS)
    module = layers(member)[layer]
    with torch.no_grad():
        target = features(member, module, others)
    delta, speed = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(STEPS):
        g = input_gradient(lambda u: -distance(features(member, module, u), target), ball.move(x, delta))
        speed = speed + g / g.abs().flatten(1).mean(1).clamp(min=1e-12).reshape(-1, 1, 1, 1)
        delta = ball.project(delta + STEP * speed.sign(), x)
    return ball.move(x, delta)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """(B,) squared Euclidean distance of features."""
    return (a.float() - b.float()).flatten(1).square().sum(1)


def features(member: nn.Module, module: nn.Module, x: Tensor) -> Tensor:
    """What `module` inside `member` gives for x; the pass stops there."""
    with _caught(module) as found, suppress(_Reached):
        member(x)
    return found[0]


class _Reached(Exception):
    """Ends a forward pass once its features are known."""


@contextmanager
def _caught(module: nn.Module) -> Iterator[list[Tensor]]:
    found: list[Tensor] = []

    def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        found.append(output)
        raise _Reached

    handle = module.register_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()
