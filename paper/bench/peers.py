"""Attacks of other libraries on one model, each as `attack(model, x, y) -> x_adv`; those not installed are named."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Peer = Callable[[Any, Tensor, Tensor], Tensor]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation is as good as none
        print(f"  {name} is left out: {type(error).__name__}: {str(error)[:120]}", flush=True)
        return None


def pgd(eps: float, step: float, steps: int) -> Iterator[tuple[str, Peer]]:
    """PGD in the linf ball from zero: the budget of `recarc.PGD`."""
    torchattacks = _module("torchattacks")
    if torchattacks is not None:

        def of_torchattacks(model: Any, x: Tensor, y: Tensor) -> Tensor:
            attack = torchattacks.PGD(model.eval(), eps=eps, alpha=step, steps=steps, random_start=False)
            return attack(x, y)

        yield "torchattacks PGD", of_torchattacks
    foolbox = _module("foolbox")
    if foolbox is not None:

        def of_foolbox(model: Any, x: Tensor, y: Tensor) -> Tensor:
            wrapped = foolbox.PyTorchModel(model.eval(), bounds=(0, 1), device=x.device)
            attack = foolbox.attacks.LinfPGD(abs_stepsize=step, steps=steps, random_start=False)
            return attack(wrapped, x, y, epsilons=eps)[1]

        yield "foolbox LinfPGD", of_foolbox


def autopgd(eps: float, steps: int) -> Iterator[tuple[str, Peer]]:
    """AutoPGD on the cross-entropy in the linf ball, one restart."""
    found = _module("pyautoattack.autopgd_base")
    if found is not None:

        def of_pyautoattack(model: Any, x: Tensor, y: Tensor) -> Tensor:
            attack = found.APGDAttack(
                model.eval(), n_iter=steps, norm="Linf", eps=eps, n_restarts=1, loss="ce", seed=0, device=x.device
            )
            with torch.enable_grad():
                return attack.perturb(x.contiguous(), y).detach()

        yield "pyautoattack APGD-CE", of_pyautoattack
    art = _module("art.attacks.evasion")
    estimators = _module("art.estimators.classification") if art is not None else None
    if estimators is not None:

        def of_art(model: Any, x: Tensor, y: Tensor) -> Tensor:
            with torch.no_grad():
                classes = model(x[:1]).shape[1]
            classifier = estimators.PyTorchClassifier(
                model=model,
                loss=torch.nn.CrossEntropyLoss(reduction="none"),
                input_shape=tuple(x.shape[1:]),
                nb_classes=classes,
                clip_values=(0.0, 1.0),
                device_type="gpu" if x.device.type == "cuda" else "cpu",
            )
            attack = art.AutoProjectedGradientDescent(
                classifier,
                norm="inf",
                eps=eps,
                eps_step=2 * eps,
                max_iter=steps,
                nb_random_init=1,
                loss_type="cross_entropy",
                batch_size=len(x),
                verbose=False,
            )
            return torch.from_numpy(attack.generate(x=x.cpu().numpy(), y=y.cpu().numpy())).to(x.device)

        yield "ART AutoPGD", of_art
