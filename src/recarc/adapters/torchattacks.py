"""torchattacks both ways: this package's attacks in its style, its attacks as stages.

atk = recarc.adapters.torchattacks.ARC(models, alpha, eps=8/255)
adv_images = atk(images, labels)
WorstOf([recarc.adapters.torchattacks.stage("PGD", steps=40), ARC()])
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from recarc import attacks
from recarc.adapters.members import missing
from recarc.adapters.outward import as_labels, as_rec, warn_about_probabilities
from recarc.adapters.peer_attack import PeerAttack, Run, plain
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.geometry import Ball, Norm

try:
    import torchattacks
    from torchattacks.attack import Attack as TorchAttack
except ImportError as error:
    raise missing("torchattacks", "torchattacks", error) from None

BOX = (0.0, 1.0)  # torchattacks' images, always


class RecarcAttack(TorchAttack):
    """An attack of this package as a torchattacks attack on a randomized ensemble.

    `alpha` are the sampling probabilities (not a step size). `set_normalization_used` works as everywhere there.
    """

    def __init__(
        self,
        attack: attacks.Attack,
        models: Any,
        alpha: Sequence[float] | None = None,
        eps: float = 8 / 255,
        norm: str | float = "Linf",
    ) -> None:
        super().__init__(type(attack).__name__, as_rec(models, alpha))
        self.recipe = attack
        self.eps = eps
        self.norm = str(Norm(norm))
        self.ball = Ball(norm, eps, BOX)
        self.supported_mode = ["default"]

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        if labels is None:
            raise InputError("labels are missing; these attacks are untargeted and need the true labels")
        device = self.device or images.device
        rec = self.model
        if self._normalization_applied is False:  # images are in [0, 1] by now, the models want them normalised
            rec = RandomizedEnsemble([_Normalised(m, self.normalize) for m in rec.members], rec.alpha)
        images = images.detach().to(device)
        warn_about_probabilities(rec, images)
        return self.recipe(rec, images, as_labels(labels).to(device), self.ball)

    def _set_mode_targeted(self, mode: str, quiet: bool) -> None:
        raise InputError(f"{self.attack} has no mode {mode!r}: it lowers the expected accuracy, untargeted")


class ARC(RecarcAttack):
    """`ARC(models, alpha, eps=8/255, norm="Linf", steps=20, ...)`: knobs of `recarc.ARC`."""

    def __init__(self, models: Any, alpha: Any = None, eps: float = 8 / 255, norm: str = "Linf", **knobs: Any) -> None:
        super().__init__(attacks.ARC(**knobs), models, alpha, eps, norm)


class Climb(RecarcAttack):
    """`Climb(models, alpha, eps=8/255, ...)`: knobs of `recarc.Climb`, which starts from the corrected ARC."""

    def __init__(self, models: Any, alpha: Any = None, eps: float = 8 / 255, norm: str = "Linf", **knobs: Any) -> None:
        chosen = attacks.Climb(**{"start": attacks.ARC(variant="corrected"), **knobs})
        super().__init__(chosen, models, alpha, eps, norm)


class Tight(RecarcAttack):
    """`Tight(models, alpha, eps=8/255, preset="standard", ...)`: knobs of `recarc.Tight`."""

    def __init__(self, models: Any, alpha: Any = None, eps: float = 8 / 255, norm: str = "Linf", **knobs: Any) -> None:
        super().__init__(attacks.Tight(**knobs), models, alpha, eps, norm)


class _Normalised(nn.Module):
    def __init__(self, member: Any, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.member = member
        self.normalize = normalize

    def forward(self, x: Tensor) -> Tensor:
        return self.member(self.normalize(x))


def stage(attack: Any, member: int | None = None, seed: int = 0, **knobs: Any) -> PeerAttack:
    """A torchattacks attack against the expected logits, or against one member, for `WorstOf`.

    `attack` is a name or class (made anew for each ball, with its eps and norm) or an object, whose model and eps are
    replaced by the ensemble's and the ball's.
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
            raise InputError(f"{name} is made already: give its knobs {sorted(knobs)} when you make it")
        _check_mode(attack, name)
        knobs, run = plain(vars(attack)), _rebound(attack, name)
    else:
        run = _made(kind, knobs, name)
    return PeerAttack(name, knobs, run, member, seed)


def _check_mode(attack: Any, name: str) -> None:
    if attack.targeted or attack.attack_mode != "default":
        raise InputError(f"{name} is in mode {attack.attack_mode!r}; robust accuracy is untargeted: set_mode_default()")
    if attack.normalization_used is not None:
        raise InputError(f"{name} has set_normalization_used: here the members normalise, inputs are in [0, 1]")


def _check_ball(ball: Ball, name: str) -> None:
    if ball.box != BOX:
        raise InputError(f"{name} knows only the box (0, 1), the ball has {ball.box}")


def _rebound(attack: Any, name: str) -> Run:
    def run(target: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        _check_ball(ball, name)
        _check_mode(attack, name)
        if attack._attacks and getattr(attack, "eps", ball.eps) != ball.eps:
            raise InputError(f"{name} was made for eps {attack.eps:g}, not {ball.eps:g}; make it with that eps")
        here = copy.deepcopy(_without_model(attack))
        here.set_model(target)
        here.set_device(x.device)
        if hasattr(here, "eps"):
            here.eps = ball.eps
        return here(x.clamp(*BOX), y)

    return run


def _without_model(attack: Any) -> Any:
    """A shallow copy whose models are gone, so that copying it deeply copies no weights."""
    bare = copy.copy(attack)
    bare.__dict__ = {k: (None if isinstance(v, nn.Module) else v) for k, v in vars(attack).items()}
    bare.__dict__["_attacks"] = {k: _without_model(v) for k, v in vars(attack)["_attacks"].items()}
    return bare


def _made(kind: Any, knobs: dict[str, Any], name: str) -> Run:
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
        made = kind(target, **given)
        made.set_device(x.device)
        return made(x.clamp(*BOX), y)

    return run
