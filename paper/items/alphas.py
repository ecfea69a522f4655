"""The board's ensembles with an alpha chosen on held-out training images: by OSP, and by the linear program."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paper import results
from paper.recipe import measured_item, radius
from paper.results import Figure, ItemResult, RowResult, hardware_of
from paper.settings import L2, LINF
from paper.setup import ENSEMBLES, Setup
from paper.tables import Grid
from recarc import sampling
from recarc.attacks import Climb, Tight
from recarc.data.held_out import held_out
from recarc.ensemble import RandomizedEnsemble
from recarc.evaluation.result import Estimate, estimate
from recarc.fast import accelerate
from recarc.geometry import Ball
from recarc.models import load_ensemble
from recarc.provenance import short
from recarc.runtime import COARSE
from recarc.sampling import AttackedSamples

IMAGES, ROUNDS = 1000, 10  # one half of the images to choose on, the other to score on
KEPT, BEST, GAIN, MOST = "keeps", "best member keeps", "gain", "most that any alpha gains"


@dataclass(frozen=True)
class Case:
    """The first members of a folder, or all of them, on the board's problem in this norm."""

    folder: Path
    norm: str = "linf"
    members: int | None = None
    data: str = "cifar10"

    @property
    def eps(self) -> str:
        return LINF if self.norm == "linf" else L2


def ensemble_folder(name: str) -> Path:
    return ENSEMBLES / f"{name}-fast"


CASES = {
    "IAT, linf, M = 2": Case(ensemble_folder("iat2-s0-cifar10-resnet20-linf")),
    "IAT, linf, M = 3": Case(ensemble_folder("iat3-cifar10-resnet20-linf")),
    "IAT, linf, M = 4": Case(ensemble_folder("iat4-cifar10-resnet20-linf")),
    "JAT, 0.5, linf, M = 2": Case(ensemble_folder("jat2-share0.5-s0-cifar10-resnet20-linf")),
    "Cover, 0.5, linf, M = 2": Case(ensemble_folder("cover2-0.5-s0-cifar10-resnet20-linf")),
    "Tournament, 1, linf, M = 2": Case(ensemble_folder("tournament2-1-s0-cifar10-resnet20-linf")),
    "MRBoost, linf, M = 3": Case(ensemble_folder("mrboost-cifar10-resnet20-linf")),
    "IAT, l2, M = 2": Case(ensemble_folder("iat8-cifar10-resnet20-l2"), "l2", 2),
    "IAT, l2, M = 3": Case(ensemble_folder("iat8-cifar10-resnet20-l2"), "l2", 3),
    "MRBoost, l2, M = 3": Case(ensemble_folder("mrboost-cifar10-resnet20-l2"), "l2"),
}


@measured_item(
    "alphas",
    "The board's ensembles, with alpha chosen on held-out training images",
    cost="some 3 minutes of a GPU per ensemble",
    parts=tuple(CASES),
    page="board",
)
def alphas(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    for name in parts:
        yield from alphas_of(name, CASES[name], setup)


def alphas_of(name: str, case: Case, setup: Setup) -> Iterator[RowResult]:
    """A row for the uniform alpha, OSP's and the program's: what each keeps on images on which none was chosen."""
    begun = time.monotonic()
    loaded = load_ensemble(case.folder, setup.device)
    rec = RandomizedEnsemble(loaded.members[: case.members or len(loaded)])
    ball, climb = Ball(case.norm, radius(case.eps)), setup.scale.attack(Climb(orders=1))
    judge = setup.scale.attack(Tight("quick"))
    assert isinstance(judge, Tight)
    found = held_out(setup.images(case.data, "train"), loaded.made_by)
    x, y = found.images.limit(min(IMAGES, setup.limit or IMAGES)).tensors()
    fast = tuple(accelerate(rec, setup.precision).members) if setup.precision in COARSE else None
    chosen, scored = AttackedSamples(x.to(setup.device), y.to(setup.device), ball, search=fast).halves()
    rounds = ROUNDS if setup.scale.name == "full" else 1

    def said(method: str, alpha: list[float], accuracy: float) -> None:
        setup.say(f"{name}, {method}: alpha {', '.join(f'{a:.3g}' for a in alpha)} keeps {100 * accuracy:.2f} %")

    choices = {
        "uniform": [1 / len(rec)] * len(rec),
        "OSP": sampling.osp(rec, chosen, climb, rounds, watch=said).alpha,
        "program": sampling.cutting_planes(rec, chosen, climb, rounds, watch=said).alpha,
    }
    for alpha in choices.values():
        chosen.witnessed(rec.with_alpha(alpha), judge)
        scored.witnessed(rec.with_alpha(alpha), judge)
    sampling.cutting_planes(rec, scored, climb, rounds)  # more patterns, on which the bound for any alpha rests
    best = max(range(len(rec)), key=lambda i: chosen.accuracy(np.eye(len(rec))[i].tolist()))
    row = RowResult(
        name,
        (),
        images=len(scored.x),
        data=case.data,
        split="train",
        norm=case.norm,
        eps=case.eps,
        ensemble=case.folder.name,
        precision=setup.precision,
        attacks={"search": repr(climb), "judge": repr(judge)},
        seconds=round(time.monotonic() - begun, 1),
        command=f"python -m paper alphas --only '{name}' --device {setup.device.type} --precision {setup.precision}",
        commit=results.commit(),
        hardware=hardware_of(setup.device),
        date=results.now(),
        note=f"chosen on {len(chosen.x)} {found.words}, scored on {len(scored.x)} others",
    )
    for method, alpha in choices.items():
        gain = sampling.gain_over(best, alpha, scored)
        kept = estimate(scored.scores(alpha))
        figures = (
            figure_of(KEPT, kept),
            figure_of(BEST, gain.alone),
            figure_of(GAIN, gain.gain, "points"),
            figure_of(MOST, gain.most, "points"),
        )
        yield replace(row, row=f"{name}, {method}", figures=figures, alpha=tuple(alpha), alpha_chosen_by=method)


def alphas_table(measured: Sequence[ItemResult]) -> str:
    """A line for each ensemble and method."""
    rows = [row for result in measured for row in result.rows]
    if not rows:
        return "Not measured yet: `python -m paper alphas`, then `--render`."
    cells = []
    for row in rows:
        alpha = ", ".join(f"{a:.3g}" for a in row.alpha or ())
        cells.append([row.row, alpha, *in_words(row, (KEPT, BEST, GAIN, MOST)), f"{row.images:,}"])
    grid = Grid("", ["ensemble, method", "alpha", KEPT, BEST, GAIN, MOST, "images"], cells)
    return f"{grid.markdown()}\n\n{rows[0].note.capitalize()}; `python -m paper alphas` ({made(rows)})."


def in_words(row: RowResult, columns: Sequence[str]) -> list[str]:
    """These figures with their intervals."""
    found = [figure for column in columns if (figure := row.figure(column)) is not None]
    return [f"{f.measured:.2f} [{', '.join(f'{end:.2f}' for end in f.interval or ())}]" for f in found]


def made(rows: Sequence[RowResult]) -> str:
    """Where, when and by which code these rows were measured."""
    return "; ".join(sorted({f"{row.hardware}, {row.date[:10]}, {short(row.commit or '')}" for row in rows}))


def figure_of(column: str, value: Estimate, unit: str = "%") -> Figure:
    low, middle, high = (round(100 * end, 4) for end in (value.low, value.value, value.high))
    return Figure(column, middle, (low, high), unit=unit)
