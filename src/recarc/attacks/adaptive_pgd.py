"""Adaptive PGD, the usual evaluation of randomized ensembles: PGD on an expectation over the members."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recarc.attacks.pgd import GradientAttack
from recarc.attacks.registry import register
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import unknown
from recarc.losses import loss_named


@register("adaptive_pgd", label="AdaptivePGD", help="the usual test: PGD on the expected loss (the paper's APGD)")
@dataclass(frozen=True)
class AdaptivePGD(GradientAttack):
    """The paper's APGD (expectation="loss") and APGD-L (expectation="logits").

    Not Croce and Hein's APGD: that one is `AutoPGD`. The paper's "+R" is `random_init=True`, its "+RR" is
    `Restarts(AdaptivePGD(random_init=True), 10, keep="loss")`.
    """

    expectation: str = "loss"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expectation not in ("loss", "logits"):
            raise unknown("expectation", self.expectation, ("loss", "logits"))

    def objective(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor) -> Tensor:
        if self.expectation == "logits":
            return loss_named(self.loss)(ensemble.expected_logits(x), y)
        return ensemble.expected_loss(x, y, self.loss)
