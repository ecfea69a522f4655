"""torchattacks both ways: our attacks in its style, its attacks as stages.

atk = recarc.adapters.torchattacks.wrap(ARC(), models, alpha, eps=8/255)
adv_images = atk(images, labels)
WorstOf([recarc.adapters.torchattacks.stage("PGD", steps=40), ARC()])
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from recarc.adapters.common import (
    PeerAttack,
    Perturb,
    as_labels,
    class_for,
    ensemble_from,
    not_installed,
    plain_values,
    warn_about_probabilities,
)
from recarc.attacks.base import Attack
from recarc.errors import InputError, unknown
from recarc.geometry import Ball, Norm

try:
    import torchattacks
    from torchattacks.attack import Attack as TorchAttack
except ImportError as error:
    raise not_installed("torchattacks", "torchattacks", error) from None

BOX = (0.0, 1.0)  # the range of images in torchattacks


def wrap(
    attack: Attack,
    models: Any,
    alpha: Sequence[float] | None = None,
    eps: float = 8 / 255,
    norm: str | float = "Linf",
) -> WrappedAttack:
    """Any attack of recarc as a torchattacks attack on a randomized ensemble: `wrap(ARC(), models, alpha)(x, y)`.

    `alpha` are the sampling probabilities (not a step size). `set_normalization_used` works as it does there.
    """
    return class_for(attack, WrappedAttack)(attack, models, alpha, eps, norm)


class WrappedAttack(TorchAttack):
    """An attack of recarc in the style of torchattacks."""

    def __init__(
        self, attack: Attack, models: Any, alpha: Sequence[float] | None, eps: float, norm: str | float
    ) -> None:
        super().__init__(type(attack).__name__, ensemble_from(models, alpha))
        self.wrapped = attack
        self.eps = eps
        self.norm = str(Norm(norm))
        Ball(norm, eps, BOX)  # refuses a bad eps now
        self.supported_mode = ["default"]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            raise InputError("labels are missing; these attacks are untargeted and need the true labels")
        device = self.device or images.device
        rec = self.model
        if self._normalization_applied is False:  # images are in [0, 1] by now, the models expect normalised ones
            rec = rec.with_members([_Normalised(m, self.normalize) for m in rec.members])
        images = images.detach().to(device)
        warn_about_probabilities(rec, images)
        return self.wrapped(rec, images, as_labels(labels).to(device), Ball(self.norm, self.eps, BOX))

    def _set_mode_targeted(self, mode: str, quiet: bool) -> None:
        raise InputError(f"{self.attack} has no mode {mode!r}: it lowers the expected accuracy, untargeted")


class _Normalised(nn.Module):
    def __init__(self, member: Any, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.member = member
        self.normalize = normalize

    def forward(self, x: Tensor) -> Tensor:
        return self.member(self.normalize(x))


def stage(attack: Any, member: int | None = None, seed: int = 0, **knobs: Any) -> PeerAttack:
    """A torchattacks attack against the expected logits, or against one member, for `WorstOf`.

    `attack` is a name or class (instantiated for each ball, with its eps and norm) or an object, whose model and eps
    are replaced by those of the ensemble and the ball.
    """
    if isinstance(attack, str):
        if not isinstance(getattr(torchattacks, attack, None), type):
            raise unknown("torchattacks attack", attack, [n for n in torchattacks.__all__ if n.isidentifier()])
        attack = getattr(torchattacks, attack)
    kind = attack if isinstance(attack, type) else type(attack)
    if not issubclass(kind, TorchAttack):
        raise InputError(f"{attack!r} is not a torchattacks attack; give a name, a class or an object of one")
    name = f"torchattacks {torchattacks.__version__} {kind.__name__}"
    if isinstance(attack, TorchAttack):
        if knobs:
            raise InputError(f"{name} exists already: give its knobs {sorted(knobs)} when you create it")
        _check_mode(attack, name)
        knobs, run = plain_values(vars(attack)), _with_target(attack, name)
    else:
        run = _instantiated(kind, knobs, name)
    return PeerAttack(name, knobs, run, member, seed)


def _check_mode(attack: Any, name: str) -> None:
    if attack.targeted or attack.attack_mode != "default":
        raise InputError(f"{name} is in mode {attack.attack_mode!r}; robust accuracy is untargeted: set_mode_default()")
    if attack.normalization_used is not None:
        raise InputError(f"{name} uses set_normalization_used: here the members normalise, and inputs are in [0, 1]")


def _check_ball(ball: Ball, name: str) -> None:
    if ball.box != BOX:
        raise InputError(f"{name} supports only the box (0, 1), the ball has {ball.box}")


def _with_target(attack: Any, name: str) -> Perturb:
    def run(target: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        _check_ball(ball, name)
        _check_mode(attack, name)
        if attack._attacks and getattr(attack, "eps", ball.eps) != ball.eps:
            raise InputError(f"{name} was created for eps {attack.eps:g}, not {ball.eps:g}; create it with that eps")
        own = copy.deepcopy(_without_model(attack))
        own.set_model(target)
        own.set_device(x.device)
        if hasattr(own, "eps"):
            own.eps = ball.eps
        return own(x.clamp(*BOX), y)

    return run


def _without_model(attack: Any) -> Any:
    """A shallow copy without models, so that a deep copy of it copies no weights."""
    bare = copy.copy(attack)
    bare.__dict__ = {k: (None if isinstance(v, nn.Module) else v) for k, v in vars(attack).items()}
    bare.__dict__["_attacks"] = {k: _without_model(v) for k, v in vars(attack)["_attacks"].items()}
    return bare


def _instantiated(kind: Any, knobs: dict[str, Any], name: str) -> Perturb:
    parameters = inspect.signature(kind.__init__).parameters
    for knob in knobs:
        if knob not in parameters or knob in ("eps", "model"):
            raise unknown(f"knob of {name}", knob, [p for p in parameters if p not in ("self", "model", "eps")])

    def run(target: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        _check_ball(ball, name)
        given = dict(knobs)
        if "eps" in parameters:
            given["eps"] = ball.eps
        if "norm" in parameters:
            given["norm"] = str(ball.norm).replace("l", "L")
        if "n_classes" in parameters and "n_classes" not in given:
            given["n_classes"] = target(x[:1]).shape[1]
        attack = kind(target, **given)
        attack.set_device(x.device)
        return attack(x.clamp(*BOX), y)

    return run
