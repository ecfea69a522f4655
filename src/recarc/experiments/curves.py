"""The paper's figures as recipes: sweeps, cross-robustness matrices and images.

Figures print hardly any number; where a point of a curve is also an entry of a table, that number stands beside it.
"""

from __future__ import annotations

from recarc.attacks import Attack
from recarc.experiments.paper import (
    ADP,
    DVERGE,
    EFFICIENTNETS,
    EPS,
    IAT,
    TRS,
    all_attacks,
    bat,
    budget,
    extras,
)
from recarc.experiments.recipe import Difference, Item, Made, Measurement, Reading, Row
from recarc.experiments.tables import DATASETS, INDIVIDUAL

ALPHAS = tuple(i / 10 for i in range(11))
STEPS = (1, 2, 5, 10, 20, 50, 100)
RADII = {"linf": (2, 4, 6, 8, 10, 12, 16), "l2": (32, 64, 96, 128, 160, 192, 256)}  # in 255ths
IAT_GAIN = "ARC at M = 8 less ARC at M = 1"
SWEPT = "quick"  # effort of the tight attack at every point of a sweep


def _alpha_sweep(name: str, data: str, norm: str, attacks: dict[str, Attack]) -> Row:
    """alpha = (a, 1 - a). Table 4 gives ARC at both ends, where the ensemble is one of its members."""
    ends = {0.0: INDIVIDUAL[data, norm, 1][2], 1.0: INDIVIDUAL[data, norm, 0][2]}
    measured: list[Measurement] = []
    for a in ALPHAS:
        alpha = (a, round(1 - a, 12))
        for column, attack in attacks.items():
            paper = ends.get(a) if column == "ARC" else None
            measured.append(Measurement(attack, (Reading(column, paper=paper),), x=a, alpha=alpha))
        measured.append(extras(budget(data), SWEPT, x=a, alpha=alpha))
    return Row(name, bat(data, norm), norm, EPS[data, norm], tuple(measured), alpha="equal", axis="alpha")


def _steps_sweep(name: str, data: str, norm: str) -> Row:
    """K = 1 ... 100 for APGD and ARC. At the paper's own K it is the entry of Table 2."""
    usual, printed, measured = budget(data), DATASETS[data, norm], []
    for steps in STEPS:
        used, same = type(usual)(steps, usual.planes), steps == usual.steps
        for column, attack, paper in (("APGD", used.apgd(), printed[1]), ("ARC", used.arc(), printed[2])):
            measured.append(Measurement(attack, (Reading(column, paper=paper if same else None),), x=steps))
    return Row(name, bat(data, norm), norm, EPS[data, norm], tuple(measured), axis="K")


def _eps_sweep(
    name: str, made: Made, norm: str, alpha: str = "grid", printed: tuple[float, float] | None = None
) -> Row:
    used, usual, measured = budget(made.data), EPS[made.data, norm], []
    for size in RADII[norm]:
        eps = f"{size}/255"
        apgd, arc = printed if printed and eps == usual else (None, None)
        measured.append(Measurement(used.apgd(), (Reading("APGD", paper=apgd),), x=size, eps=eps))
        measured.append(Measurement(used.arc(), (Reading("ARC", paper=arc),), x=size, eps=eps))
        measured.append(extras(used, SWEPT, x=size, eps=eps))
    return Row(name, made, norm, usual, tuple(measured), alpha=alpha, axis="255 eps")


def _at_usual_eps(made: Made, norm: str, printed: tuple[float, float]) -> Row:
    """The one point of the sweep for which the paper prints numbers, with our own columns at full effort."""
    used, eps = budget(made.data), EPS[made.data, norm]
    apgd = Measurement(used.apgd(), (Reading("Clean", "clean"), Reading("APGD", paper=printed[0])))
    arc = Measurement(used.arc(), (Reading("ARC", paper=printed[1]),))
    return Row(f"{made.method}-{norm}", made, norm, eps, (apgd, arc, extras(used)), alpha="equal")


def _cross(name: str, made: Made, norm: str) -> Row:
    measured = (Measurement(budget(made.data).cross(), (Reading("cross", "cross"),)),)
    return Row(name, made, norm, EPS[made.data, norm], measured, alpha="equal")


def _sweeps(data: str, norm: str, prefix: str = "") -> tuple[Row, ...]:
    used = budget(data)
    both: dict[str, Attack] = {"APGD": used.apgd(), "ARC": used.arc()}
    return (
        _alpha_sweep(f"{prefix}alpha", data, norm, both),
        _steps_sweep(f"{prefix}K", data, norm),
        _eps_sweep(f"{prefix}eps", bat(data, norm), norm, printed=DATASETS[data, norm][1:3]),
    )


def _sizes() -> Row:
    """The first M of the independently trained members, equiprobable."""
    used, measured = budget("cifar10"), []
    for count in range(1, IAT.members + 1):
        members, alpha = tuple(range(count)), (1 / count,) * count
        measured.append(Measurement(used.apgd(), (Reading("APGD"),), x=count, members=members, alpha=alpha))
        measured.append(Measurement(used.arc(), (Reading("ARC"),), x=count, members=members, alpha=alpha))
        measured.append(extras(used, SWEPT, x=count, members=members, alpha=alpha))
    gain = Difference(IAT_GAIN, "ARC", "ARC", of_x=IAT.members, less_x=1)
    return Row("M", IAT, "l2", EPS["cifar10", "l2"], tuple(measured), "equal", (gain,), axis="M")


def _images(name: str, made: Made, alpha: str = "grid") -> Row:
    used = budget(made.data)
    measured = (
        Measurement(used.apgd(), (Reading("APGD"),)),
        Measurement(used.arc(), (Reading("ARC"), Reading("APGD none, ARC all", "showable"))),
    )
    return Row(name, made, "linf", EPS[made.data, "linf"], measured, alpha=alpha)


DIVERSE = {"dverge": DVERGE, "adp": ADP, "trs": TRS}
PRINTED_DVERGE = (43.36, 14.88)  # Section 6.4, eps = 8/255
FIGURES = (
    Item("figure3", "ResNet-20 BAT in linf on CIFAR-10: alpha, K and eps", _sweeps("cifar10", "linf"), "lines"),
    Item(
        "figure4",
        "DVERGE, three ResNet-20s on CIFAR-10 in linf: cross-robustness and eps",
        (
            _cross("cross", DVERGE, "linf"),
            _eps_sweep("eps", DVERGE, "linf", "equal", PRINTED_DVERGE),
            _at_usual_eps(DVERGE, "linf", PRINTED_DVERGE),
        ),
        "lines",
        ("each model keeps about 87 % under the others' perturbations and nothing under its own",),
    ),
    Item(
        "figure5",
        "Cross-robustness of the BAT ensembles",
        tuple(_cross(f"{data}-{norm}", bat(data, norm), norm) for data, norm in DATASETS),
        "matrix",
        ("the first model is robust, the second robust to the first's perturbations and lost to its own",),
    ),
    Item(
        "figure6",
        "BAT sweeps over alpha, K and eps on CIFAR-10 and CIFAR-100, linf and l2",
        tuple(row for d in ("cifar10", "cifar100") for n in ("linf", "l2") for row in _sweeps(d, n, f"{d}-{n}-")),
        "lines",
    ),
    Item(
        "figure7",
        "Every adaptation of PGD and C&W against ARC, over alpha; ResNet-20 BAT on CIFAR-10",
        tuple(_alpha_sweep(norm, "cifar10", norm, all_attacks(norm)) for norm in ("linf", "l2")),
        "lines",
        ("ARC wins at every alpha, by about 20 points for alpha in [0.5, 0.9]; its best alpha is 1",),
    ),
    Item(
        "figure8",
        "Cross-robustness of DVERGE, ADP and TRS, three ResNet-20s on CIFAR-10",
        tuple(_cross(name, made, "linf") for name, made in DIVERSE.items()),
        "matrix",
        ("no member is robust to its own perturbations; all are to the others'",),
    ),
    Item(
        "figure9",
        "DVERGE, ADP and TRS over eps, linf on CIFAR-10",
        tuple(
            _eps_sweep(name, made, "linf", "equal", PRINTED_DVERGE if name == "dverge" else None)
            for name, made in DIVERSE.items()
        ),
        "lines",
        ("ARC beats APGD for all three, by large margins for TRS and DVERGE",),
    ),
    Item(
        "figure10",
        "Independent adversarial training in l2: cross-robustness, and M = 1 to 8",
        (_cross("cross", IAT, "l2"), _sizes()),
        "lines",
        ("every model keeps about 62 %; eight of them gain less than 3 points over one",),
    ),
    Item(
        "figure11",
        "Images that APGD leaves right for every member and ARC turns wrong for all",
        (
            _images("imagenet", bat("imagenet", "linf")),
            _images("cifar10", bat("cifar10", "linf")),
            _images("imagenet-sample", EFFICIENTNETS, "equal"),
        ),
        "images",
    ),
)
