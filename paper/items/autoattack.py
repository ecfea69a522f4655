"""Is the floor of a member as low as AutoAttack gets? Single AT models, on which figure and floor are one number."""

from __future__ import annotations

from paper.items.head_to_head import PyAutoAttack
from paper.recipe import Difference, EnsembleRecipe, Measurement, Reading, Row, item
from paper.settings import EPS, budget, tight_and_floor

NOTE = (
    "Not in the paper. AutoAttack: the standard version of the package pyautoattack (APGD-CE, APGD-T, FAB-T, Square "
    "with 5,000 queries), on the same images. The difference is paired."
)


def _row(norm: str) -> Row:
    eps = EPS["cifar10", norm]
    return Row(
        norm,
        EnsembleRecipe("at", "cifar10", "resnet20", norm, eps, members=1),
        norm,
        eps,
        (
            Measurement(PyAutoAttack(parts=()), (Reading("AutoAttack"),)),
            tight_and_floor(budget("cifar10")),
        ),
        "equal",
        (Difference("floor - AutoAttack", "floor", "AutoAttack"),),
    )


@item("autoattack", "The floor of single AT models under tight beside AutoAttack, ResNet-20 on CIFAR-10", note=NOTE)
def autoattack() -> tuple[Row, ...]:
    return tuple(_row(norm) for norm in ("l2", "linf"))
