"""What a training method is, and what it sees of a training step. Everything a new method needs is in this file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.attacks.pgd import ascend
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample
from recarc.losses import cross_entropy
from recarc.training.recipes import Recipe
from recarc.training.shadow_models import without_weight_gradients

LossTerms = dict[str, Tensor]  # named scalars; their sum is minimised


@dataclass(frozen=True)
class Stage:
    """One pass through the training loop: `members` are trained while `fixed` ones stay as they are.

    `start[k]` is the member whose weights `members[k]` starts from (None: fresh weights).
    """

    members: tuple[int, ...]
    fixed: tuple[int, ...] = ()
    start: tuple[int | None, ...] | None = None
    method: Method | None = None  # whose objective is used in this stage, if not that of the run's method
    phase: int = 0  # gives repeated stages of the same members different random numbers

    @property
    def label(self) -> str:
        """How it is shown: members are counted from 0, as everywhere."""
        return self._named(0)

    @property
    def name(self) -> str:
        """Its key in checkpoints and ensemble folders, unique within a run; there members have always begun with 1."""
        return self._named(1)

    def _named(self, first: int) -> str:
        members = f"member{'s' * (len(self.members) > 1)} {', '.join(str(first + i) for i in self.members)}"
        return members if not self.phase else f"{members}, phase {self.phase + 1}"


class Method:
    """A training method: one subclass in one file, known by the name of the class in lower case.

    The training loop calls the method, never the other way round.
    `perturb`, `loss` and `after_update` run on the device without reading values back, so that a step can be captured
    into a CUDA graph; a method that cannot do so sets `capturable = False`.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""  # one line for `recarc train --list-methods` and the documentation
    default_members: ClassVar[int] = 1
    min_members: ClassVar[int] = 1
    joint: ClassVar[bool] = False  # all members are trained at once, by one loss
    needs_ball: ClassVar[bool] = True
    capturable: ClassVar[bool] = True
    half_precision: ClassVar[bool] = True  # can be trained in bfloat16
    attacks_fixed_only: ClassVar[bool] = False  # `perturb` looks at `fixed` alone: its examples may be made once
    reads_features: ClassVar[bool] = False  # `perturb` looks at layers inside the victims: no folded copies
    differentiates_twice: ClassVar[bool] = False  # `perturb` takes second derivatives: no fused copies
    needs_input_gradient: ClassVar[bool] = False  # `after_update` gets the gradient of the loss in the perturbed batch

    def __init_subclass__(cls) -> None:
        cls.name = cls.__name__.lower()

    def plan(self, members: int, pretrained: int) -> list[list[Stage]]:
        """Groups of stages, trained in this order; stages of one group do not depend on each other.

        Members 0 .. pretrained - 1 exist already; a joint method continues from their weights.
        """
        if self.joint:
            start = tuple(i if i < pretrained else None for i in range(members))
            return [[Stage(tuple(range(members)), start=start)]]
        return [[Stage((i,)) for i in range(pretrained, members)]]

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        """`base`, the recipe `name` ("fast" or "paper") for this data set, with the method's own hyper-parameters."""
        return base

    def alpha(self, members: int) -> Sequence[float] | None:
        """Sampling probabilities of the finished ensemble; None: equiprobable."""
        return None

    def choose_alpha(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor | None:
        """Sampling probabilities optimised on validation data; None: those of `alpha`."""
        return None

    @property
    def chooses_alpha(self) -> bool:
        """Whether it has a `choose_alpha` of its own."""
        return type(self).choose_alpha is not Method.choose_alpha

    def training_alpha(self, fixed: int, trained: int) -> list[float]:
        """Sampling probabilities during training."""
        return [1 / (fixed + trained)] * (fixed + trained)

    def setup(self, context: StepContext, x: Tensor) -> None:
        """Create tensors that persist between steps in `context.buffers`; called once with a batch of the right shape.

        Each buffer has one row per image of the batch; with several processes, each holds the rows of its share.
        """

    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """The batch to train on, (B, ...) or (k, B, ...); called without gradients."""
        return x

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        """What is minimised over the trained members."""
        return {"ce": sum((context.loss(member(x_adv), y) for member in context.trained), x.new_zeros(()))}

    def after_update(self, context: StepContext, x: Tensor, x_adv: Tensor, gradient: Tensor) -> None:
        """Called after each update if `needs_input_gradient`."""

    def validation_batch(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """The attacked batch for validation: by default what the method trains on; x itself if there is no attack."""
        return self.perturb(context, x, y)

    def score(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """(B,) accuracy of the trained members on each sample; validation reports its mean."""
        with torch.no_grad():
            return torch.stack([(member(x).argmax(1) == y).float() for member in context.trained]).mean(0)

    def epoch_end(self, context: StepContext, epoch: int, epochs: int, measure: Callable[[], Tensor]) -> None:
        """Called after the validation of an epoch; `measure()` returns each member's error rate under attack."""


@dataclass
class StepContext:
    """What a method sees of a training step: the members in their roles, the ball, and this step's random numbers.

    `trained` members receive the update; `victims` are the same members as the attack sees them. `fixed` are earlier
    members in evaluation mode; `alpha` are the probabilities of the mixture (fixed first, then trained).
    `start_noise` holds a uniform number in [0, 1) per pixel and one more per sample; None: attacks start at x.
    """

    trained: Sequence[nn.Module]
    victims: Sequence[nn.Module]
    fixed: Sequence[nn.Module]
    recipe: Recipe
    ball: Ball | None
    alpha: Tensor
    start_noise: Tensor | None = None
    buffers: dict[str, Tensor] = field(default_factory=dict)
    progress: float = 1.0  # the part of the run that is done; a step that reads it cannot be captured
    host_generator: torch.Generator | None = None  # for draws that steer Python; such a step cannot be captured

    @property
    def mixture(self) -> list[nn.Module]:
        """Every member so far, as the attack sees it."""
        return [*self.fixed, *self.victims]

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy with the recipe's label smoothing."""
        return F.cross_entropy(logits.float(), y, label_smoothing=self.recipe.label_smoothing)

    def pgd(self, objective: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """x + delta from the recipe's PGD on `objective` (B,), with a random start and no gradients to weights."""
        ball = self.required_ball()
        with torch.no_grad(), without_weight_gradients(self.mixture):
            delta = torch.zeros_like(x) if self.start_noise is None else random_start(ball, x, self.start_noise)
            step = self.recipe.attack_step * ball.radius(x)
            return ball.move(x, ascend(objective, x, ball, delta, self.recipe.attack_steps, step))

    def pgd_on(self, member: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """PGD on one member's cross-entropy."""
        return self.pgd(lambda u: cross_entropy(member(u), y), x)

    def required_ball(self) -> Ball:
        if self.ball is None:
            raise InputError("this method attacks while training: give norm and eps, e.g. norm 'linf' and eps 8/255")
        return self.ball


def random_start(ball: Ball, x: Tensor, u: Tensor) -> Tensor:
    """A point of the ball: uniform for linf; for other norms a random direction with the radius of a uniform point.

    u is (B, D + 1) in [0, 1): unlike in `Ball.random_start`, the randomness comes from outside, as a CUDA graph needs.
    """
    direction = torch.empty_like(x).copy_((2 * u[:, 1:] - 1).reshape(x.shape))  # in the memory layout of x
    reach = u[:, 0].pow(1 / direction[0].numel())
    return ball.project(ball.norm.scale_to(direction, reach * ball.radius(x)), x)


def start_noise_size(shape: Sequence[int]) -> int:
    """How many uniform numbers `random_start` needs per sample."""
    return 1 + int(torch.Size(shape).numel())


def expected_loss(members: Sequence[nn.Module], alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """sum_i alpha_i l(f_i(x), y), (B,): what adaptive PGD increases."""
    losses = torch.stack([cross_entropy(member(x), y) for member in members])
    return (per_sample(alpha, losses) * losses).sum(0)
