"""The figures of the paper: sweeps, cross-robustness matrices, images and the plane of Figure 2.

Figures print hardly any number; where a point of a curve is also an entry of a table, that number stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paper import results
from paper.items.tables import DATASETS, INDIVIDUAL, plain_row, table1
from paper.recipe import Difference, EnsembleRecipe, Measurement, Reading, Row, item, measured_item
from paper.results import Figure, RowResult
from paper.settings import ADP, DVERGE, EFFICIENTNETS, EPS, IAT, TRS, all_attacks, bat, budget, tight_and_floor
from paper.setup import Setup
from recarc.attacks import Attack
from recarc.report.plane import THREE, TWO, Plane, solved, write_plane

ALPHAS = tuple(i / 10 for i in range(11))
STEPS = (1, 2, 5, 10, 20, 50, 100)
RADII = {"linf": (2, 4, 6, 8, 10, 12, 16), "l2": (32, 64, 96, 128, 160, 192, 256)}  # in 255ths
IAT_GAIN = "ARC at M = 8 less ARC at M = 1"  # stands in results files
ARC_ALPHA_ONE = "ARC at alpha 1 less ARC at alpha 0.9"
SWEPT = "quick"  # preset of the tight attack at the points of a sweep


def _alpha_sweep(name: str, data: str, norm: str, attacks: dict[str, Attack]) -> Row:
    """alpha = (a, 1 - a). Table 4 gives ARC at both ends, where the ensemble is one of its members."""
    ends = {0.0: INDIVIDUAL[data, norm, 1][2], 1.0: INDIVIDUAL[data, norm, 0][2]}
    measured: list[Measurement] = []
    for a in ALPHAS:
        alpha = (a, round(1 - a, 12))
        for column, attack in attacks.items():
            paper = ends.get(a) if column == "ARC" else None
            measured.append(Measurement(attack, (Reading(column, paper=paper),), x=a, alpha=alpha))
        measured.append(tight_and_floor(budget(data), SWEPT, x=a, alpha=alpha))
    nearest = Difference(ARC_ALPHA_ONE, "ARC", "ARC", plus_x=1.0, minus_x=0.9)
    return Row(name, bat(data, norm), norm, EPS[data, norm], tuple(measured), "equal", (nearest,), axis="alpha")


def _steps_sweep(name: str, data: str, norm: str) -> Row:
    """K = 1 ... 100 for APGD and ARC. At the paper's own K it is the entry of Table 2."""
    usual, printed, measured = budget(data), DATASETS[data, norm], []
    for steps in STEPS:
        used, same = type(usual)(steps, usual.planes), steps == usual.steps
        for column, attack, paper in (("APGD", used.apgd(), printed[1]), ("ARC", used.arc(), printed[2])):
            measured.append(Measurement(attack, (Reading(column, paper=paper if same else None),), x=steps))
    return Row(name, bat(data, norm), norm, EPS[data, norm], tuple(measured), axis="K")


def _eps_sweep(
    name: str, ensemble: EnsembleRecipe, norm: str, alpha: str = "grid", printed: tuple[float, float] | None = None
) -> Row:
    used, usual, measured = budget(ensemble.data), EPS[ensemble.data, norm], []
    for size in RADII[norm]:
        eps = f"{size}/255"
        apgd, arc = printed if printed and eps == usual else (None, None)
        measured.append(Measurement(used.apgd(), (Reading("APGD", paper=apgd),), x=size, eps=eps))
        measured.append(Measurement(used.arc(), (Reading("ARC", paper=arc),), x=size, eps=eps))
        measured.append(tight_and_floor(used, SWEPT, x=size, eps=eps))
    return Row(name, ensemble, norm, usual, tuple(measured), alpha=alpha, axis="255 eps")


def _cross(name: str, ensemble: EnsembleRecipe, norm: str) -> Row:
    measured = (Measurement(budget(ensemble.data).cross(), (Reading("cross", "cross"),)),)
    return Row(name, ensemble, norm, EPS[ensemble.data, norm], measured, alpha="equal")


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
        measured.append(tight_and_floor(used, SWEPT, x=count, members=members, alpha=alpha))
    gain = Difference(IAT_GAIN, "ARC", "ARC", plus_x=IAT.members, minus_x=1)
    return Row("M", IAT, "l2", EPS["cifar10", "l2"], tuple(measured), "equal", (gain,), axis="M")


def _images(name: str, ensemble: EnsembleRecipe, alpha: str = "grid") -> Row:
    used = budget(ensemble.data)
    measured = (
        Measurement(used.apgd(), (Reading("APGD"),)),
        Measurement(
            used.arc(),
            (
                Reading("ARC"),
                Reading("APGD none, ARC all", "none-all"),
                Reading("APGD less than half, ARC all", "most-all"),
            ),
        ),
    )
    return Row(name, ensemble, "linf", EPS[ensemble.data, "linf"], measured, alpha=alpha)


DIVERSE = {"dverge": DVERGE, "adp": ADP, "trs": TRS}
PRINTED_DVERGE = (43.36, 14.88)  # Section 6.4, eps = 8/255


@item("figure1", "The vulnerability of BAT ensembles in linf on CIFAR-10, across networks", drawing="scatter")
def figure1() -> tuple[Row, ...]:
    return tuple(row for row in table1.rows if row.norm == "linf")


@measured_item(
    "figure2",
    "The auxiliary classifier that adaptive PGD attacks instead of either member",
    drawing="plane",
    claims=("APGD's perturbation fools neither classifier, while others fool the ensemble half the time",),
)
def figure2(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    """Computed: with two members APGD fools neither and ARC one of them; a third shows where ARC falls short."""
    folder.mkdir(parents=True, exist_ok=True)
    write_plane(folder / "figure2.png")
    for name, plane in (("two members", TWO), ("three members", THREE)):
        yield _plane_row(name, plane)


def _plane_row(name: str, plane: Plane) -> RowResult:
    accuracy = solved(plane).accuracy
    columns = (("APGD", "AdaptivePGD"), ("ARC", "ARC"), ("optimum", "optimum"))
    return RowResult(
        name,
        tuple(Figure(column, round(100 * accuracy[key], 4), extra=column == "optimum") for column, key in columns),
        images=1,
        data="one point of the plane",
        norm="l2",
        eps=f"{plane.eps:g}",
        alpha=tuple(plane.alpha),
        ensemble=f"{len(plane.weights)} linear classifiers",
        command="python -m paper figure2",
        commit=results.commit(),
        hardware="any",
        date=results.now(),
    )


@item("figure3", "ResNet-20 BAT in linf on CIFAR-10: alpha, K and eps", drawing="lines")
def figure3() -> tuple[Row, ...]:
    return _sweeps("cifar10", "linf")


@item(
    "figure4",
    "DVERGE, three ResNet-20s on CIFAR-10 in linf: cross-robustness and eps",
    drawing="lines",
    claims=("each model keeps about 87 % under the others' perturbations and nothing under its own",),
)
def figure4() -> tuple[Row, ...]:
    return (
        _cross("cross", DVERGE, "linf"),
        _eps_sweep("eps", DVERGE, "linf", "equal", PRINTED_DVERGE),
        plain_row("dverge-linf", DVERGE, "linf", PRINTED_DVERGE),
    )


@item(
    "figure5",
    "Cross-robustness of the BAT ensembles",
    drawing="matrix",
    claims=("the first model is robust, the second robust to the first's perturbations and lost to its own",),
)
def figure5() -> tuple[Row, ...]:
    return tuple(_cross(f"{data}-{norm}", bat(data, norm), norm) for data, norm in DATASETS)


@item("figure6", "BAT sweeps over alpha, K and eps on CIFAR-10 and CIFAR-100, linf and l2", drawing="lines")
def figure6() -> tuple[Row, ...]:
    return tuple(row for d in ("cifar10", "cifar100") for n in ("linf", "l2") for row in _sweeps(d, n, f"{d}-{n}-"))


@item(
    "figure7",
    "Every adaptation of PGD and C&W against ARC, over alpha; ResNet-20 BAT on CIFAR-10",
    drawing="lines",
    claims=("ARC wins at every alpha, by about 20 points for alpha in [0.5, 0.9]; its best alpha is 1",),
)
def figure7() -> tuple[Row, ...]:
    return tuple(_alpha_sweep(norm, "cifar10", norm, all_attacks(norm)) for norm in ("linf", "l2"))


@item(
    "figure8",
    "Cross-robustness of DVERGE, ADP and TRS, three ResNet-20s on CIFAR-10",
    drawing="matrix",
    claims=("no member is robust to its own perturbations; all are to the others'",),
)
def figure8() -> tuple[Row, ...]:
    return tuple(_cross(name, ensemble, "linf") for name, ensemble in DIVERSE.items())


@item(
    "figure9",
    "DVERGE, ADP and TRS over eps, linf on CIFAR-10",
    drawing="lines",
    claims=("ARC beats APGD for all three, by large margins for TRS and DVERGE",),
)
def figure9() -> tuple[Row, ...]:
    printed = {"dverge": PRINTED_DVERGE}
    return tuple(_eps_sweep(name, ensemble, "linf", "equal", printed.get(name)) for name, ensemble in DIVERSE.items())


@item(
    "figure10",
    "Independent adversarial training in l2: cross-robustness, and M = 1 to 8",
    drawing="lines",
    claims=("every model keeps about 62 %; eight of them gain less than 3 points over one",),
)
def figure10() -> tuple[Row, ...]:
    return (_cross("cross", IAT, "l2"), _sizes())


@item(
    "figure11",
    "Images that APGD leaves right for every member and ARC turns wrong for all",
    drawing="images",
    note=(
        "The paper shows such images for its BAT pair on ImageNet. None of our ensembles has one: APGD fools one "
        "member or another on nearly every image. Shown instead are images on which APGD fools "
        "members that are drawn less than half of the time (one of DVERGE's three, or BAT's second one) and ARC all."
    ),
)
def figure11() -> tuple[Row, ...]:
    return (
        _images("dverge", DVERGE, "equal"),
        _images("imagenet", bat("imagenet", "linf")),
        _images("cifar10", bat("cifar10", "linf")),
        _images("imagenet-sample", EFFICIENTNETS, "equal"),
    )
