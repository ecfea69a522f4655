"""Foolbox both ways: its models as members, our attacks in its style, its attacks as stages.

attack = recarc.adapters.foolbox.wrap(ARC(), norm="linf")
raw, clipped, is_adv = attack(EnsembleModel(fmodels, alpha), images, labels, epsilons=[2/255, 8/255])
WorstOf([recarc.adapters.foolbox.stage(foolbox.attacks.LinfPGD(steps=40)), ARC()])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recarc.adapters.common import (
    PeerAttack,
    as_labels,
    class_for,
    ensemble_from,
    not_installed,
    plain_values,
    warn_about_probabilities,
)
from recarc.adapters.members import check_no_second_normalisation, check_range
from recarc.attacks.base import Attack
from recarc.errors import InputError
from recarc.geometry import Ball, Norm

try:
    import eagerpy as ep
    import foolbox
    from foolbox.attacks.base import AttackWithDistance, Repeated
    from foolbox.criteria import Misclassification
    from foolbox.distances import LpDistance
    from foolbox.models.base import Model
    from foolbox.types import Bounds
except ImportError as error:
    raise not_installed("foolbox", "foolbox", error) from None


class FoolboxMember(nn.Module):
    """A Foolbox model as a member: [0, 1] is mapped to the model's own bounds, its preprocessing stays inside.

    With `own_bounds` it takes inputs in its own bounds, which are not checked.
    """

    def __init__(self, fmodel: Any, own_bounds: bool = False) -> None:
        super().__init__()
        _check_model(fmodel)
        self.own_bounds = own_bounds
        unchanged = own_bounds or tuple(float(b) for b in fmodel.bounds) == (0.0, 1.0)
        self.fmodel = fmodel if unchanged else fmodel.transform_bounds((0, 1))
        self.net = _module_inside(fmodel)  # so that its mode, device and weights are seen
        mean, std, _ = getattr(fmodel, "_preprocess_args", (None, None, None))
        if not own_bounds and self.net is not None and (mean is not None or std is not None):
            check_no_second_normalisation(self.net, "the Foolbox model")

    def forward(self, x: Tensor) -> Tensor:
        if not self.own_bounds:
            check_range(x, "the Foolbox model")
        return self.fmodel(x)


def member(fmodel: Any) -> FoolboxMember:
    """The member of a Foolbox model. If its bounds are not (0, 1), eps here is a fraction of their width."""
    return FoolboxMember(fmodel)


class EnsembleModel(Model):
    """A randomized ensemble as a Foolbox model: any Foolbox attack sees its expected logits.

    `models` are Foolbox models (all with the same bounds), plain members with `bounds`, or a RandomizedEnsemble.
    """

    data_format = "channels_first"

    def __init__(
        self, models: Any, alpha: Sequence[float] | None = None, bounds: tuple[float, float] | None = None
    ) -> None:
        several = list(models) if isinstance(models, list | tuple) else [models]
        members = [FoolboxMember(m, own_bounds=True) if isinstance(m, Model) else m for m in several]
        known = {tuple(float(b) for b in m.bounds) for m in several if isinstance(m, Model)}
        fmodels = bool(known)
        if bounds is not None:
            known.add((float(bounds[0]), float(bounds[1])))
        if len(known) > 1:
            raise InputError(
                f"models with different bounds {sorted(known)} cannot share inputs; convert them with "
                "fmodel.transform_bounds((0, 1))"
            )
        self._bounds = Bounds(*(known.pop() if known else (0.0, 1.0)))
        self.ensemble = ensemble_from(members if fmodels else models, alpha)

    @property
    def bounds(self) -> Any:
        return self._bounds

    def __call__(self, inputs: Any) -> Any:
        x, restore = ep.astensor_(inputs)
        with torch.set_grad_enabled(x.raw.requires_grad):
            return restore(ep.astensor(self.ensemble.expected_logits(x.raw)))


def wrap(attack: Attack, norm: str | float | Norm = "linf") -> WrappedAttack:
    """Any attack of recarc as a Foolbox attack: `wrap(ARC())(fmodel, images, labels, epsilons=[...])`."""
    return class_for(attack, WrappedAttack)(attack, norm)


class WrappedAttack(AttackWithDistance):
    """An attack of recarc in Foolbox's style; `epsilons` are in the units of the model's bounds.

    is_adv says where a query can be answered wrongly at all: some member that may be drawn is fooled. The accuracy
    that a randomized ensemble keeps is `expected_accuracy(model, clipped, labels)`.
    """

    def __init__(self, attack: Attack, norm: str | float | Norm = "linf") -> None:
        self.attack = attack
        self.norm = Norm(norm)

    @property
    def distance(self) -> Any:
        return LpDistance(self.norm.p)

    def repeat(self, times: int) -> Any:
        return Repeated(self, times)

    def __call__(self, model: Any, inputs: Any, criterion: Any, *, epsilons: Any, **kwargs: Any) -> Any:
        """(raw, clipped, is_adv): two lists over epsilons and (K, N), or single results if epsilons is a number."""
        if kwargs:
            raise InputError(f"{type(self).__name__} does not take {sorted(kwargs)}; give knobs to the attack itself")
        rec = model if isinstance(model, EnsembleModel) else EnsembleModel(model)
        x, restore = ep.astensor_(inputs)
        if not isinstance(x, ep.PyTorchTensor):
            raise InputError(f"inputs are {type(x).__name__}; expected PyTorch tensors")
        y = _labels(criterion)
        several = list(epsilons) if isinstance(epsilons, Iterable) else [epsilons]
        if None in several:
            raise InputError("epsilons contains None; these attacks work inside a ball, so give a number for every eps")
        warn_about_probabilities(rec.ensemble, x.raw.detach())
        box = (float(rec.bounds.lower), float(rec.bounds.upper))
        results = [self.attack(rec.ensemble, x.raw.detach(), y, Ball(self.norm, float(e), box)) for e in several]
        flags = torch.stack([rec.ensemble.expected_accuracy(u, y) < 1 for u in results])
        adversarial = [restore(ep.astensor(u)) for u in results]
        if isinstance(epsilons, Iterable):
            return adversarial, list(adversarial), restore(ep.astensor(flags))
        return adversarial[0], adversarial[0], restore(ep.astensor(flags[0]))


def expected_accuracy(model: Any, inputs: Any, labels: Any) -> Tensor:
    """Exact expected accuracy (N,), or (K, N) if `inputs` is a list over epsilons as an attack returns it."""
    rec = model if isinstance(model, EnsembleModel) else EnsembleModel(model)
    y = _labels(labels)
    if isinstance(inputs, list | tuple):
        return torch.stack([expected_accuracy(rec, u, y) for u in inputs])
    return rec.ensemble.expected_accuracy(ep.astensor(inputs).raw, y)


def stage(attack: Any, member: int | None = None, seed: int = 0) -> PeerAttack:
    """A Foolbox attack against the expected logits, or against one member, for `WorstOf`."""
    name = f"foolbox {foolbox.__version__} {type(attack).__name__}"
    if isinstance(attack, type) or not isinstance(attack, foolbox.attacks.base.Attack):
        raise InputError(f"{attack!r} is not a Foolbox attack; give an object, e.g. foolbox.attacks.LinfPGD()")

    def run(target: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        _check_norm(attack, ball, name)
        if ball.box is None:
            raise InputError(f"{name} needs bounds: give the ball a box")
        fmodel = foolbox.PyTorchModel(target, bounds=ball.box, device=x.device)
        return attack(fmodel, x.clamp(*ball.box), y, epsilons=ball.eps)[1]

    return PeerAttack(name, plain_values(vars(attack)), run, member, seed)


def _check_norm(attack: Any, ball: Ball, name: str) -> None:
    p = getattr(getattr(attack, "distance", None), "p", None)
    if p is not None and float(p) != ball.norm.p:
        raise InputError(f"{name} measures {Norm(float(p))}, the ball is {ball.norm}; use the attack for that norm")


def _check_model(fmodel: Any) -> None:
    if not isinstance(fmodel, Model):
        raise InputError(f"{type(fmodel).__name__} is not a Foolbox model; use foolbox.PyTorchModel(model, bounds)")
    low, high = (float(b) for b in fmodel.bounds)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"the Foolbox model has bounds ({low}, {high}); expected finite ones such as (0, 1)")
    if getattr(fmodel, "data_format", "channels_first") != "channels_first":
        raise InputError("the Foolbox model takes channels last; members take (B, C, H, W)")
    if not isinstance(getattr(fmodel, "dummy", ep.PyTorchTensor(torch.zeros(1))), ep.PyTorchTensor):
        raise InputError(f"{type(fmodel).__name__} is not a PyTorch model; only those have gradients here")


def _module_inside(fmodel: Any) -> nn.Module | None:
    """The torch module that a Foolbox PyTorchModel keeps in a closure, if there is one."""
    cells = getattr(getattr(fmodel, "_model", None), "__closure__", None) or ()
    return next((c.cell_contents for c in cells if isinstance(c.cell_contents, nn.Module)), None)


def _labels(criterion: Any) -> Tensor:
    if isinstance(criterion, foolbox.criteria.Criterion):
        if not isinstance(criterion, Misclassification):
            raise InputError(f"the criterion is {type(criterion).__name__}; these attacks are untargeted: give labels")
        criterion = criterion.labels
    return as_labels(criterion.raw if isinstance(criterion, ep.Tensor) else criterion)


__all__ = ["EnsembleModel", "FoolboxMember", "WrappedAttack", "expected_accuracy", "member", "stage", "wrap"]
