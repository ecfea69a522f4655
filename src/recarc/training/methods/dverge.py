"""DVERGE (Yang et al. 2020): each member learns to resist the features that fool the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from recarc.attacks.base import input_gradient
from recarc.errors import InputError
from recarc.geometry import Ball
from recarc.training.method import LossTerms, Method, Stage, StepContext
from recarc.training.methods.natural import Natural
from recarc.training.recipes import Recipe, for_diversity
from recarc.training.shadow_models import without_weight_gradients

EPS, STEP, STEPS = 0.07, 0.007, 10


class DVERGE(Method):
    """sum_i sum_{j != i} CE(f_i(x'_j), y): x'_j is x with the features that member j sees in a random other image.

    x'_j minimises ||h_j(z) - h_j(x_s)||^2 over ||z - x||_inf <= 0.07, h_j the output of a random convolution of
    member j and x_s another image of the batch. Starts from plainly trained members (or those given).
    """

    summary = (
        "each member learns what fools the others, starting from plainly trained members, its own or `--start` "
        "(Yang et al. 2020)"
    )
    default_members = 3
    min_members = 2
    needs_ball = False
    capturable = False  # the layer is drawn in Python
    reads_features = True

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        return for_diversity(base, name)

    def plan(self, members: int, pretrained: int) -> list[list[Stage]]:
        baseline = [Stage((i,), method=Natural()) for i in range(pretrained, members)]
        everyone = tuple(range(members))
        return [baseline, [Stage(everyone, start=everyone, phase=1)]]

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """(M, B, ...) distilled images, one for each member j."""
        others = x.roll(1 + draw_below(max(len(x) - 1, 1), context), 0)
        layer = draw_below(len(layers(context.victims[0])), context)
        with without_weight_gradients(context.victims):
            return torch.stack([distilled(member, layer, x, others) for member in context.victims])

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        pairs = [(i, j) for i in range(len(context.trained)) for j in range(len(context.trained)) if i != j]
        return {"ce": torch.stack([context.loss(context.trained[i](x_adv[j]), y) for i, j in pairs]).sum()}

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return x


def draw_below(bound: int, context: StepContext) -> int:
    """A random integer in 0 .. bound - 1."""
    return int(torch.randint(bound, (), generator=context.host_generator))


def layers(member: nn.Module) -> list[nn.Module]:
    """The layers whose outputs serve as features: convolutions, or linear maps where there are none."""
    for kind in (nn.Conv2d, nn.Linear):
        matches: list[nn.Module] = [m for m in member.modules() if isinstance(m, kind)]
        if matches:
            return matches
    raise InputError(f"dverge needs members with convolutions or linear maps, got {type(member).__name__}")


def distilled(member: nn.Module, layer: int, x: Tensor, others: Tensor) -> Tensor:
    """x moved within the ball so that member's features at `layer` approach those of `others`; with momentum."""
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
    """The output of `module` inside `member` for x; the forward pass stops there."""
    with _captured_output(module) as outputs, suppress(_Reached):
        member(x)
    return outputs[0]


class _Reached(Exception):
    """Ends a forward pass once its features are known."""


@contextmanager
def _captured_output(module: nn.Module) -> Iterator[list[Tensor]]:
    outputs: list[Tensor] = []

    def capture(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output)
        raise _Reached

    handle = module.register_forward_hook(capture)
    try:
        yield outputs
    finally:
        handle.remove()
