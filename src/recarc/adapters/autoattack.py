"""AutoAttack (the package pyautoattack) as a stage: `WorstOf([recarc.adapters.autoattack.stage(), ARC()])`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import Tensor, nn

from recarc.adapters.common import PeerAttack, require
from recarc.errors import InputError, unknown
from recarc.geometry import Ball

VERSIONS = ("standard", "plus", "rand", "custom")
ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
LEAST_CLASSES = 4  # the losses do not exist for fewer


def stage(
    version: str = "standard",
    attacks: Sequence[str] = (),
    member: int | None = None,
    seed: int = 0,
    queries: int | None = None,
) -> PeerAttack:
    """AutoAttack against the expected logits, or against one member; `attacks` selects a part of it (version="custom").

    `queries`: of its Square; None leaves the package's own number.
    It is meant for deterministic models, which the expected logits are, and is no substitute for attacks on the
    expected accuracy. Against each member alone it gives a floor.
    """
    package = require("pyautoattack", "autoattack")
    version = "custom" if attacks else version
    if version not in VERSIONS or (version == "custom" and not attacks):
        raise unknown("AutoAttack version", version, VERSIONS[:3])
    for name in attacks:
        if name not in ATTACKS:
            raise unknown("attack of AutoAttack", name, ATTACKS)
    name = f"pyautoattack {package.__version__} {version}"

    def run(target: nn.Module, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        if str(ball.norm) not in NORMS or ball.box != (0.0, 1.0):
            raise InputError(f"{name} supports linf, l2 and l1 with box (0, 1), the ball is {ball}")
        if x.dim() != 4:
            raise InputError(f"{name} takes images (B, C, H, W), got {tuple(x.shape)}")
        classes = target(x[:1]).shape[1]
        if classes < LEAST_CLASSES:
            raise InputError(f"{name} needs at least {LEAST_CLASSES} classes, the members have {classes}")
        chosen = {"attacks": list(attacks)} if attacks else {}
        attack = package.AutoAttack(
            target, norm=NORMS[str(ball.norm)], eps=ball.eps, seed=seed, device=x.device, version=version, **chosen
        )
        attack.apgd_targeted.n_target_classes = min(attack.apgd_targeted.n_target_classes, classes - 1)
        attack.fab.n_target_classes = min(9, classes - 1)
        attack.square.n_queries = queries or attack.square.n_queries
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return attack.run_standard_evaluation(x.clamp(0, 1), y, batch_size=len(x))[0]

    knobs = {"version": version, "attacks": list(attacks)} | ({} if queries is None else {"queries": queries})
    return PeerAttack(name, knobs, run, member, seed)
