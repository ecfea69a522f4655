"""What every attack shares: the checks before any compute, and the frame that leaves the members as they were."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral

import torch
from torch import Tensor

from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble, frozen
from recarc.errors import InputError
from recarc.geometry import Ball, working_dtype
from recarc.inputs import check_finite, check_labels, check_x, check_y


@dataclass(frozen=True)
class Outcome:
    """What an attack hands to an evaluation.

    `mixture`: (probability, x_adv) pairs, several where the attacker randomises too. `stages`: for a staged attack,
    the (M, B) predictions at what each stage alone found, in order. `alone`: (M, B) whether member i withstood every
    attack seen, one member at a time. `decided_by`: (B,) index of the stage whose result was kept.
    """

    mixture: list[tuple[float, Tensor]]
    stages: dict[str, Tensor] = field(default_factory=dict)
    alone: Tensor | None = None
    decided_by: Tensor | None = None


@dataclass(frozen=True)
class Attack(ABC):
    """Knobs in the constructor, the problem at the call: `x_adv = attack(ensemble, x, y, ball)`."""

    def __call__(self, ensemble: RandomizedEnsemble | Member, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        """Adversarial inputs for (x, y), inside the ball and its box; same shape and dtype as x."""
        ensemble = as_ensemble(ensemble)
        with frozen(ensemble), torch.no_grad():
            y = check_problem(ensemble, x, y, ball, self)
            return self.perturb(ensemble, x, y, ball) if len(x) else x.clone()

    @abstractmethod
    def perturb(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        """The algorithm itself, on a problem that was checked, gradients off unless it turns them on."""

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:  # noqa: B027 (most have nothing to refuse)
        """Raise InputError if a knob does not fit the number of members or of classes, or the ball."""

    def outcome(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Outcome:
        """What an evaluation records; attacks with more to tell than one x_adv override it."""
        return Outcome([(1.0, self(ensemble, x, y, ball))])


def check_problem(
    ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, attack: Attack | None = None
) -> Tensor:
    """Refuse bad data with one clear line before any attack starts; returns y as int64."""
    check_x(x)
    check_y(y, x)
    device = ensemble.device_of_members()
    if device is not None and (x.device != device or y.device != device):
        raise InputError(f"x is on {x.device}, y on {y.device}, the members on {device}; move them to one device")
    if not isinstance(ball, Ball):
        raise InputError(f"ball is a {type(ball).__name__}; expected recarc.Ball(norm, eps)")
    check_finite(x)
    ball.check(x)
    if not len(x):
        return y.long()
    logits = _first_logits(ensemble, x)
    bad = logits.isnan().any(-1)
    if bool(bad.any()):
        member = int(bad.any(1).nonzero()[0])
        raise InputError(f"member {member} gives NaN logits on {int(bad[member].sum())} of {len(x)} clean samples")
    classes = logits.shape[-1]
    check_labels(y, classes)
    if attack is not None:
        attack.check_fit(len(ensemble), classes, ball)
    return y.long()


def _first_logits(ensemble: RandomizedEnsemble, x: Tensor) -> Tensor:
    """(M, B, C); where they fail because x and weights are of different precision, that is said."""
    try:
        return ensemble.logits(x)
    except RuntimeError as error:
        kinds = {str(p.dtype).removeprefix("torch.") for p in ensemble.parameters() if p.is_floating_point()}
        own = str(x.dtype).removeprefix("torch.")
        if not kinds - {own}:
            raise
        raise InputError(
            f"x is {own}, the members' weights are {' and '.join(sorted(kinds))}; make them one"
        ) from error


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
    """The step as a (B,) tensor: the number given, else this fraction of each sample's eps."""
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
    """The gradient of `value` in x; `again`: more gradients through the same graph are to follow."""
    if not value.requires_grad:
        raise InputError("a member has no gradient in its input, which these attacks need; look for a detach() in it")
    try:
        return torch.autograd.grad(value, x, retain_graph=again)[0]
    except RuntimeError as error:
        if "donated buffers" not in str(error):
            raise
        raise InputError(
            "a compiled member can be differentiated only once; give it uncompiled (model._orig_mod), or set "
            "torch._functorch.config.donated_buffer = False before it runs for the first time"
        ) from error
