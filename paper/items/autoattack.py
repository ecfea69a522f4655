"""Are our attacks on one model as strong as AutoAttack's? Single AT models: figure and floor are one number."""

from __future__ import annotations

from paper.items.head_to_head import PyAutoAttack
from paper.recipe import Difference, EnsembleRecipe, Measurement, Reading, Row, item
from paper.settings import EPS, budget, tight_and_floor
from recarc.attacks import Square

L1 = "12"  # the radius of Croce and Hein (2021)
QUERIES = 1000
NOTE = (
    "Not in the paper. AutoAttack: the standard version of the package pyautoattack for that norm (APGD-CE, APGD-T, "
    "FAB-T, Square with 5,000 queries), on the same images; its Square: that part alone, with 1,000 queries, as ours. "
    "Differences with an interval are paired. The effort of `standard` was chosen on the first 2,000 test images, for "
    "l1 on the first 500 of AT linf and on images 1,000 to 1,300; `other images` are as many at the end of the test "
    "set, which had no part in that choice."
)


def _row(name: str, trained: str, norm: str, eps: str, square: bool = True, last: bool = False) -> Row:
    """The model adversarially trained in the norm `trained`, attacked in `norm`."""
    floor = Difference("floor - AutoAttack", "floor", "AutoAttack")
    searches = (
        Measurement(PyAutoAttack(parts=("square",), queries=QUERIES), (Reading("AutoAttack's Square"),)),
        Measurement(Square(queries=QUERIES), (Reading("Square"),)),
    )
    lead = Difference("Square - AutoAttack's Square", "Square", "AutoAttack's Square")
    return Row(
        name,
        EnsembleRecipe("at", "cifar10", "resnet20", trained, EPS["cifar10", trained], members=1),
        norm,
        eps,
        (
            Measurement(PyAutoAttack(parts=()), (Reading("AutoAttack"),)),
            tight_and_floor(budget("cifar10")),
            *(searches if square else ()),
        ),
        "equal",
        (floor, lead) if square else (floor,),
        last=last,
    )


@item("autoattack", "Single AT models under tight and Square beside AutoAttack, ResNet-20 on CIFAR-10", note=NOTE)
def autoattack() -> tuple[Row, ...]:
    norms = ("l2", "linf")
    own = (_row(norm, norm, norm, EPS["cifar10", norm]) for norm in norms)
    other = (_row(f"{norm}, other images", norm, norm, EPS["cifar10", norm], square=False, last=True) for norm in norms)
    return (*own, *other, *(_row(f"l1 on AT {norm}", norm, "l1", L1, square=False) for norm in norms))
