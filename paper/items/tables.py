"""Tables 1 to 5 of the paper, with its numbers, and tables of their shape on other data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paper.recipe import Difference, EnsembleRecipe, Measurement, Reading, Row, item
from paper.settings import DVERGE, EFFICIENTNETS, EPS, bat, budget, stress_attacks, tight_and_floor
from recarc.attacks import ARC

# Network, norm: AT under PGD, REC under APGD, REC under ARC, Diff.
NETWORKS: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("resnet20", "l2"): (62.43, 69.21, 55.44, -13.77),
    ("resnet20", "linf"): (45.66, 61.10, 40.71, -20.39),
    ("mobilenetv1", "l2"): (66.39, 67.92, 59.43, -8.49),
    ("mobilenetv1", "linf"): (49.23, 59.27, 44.59, -14.68),
    ("vgg16", "l2"): (66.08, 66.96, 59.20, -7.76),
    ("vgg16", "linf"): (49.02, 57.82, 42.93, -14.89),
    ("resnet18", "l2"): (69.16, 70.16, 65.88, -4.28),
    ("resnet18", "linf"): (51.73, 61.61, 47.43, -14.18),
    ("wrn28_4", "l2"): (69.91, 71.48, 62.95, -8.53),
    ("wrn28_4", "linf"): (51.88, 63.86, 48.65, -15.21),
}
DATASETS: dict[tuple[str, str], tuple[float, float, float, float]] = {
    ("svhn", "l2"): (68.35, 74.66, 60.15, -14.51),
    ("svhn", "linf"): (53.55, 65.99, 52.01, -13.98),
    ("cifar10", "l2"): (62.43, 69.21, 55.44, -13.77),
    ("cifar10", "linf"): (45.66, 61.10, 40.71, -20.39),
    ("cifar100", "l2"): (34.60, 41.91, 28.92, -12.99),
    ("cifar100", "linf"): (22.29, 33.37, 17.45, -15.92),
    ("imagenet", "l2"): (47.61, 49.62, 42.09, -7.53),
    ("imagenet", "linf"): (24.33, 35.92, 19.54, -16.38),
}
STRESS: dict[str, dict[str, float]] = {
    "l2": {"APGD": 69.21, "APGD + R": 69.28, "APGD + RR": 70.14, "ARC": 55.44},
    "linf": {"APGD": 61.10, "APGD + R": 62.80, "APGD + RR": 62.95, "ARC": 40.71},
}
# Data set, norm, member: clean, PGD, ARC.
INDIVIDUAL: dict[tuple[str, str, int], tuple[float, float, float]] = {
    ("svhn", "l2", 0): (93.07, 68.35, 65.50),
    ("svhn", "l2", 1): (91.23, 0.00, 0.00),
    ("svhn", "linf", 0): (90.53, 53.55, 49.01),
    ("svhn", "linf", 1): (88.31, 0.00, 0.00),
    ("cifar10", "l2", 0): (83.36, 62.43, 61.13),
    ("cifar10", "l2", 1): (91.26, 0.13, 0.00),
    ("cifar10", "linf", 0): (75.96, 45.66, 42.36),
    ("cifar10", "linf", 1): (77.64, 0.00, 0.00),
    ("cifar100", "l2", 0): (53.43, 34.60, 31.88),
    ("cifar100", "l2", 1): (63.74, 0.00, 0.00),
    ("cifar100", "linf", 0): (44.37, 22.29, 18.36),
    ("cifar100", "linf", 1): (34.1, 0.00, 0.00),
    ("imagenet", "l2", 0): (62.91, 47.60, 45.96),
    ("imagenet", "l2", 1): (64.60, 0.00, 0.00),
    ("imagenet", "linf", 0): (52.01, 24.33, 21.03),
    ("imagenet", "linf", 1): (55.70, 0.00, 0.00),
}
# G: minutes on a 1080 Ti, robust accuracy in l2, in linf (CIFAR-100).
SEARCH: dict[int, tuple[float, float, float]] = {
    1: (2.06, 29.79, 18.59),
    2: (2.56, 29.08, 17.71),
    3: (3.05, 28.97, 17.55),
    4: (3.56, 28.92, 17.45),
    10: (6.44, 28.88, 17.32),
    50: (26.46, 28.88, 17.32),
    99: (49.91, 28.88, 17.32),
}


def _comparison(name: str, ensemble: EnsembleRecipe, norm: str, printed: tuple[float, float, float, float]) -> Row:
    """AT under PGD, then the REC under APGD and ARC at the alpha that is best under APGD.

    Beside these, AT under ARC and tight: what the REC gains under an attack is judged by the same attack on AT alone.
    """
    used, (at, apgd, arc, diff) = budget(ensemble.data), printed
    first: dict[str, Any] = {"members": (0,), "alpha": (1.0,)}
    known = INDIVIDUAL[ensemble.data, norm, 0][2] if ensemble == bat(ensemble.data, norm) else None
    return Row(
        name,
        ensemble,
        norm,
        EPS[ensemble.data, norm],
        (
            Measurement(used.pgd(), (Reading("AT: PGD", paper=at),), **first),
            Measurement(used.apgd(), (Reading("APGD", paper=apgd),)),
            Measurement(used.arc(), (Reading("ARC", paper=arc),)),
            tight_and_floor(used),
            Measurement(used.arc(), (Reading("AT: ARC", paper=known),), **first),
            Measurement(used.tight(), (Reading("AT: tight"),), extra=True, **first),
        ),
        differences=(
            Difference("Diff", "ARC", "APGD", diff),
            Difference("APGD gain", "APGD", "AT: PGD", round(apgd - at, 2)),
            Difference("ARC gain", "ARC", "AT: ARC"),
            Difference("tight gain", "tight", "AT: tight"),
        ),
    )


def _stress(norm: str) -> Row:
    measured = tuple(
        Measurement(attack, (Reading(name, paper=STRESS[norm][name]),)) for name, attack in stress_attacks().items()
    )
    return Row(norm, bat("cifar10", norm), norm, EPS["cifar10", norm], (*measured, tight_and_floor(budget("cifar10"))))


def _individual(data: str, norm: str, member: int) -> Row:
    used, (clean, pgd, arc) = budget(data), INDIVIDUAL[data, norm, member]
    only: dict[str, Any] = {"members": (member,), "alpha": (1.0,)}
    measured = (
        Measurement(used.pgd(), (Reading("Clean", "clean", clean), Reading("PGD", paper=pgd)), **only),
        Measurement(used.arc(), (Reading("ARC", paper=arc),), **only),
        Measurement(used.tight(), (Reading("tight"),), extra=True, **only),
    )
    return Row(f"{data}-{norm}-f{member + 1}", bat(data, norm), norm, EPS[data, norm], measured, alpha="equal")


def _search(ensemble: EnsembleRecipe, norm: str, sizes: list[int], alpha: str = "grid") -> Row:
    """ARC with G planes, G from `sizes`; the paper's numbers where the data is CIFAR-100."""
    used, measured = budget(ensemble.data), []
    for size in sizes:
        minutes, l2, linf = SEARCH[size] if ensemble.data == "cifar100" else (None, None, None)
        readings = (Reading("ARC", paper=l2 if norm == "l2" else linf), Reading("minutes", "minutes", minutes))
        measured.append(Measurement(ARC(steps=used.steps, planes=size), readings, x=size))
    return Row(norm, ensemble, norm, EPS[ensemble.data, norm], tuple(measured), alpha=alpha, axis="G")


def plain_row(
    name: str, ensemble: EnsembleRecipe, norm: str, printed: tuple[float | None, float | None] = (None, None)
) -> Row:
    """An equiprobable ensemble: clean, under APGD, under ARC, and our own columns. `printed`: APGD and ARC."""
    used = budget(ensemble.data)
    measured = (
        Measurement(used.apgd(), (Reading("Clean", "clean"), Reading("APGD", paper=printed[0]))),
        Measurement(used.arc(), (Reading("ARC", paper=printed[1]),)),
        tight_and_floor(used),
    )
    return Row(name, ensemble, norm, EPS[ensemble.data, norm], measured, alpha="equal")


def _tight(ensemble: EnsembleRecipe, norm: str, alpha: tuple[float, ...] | str) -> Row:
    """The usual attack, ARC with G = 4, and the tight attack at full effort, with what the last two cost."""
    used = budget(ensemble.data)
    measured = (
        Measurement(used.apgd(), (Reading("Clean", "clean"), Reading("APGD"))),
        Measurement(ARC(steps=used.steps, planes=4), (Reading("ARC"), Reading("ARC seconds", "seconds"))),
        Measurement(
            used.tight(),
            (Reading("tight"), Reading("floor", "floor"), Reading("tight seconds", "seconds")),
            extra=True,
        ),
    )
    name = f"{ensemble.method}-{norm}" + ("" if isinstance(alpha, str) else f"-{alpha[0]:g}")
    return Row(name, ensemble, norm, EPS[ensemble.data, norm], measured, alpha=alpha)


NORMS = ("l2", "linf")
SAMPLE = (
    "The images measured here are 500 of ImageNet, one of every second class, cropped to 224 pixels; nothing says that "
    "they belong to the validation set, so compare only the columns with each other."
)


@item("table1", "BAT across networks on CIFAR-10: APGD against ARC")
def table1() -> tuple[Row, ...]:
    return tuple(_comparison(f"{a}-{n}", bat("cifar10", n, a), n, v) for (a, n), v in NETWORKS.items())


@item(
    "paper-recipe",
    "Table 1's ResNet-20 rows, trained as the paper says: 200 epochs, SGD, a rate divided by 10 twice, early stopping",
    note="The second member trains on 20 copies of the training set that were attacked once.",
)
def paper_recipe() -> tuple[Row, ...]:
    def pair(norm: str) -> EnsembleRecipe:
        first = EnsembleRecipe("at", "cifar10", "resnet20", norm, EPS["cifar10", norm], members=1, recipe="paper")
        changes = {"paper": {"copies": 20}}
        return replace(bat("cifar10", norm), start=first, changes=changes, recipe="paper", variant="copies")

    return tuple(_comparison(f"resnet20-{n}", pair(n), n, NETWORKS["resnet20", n]) for n in NORMS)


@item("table2", "BAT across data sets: APGD against ARC")
def table2() -> tuple[Row, ...]:
    return tuple(_comparison(f"{d}-{n}", bat(d, n), n, v) for (d, n), v in DATASETS.items())


@item("table3", "Stress test: random initialisation (+R) and ten restarts (+RR), ResNet-20 on CIFAR-10")
def table3() -> tuple[Row, ...]:
    return tuple(_stress(norm) for norm in NORMS)


@item("table4", "The members of the BAT ensembles on their own")
def table4() -> tuple[Row, ...]:
    return tuple(_individual(*key) for key in INDIVIDUAL)


@item("table5", "ARC with a search over G planes, CIFAR-100")
def table5() -> tuple[Row, ...]:
    return tuple(_search(bat("cifar100", n), n, list(SEARCH)) for n in NORMS)


@item(
    "table5-cifar10",
    "ARC with a search over G planes, CIFAR-10 (the shape of Table 5)",
    note="The minutes were taken beside other jobs on the same GPU and say little; `bench-attacks` has ARC alone.",
)
def table5_cifar10() -> tuple[Row, ...]:
    return tuple(_search(bat("cifar10", n), n, list(range(1, 10))) for n in NORMS)


@item(
    "table5-imagenet-sample",
    "ARC with a search over G planes, pretrained EfficientNet-lite on ImageNet images (the shape of Table 5)",
    note=SAMPLE,
)
def table5_imagenet_sample() -> tuple[Row, ...]:
    return tuple(_search(EFFICIENTNETS, n, [1, 2, 4, 10, 50], "equal") for n in NORMS)


@item(
    "imagenet-sample",
    "Three pretrained EfficientNet-lite members on ImageNet images: APGD, ARC with G = 4, tight",
    note=SAMPLE,
)
def imagenet_sample() -> tuple[Row, ...]:
    return tuple(plain_row(norm, EFFICIENTNETS, norm) for norm in NORMS)


@item(
    "tight",
    "Does the tight attack meet its floor, and what does it cost? ResNet-20 members on CIFAR-10, ARC with G = 4",
    note="The seconds were taken beside seven other jobs on the same GPU. Alone, `Tight` takes 6 s on the pair in linf "
    "(`bench-command`).",
)
def tight() -> tuple[Row, ...]:
    pairs = tuple(_tight(bat("cifar10", n), n, alpha) for n in ("linf", "l2") for alpha in ((0.9, 0.1), (0.5, 0.5)))
    return (_tight(DVERGE, "linf", "equal"), *pairs)
