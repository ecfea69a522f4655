"""Certified floors, the exact optimum where it can be had, and what tight leaves: certified <= truth <= figure."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paper import results
from paper.recipe import EnsembleRecipe, measured_item, radius
from paper.results import Figure, ItemResult, RowResult, hardware_of
from paper.setup import LoadedEnsemble, Setup
from paper.tables import Grid
from recarc import Ball, Evaluation, RandomizedEnsemble, Tight, evaluate
from recarc.data.held_out import held_out
from recarc.data.imageset import ImageSet, fingerprint
from recarc.errors import RecarcWarning
from recarc.evaluation.certification import Certification, certify
from recarc.exact.certificate import Certificate
from recarc.exact.joint import Certified
from recarc.provenance import short

CHUNK = 20  # images that a process solves exactly at a time
HELD_OUT = 145  # of the digits for training no member is trained on these: with the 355 for testing they are 500


@dataclass(frozen=True)
class Plan:
    """How the members of a data set are trained: the digits' on a CPU, the others' in a minute or two each on a GPU."""

    arch: str = "mlp"
    options: Mapping[str, Any] = field(default_factory=dict)
    eps: str = "0.1"
    trained: str = "0.1"  # what `ibp` is trained for: more than eps gives tighter bounds (Gowal et al. 2018)
    ibp: Mapping[str, Any] = field(default_factory=dict)  # changes to the recipes
    at: Mapping[str, Any] = field(default_factory=dict)
    at_options: Mapping[str, Any] | None = None  # None: the same network


SMALL = {"width": 8, "stride": 2, "hidden": 64}
FEW = {"lr": 0.05, "attack_steps": 3, "attack_step": 0.5}  # a short attack: an epoch costs half of one with 7 steps
PLANS = {
    "digits": Plan(ibp={"validation": HELD_OUT}, at={"validation": HELD_OUT}),
    "mnist": Plan("cnn", SMALL, trained="0.12", ibp={"epochs": 20, "crown": 0.0}, at={"epochs": 6, **FEW}),
    "fashion_mnist": Plan("cnn", SMALL, ibp={"epochs": 20, "crown": 0.0}, at={"epochs": 6, **FEW}),
    "cifar10": Plan(
        "cnn",
        {"width": 16, "stride": 2, "hidden": 100},
        eps="2/255",
        trained="2/255",
        ibp={"epochs": 30, "crown": 0.0},
        at={"epochs": 20, "batch": 512, "lr": 0.05},
        at_options={},
    ),
}
Source = tuple[EnsembleRecipe, int]  # a member: of which ensemble, and which one there


@dataclass(frozen=True)
class Case:
    """The first `count` members of a family, the radius, and whether the exact method is used."""

    family: str
    members: tuple[Source, ...]  # of the family
    count: int
    eps: str
    exact: bool = False

    @property
    def images(self) -> int:
        return 500 if self.exact else 1000

    @property
    def data(self) -> str:
        return self.members[0][0].data

    @property
    def recipes(self) -> list[EnsembleRecipe]:
        return list({recipe.name: recipe for recipe, _ in self.members}.values())


def _cases() -> dict[str, Case]:
    """DATA-FAMILY-M: the first M of three members trained `ibp`, trained `at`, or of both kinds."""
    cases = {}
    for data, plan in PLANS.items():
        at_options = plan.options if plan.at_options is None else plan.at_options
        ibp, at = (
            EnsembleRecipe(method, data, plan.arch, "linf", goal, 3, None, options, {"fast": changes})
            for method, goal, options, changes in (
                ("ibp", plan.trained, plan.options, plan.ibp),
                ("at", plan.eps, at_options, plan.at),
            )
        )
        families: dict[str, Sequence[Source]] = {m.method: [(m, i) for i in range(3)] for m in (ibp, at)}
        families["mixed"] = [(ibp, 0), (at, 0), (ibp, 1)]
        for (family, members), count in itertools.product(families.items(), (1, 2, 3)):
            exact = data == "digits"
            cases[f"{data}-{family}-{count}"] = Case(f"{data}-{family}", tuple(members), count, plan.eps, exact)
        cases.pop(f"{data}-mixed-1")
    joint = EnsembleRecipe("jointibp", "digits", "mlp", "linf", "0.1", 2, changes={"fast": PLANS["digits"].ibp})
    pair = Case("digits-jointibp", ((joint, 0), (joint, 1)), 2, "0.1", exact=True)
    return cases | {"digits-jointibp-2": pair}


CASES = _cases()


@measured_item(
    "certificates",
    "Floors that no attack passes, the exact optimum of small networks, and what tight leaves",
    cost="digits: two hours of one CPU core; the others: some 25 minutes of a GPU",
    parts=tuple(CASES),
    page="certificates",
)
def certificates(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    for name in parts:
        yield from _rows(name, CASES[name], setup)


def _rows(name: str, case: Case, setup: Setup) -> Iterator[RowResult]:
    """The row of a case; with the exact method again after every chunk of images, so that a stop loses little."""
    made = {recipe.name: setup.ensemble(recipe) for recipe in case.recipes}
    family = RandomizedEnsemble([made[recipe.name].ensemble.members[i] for recipe, i in case.members])
    rec = RandomizedEnsemble(family.members[: case.count])
    images = _images(case, setup, made[case.recipes[0].name])
    attack, shown = _attack(setup), setup.report is not None
    ball = Ball("linf", radius(case.eps))
    runs = setup.out / "runs" / f"certificates-{name}-{attack.preset}-{len(images)}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        tight = evaluate(rec, attack, images, ball, out=runs, progress=shown)
        bounds = certify(family, images, ball, out=runs.with_name(f"{case.family}-{len(images)}"), progress=shown)
    if not case.exact:
        yield _row(name, case, setup, tight, bounds, [], list(made.values()))
        return
    solved: list[Certification] = []
    for part in _solved(rec.cpu(), images, ball, runs.with_name(f"{runs.name}-exact")):
        solved.append(part)
        setup.say(f"{name}: {min(CHUNK * len(solved), len(images))} of {len(images)} images solved")
        yield _row(name, case, setup, tight, bounds, solved, list(made.values()))


def _attack(setup: Setup) -> Tight:
    attack = setup.scale.attack(Tight())
    assert isinstance(attack, Tight)
    return attack


def _images(case: Case, setup: Setup, made: LoadedEnsemble) -> ImageSet:
    """The first test images; of the digits, where these are too few, also the training images that were held out."""
    test = setup.images(case.data)
    if setup.scale.name != "full":
        return test.limit(2)
    if len(test) < case.images and setup.limit is None:
        more = held_out(setup.images(case.data, "train"), made.made_by)
        assert more.known
        pixels = np.concatenate([test.images[:], more.images.images[:]])
        labels = np.concatenate([test.labels, more.images.labels])
        test = replace(test, images=pixels, labels=labels, fingerprint=fingerprint(pixels, labels, test.levels))
    return test.limit(case.images)


def _solved(rec: RandomizedEnsemble, images: ImageSet, ball: Ball, place: Path) -> Iterator[Certification]:
    """Chunk by chunk, by the exact method, on all CPU cores of this process; chunks solved before are read."""
    starts = range(0, len(images), CHUNK)
    chunks = [(rec, images.subset(slice(k, k + CHUNK)), ball, place / f"{k:04d}") for k in starts]
    if len(chunks) == 1:
        yield _solve(chunks[0])
        return
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
        yield from pool.map(_solve, chunks)


def _solve(chunk: tuple[RandomizedEnsemble, ImageSet, Ball, Path]) -> Certification:
    rec, images, ball, place = chunk
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        exact = Certificate("exact", time_limit=300.0)
        return certify(rec, images, ball, exact, out=place, progress=False, device="cpu")


def _row(
    name: str,
    case: Case,
    setup: Setup,
    tight: Evaluation,
    bounds: Certification,
    solved: list[Certification],
    made: list[LoadedEnsemble],
) -> RowResult:
    """The sandwich, on the images that are solved where the exact method is used."""
    n = sum(len(part.evaluation) for part in solved) or len(tight)
    alone, certified, alpha = tight.alone, _first(bounds.certified, case.count), torch.from_numpy(tight.alpha)
    assert alone is not None
    scores = {
        "clean": tight.clean_scores,
        "certified, members alone": (alpha[:, None] * certified.alone).sum(0).numpy(),
        "certified, jointly": certified.floor(alpha).per_sample.numpy(),
    }
    notes = [f"bounds of {len(case.members)} members in {bounds.evaluation.seconds:.0f} s"]
    attack, command = _attack(setup), f"python -m paper certificates --only {name}"
    if attack.preset != Tight().preset:
        notes.append(f"tight with the preset {attack.preset}")
        command += f" --tight {attack.preset}"
    if setup.limit is not None:
        command += f" --limit {setup.limit}"
    if solved:
        exact = [part.floor() for part in solved]
        low, high = (np.concatenate([getattr(f, k).numpy() for f in exact]) for k in ("per_sample", "upper"))
        scores |= {"exact, from": low, "exact, to": high}
        proved = np.concatenate([part.certified.alone.numpy() for part in solved], axis=1)
        notes += _exact_notes(tight.robust_scores[:n], low, high, proved)
    else:
        notes.append(f"the best member alone keeps at least {100 * certified.alone.double().mean(1).max():.2f}")
    best = int(alone[:, :n].mean(1).argmax())
    scores |= {"tight": tight.robust_scores, "best member alone, at most": alone[best]}
    figures = [Figure(key, round(100 * float(values[:n].mean()), 4)) for key, values in scores.items()]
    seconds = tight.seconds + bounds.evaluation.seconds + sum(part.evaluation.seconds for part in solved)
    return RowResult(
        name,
        tuple(figures),
        images=n,
        data=case.data,
        split="test, and held out of train" if n > len(setup.images(case.data)) else "test",
        norm="linf",
        eps=case.eps,
        alpha=tuple(tight.alpha.tolist()),
        ensemble=", ".join(f"member {i} of {recipe.name}" for recipe, i in case.members[: case.count]),
        recipe="; ".join(f"{m.recipe} of {m.made_by.get('training_images')} images" for m in made),
        attacks={"tight": repr(attack)},
        seconds=round(seconds, 1),
        command=command,
        commit=results.commit(),
        hardware=hardware_of(setup.device),
        date=results.now(),
        note="; ".join(notes),
    )


def _first(certified: Certified, count: int) -> Certified:
    """What is proved of the first `count` members."""
    inside = [max(s) < count for s in certified.sets]
    return Certified(certified.excluded[torch.tensor(inside)], certified.fooled[:count])


def _exact_notes(tight: np.ndarray, low: np.ndarray, high: np.ndarray, proved: np.ndarray) -> list[str]:
    """What the two sides of the optimum say; `proved` (M, n) are the members that no point fools."""
    above = [100 * (tight - end) for end in (high, low)]
    return [
        f"optimum known on {(low == high).sum()} of {len(low)} images",
        f"tight is {above[0].mean():.3f} to {above[1].mean():.3f} points above it on average, on "
        f"{(above[0] > 0).sum()} images in all",
        f"the best member alone keeps at least {100 * proved.mean(1).max():.2f}",
        f"what can be fooled alone but not together is worth {100 * (low - proved.mean(0)).mean():.2f} points",
    ]


def certificates_table(measured: list[ItemResult]) -> str:
    """One table a data set: the sandwich of every ensemble, how far open it is, and what randomising provably adds."""
    rows = {row.row: row for result in measured for row in result.rows}
    texts = []
    for data in dict.fromkeys(case.data for case in CASES.values()):
        found = [rows[name] for name, case in CASES.items() if name in rows and case.data == data]
        if found:
            texts += [f"**{data}**, linf {found[0].eps}:", _grid(found).markdown()]
            texts.append(_said(found, lambda row: row.note))
            texts.append(_said(found, _provenance))
    return "\n\n".join(texts) or "Not measured yet: `python -m paper certificates`, then `--render`."


def _grid(rows: list[RowResult]) -> Grid:
    columns = list(dict.fromkeys(figure.column for row in rows for figure in row.figures))
    cells = []
    for row in rows:
        shown = {f.column: f.measured for f in row.figures}
        proved = shown.get("exact, from", shown["certified, jointly"])
        ends = [shown["tight"] - proved, proved - shown["best member alone, at most"]]
        values = [*(shown.get(column) for column in columns), ends[0], ends[1] if len(row.alpha or ()) > 1 else None]
        cells.append([row.row, str(row.images), *("" if v is None else f"{v:.2f}" for v in values)])
    return Grid("", ["ensemble", "images", *columns, "gap", "provable gain, at least"], cells)


def _provenance(row: RowResult) -> str:
    return f"trained {row.recipe}; {row.hardware}, {row.date[:10]}, {short(row.commit or '')}"


def _said(rows: list[RowResult], text: Callable[[RowResult], str]) -> str:
    """A line for every text, with the rows that it is true of."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(text(row), []).append(row.row)
    return "\n".join(f"- {', '.join(found)}: {said}." for said, found in names.items())
