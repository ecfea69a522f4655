"""Certified floors, the exact optimum where it can be had, and what tight leaves: certified <= truth <= figure."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paper import results
from paper.recipe import EnsembleRecipe, measured_item, radius
from paper.results import Figure, RowResult, hardware_of
from paper.setup import Setup
from recarc import Ball, Evaluation, RandomizedEnsemble, Tight, evaluate
from recarc.data.imageset import ImageSet
from recarc.errors import RecarcWarning
from recarc.evaluation.certification import Certification, certify
from recarc.evaluation.run_folder import CERTIFICATE, SUMMARY
from recarc.exact.certificate import Certificate
from recarc.provenance import commit

CHUNK = 20  # images solved exactly before the row is written again


@dataclass(frozen=True)
class Case:
    """An ensemble (of two recipes, the first member of each), the images it is certified on, and how."""

    recipes: tuple[EnsembleRecipe, ...]
    images: int
    exact: bool = False

    @property
    def eps(self) -> str:
        return self.recipes[0].eps or ""


def _recipe(method: str, data: str, eps: str, members: int, arch: str = "cnn") -> EnsembleRecipe:
    return EnsembleRecipe(method, data, arch, "linf", eps, members)


def _cases() -> dict[str, Case]:
    cases = {f"digits-{m}": Case((_recipe(m, "digits", "0.1", 3, "mlp"),), 355, exact=True) for m in ("at", "ibp")}
    cases["digits-jointibp"] = Case((_recipe("jointibp", "digits", "0.1", 2, "mlp"),), 355, exact=True)
    for data, eps in (("mnist", "0.1"), ("fashion_mnist", "0.1"), ("cifar10", "2/255")):
        ibp, at = (_recipe(method, data, eps, 2) for method in ("ibp", "at"))
        cases |= {f"{data}-ibp": Case((ibp,), 1000), f"{data}-at": Case((at,), 1000)}
        cases |= {f"{data}-mixed": Case((ibp, at), 1000)}
    return cases


CASES = _cases()


@measured_item(
    "certificates",
    "Floors that no attack passes, the exact optimum of small networks, and what tight leaves",
    cost="digits: 1 s of CPU an image (at), on two cores an hour; the others: a GPU, not measured yet",
    parts=tuple(CASES),
    page="certificates",
)
def certificates(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    for name in parts:
        yield from _rows(name, CASES[name], setup)


def _rows(name: str, case: Case, setup: Setup) -> Iterator[RowResult]:
    """The row of a case; with the exact method again after every chunk of images, so that a stop loses little."""
    rec = _ensemble(case, setup)
    count = case.images if setup.scale.name == "full" else 2
    images = setup.images(case.recipes[0].data).limit(count)
    ball, runs = Ball("linf", radius(case.eps)), setup.out / "runs" / f"certificates-{name}-{len(images)}"
    attack, device = setup.scale.attack(Tight()), setup.device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        tight = evaluate(rec, attack, images, ball, out=runs, progress=setup.report is not None)
        bounds = certify(rec, images, ball, out=runs, progress=setup.report is not None)
        if not case.exact:
            yield _row(name, case, device, tight, bounds, [])
        solved: list[Certification] = []
        for start in range(0, len(images) if case.exact else 0, CHUNK):
            part = _part(images, start)
            place = setup.out / "runs" / f"certificates-{name}-exact" / f"{start:04d}-{len(part[0])}"
            exact, solved_before = Certificate("exact", time_limit=600.0), (place / CERTIFICATE / SUMMARY).exists()
            solved.append(certify(rec.cpu(), part, ball, exact, out=place, progress=False, device="cpu"))
            setup.say(f"{name}: {start + len(part[0])} of {len(images)} images solved")
            if not solved_before or start + CHUNK >= len(images):
                yield _row(name, case, device, tight, bounds, solved)


def _ensemble(case: Case, setup: Setup) -> RandomizedEnsemble:
    made = [setup.ensemble(recipe).ensemble for recipe in case.recipes]
    return made[0] if len(made) == 1 else RandomizedEnsemble([rec.members[0] for rec in made])


def _part(images: ImageSet, start: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = images.tensors()
    return x[start : start + CHUNK], y[start : start + CHUNK]


def _row(
    name: str,
    case: Case,
    device: torch.device,
    tight: Evaluation,
    bounds: Certification,
    solved: list[Certification],
) -> RowResult:
    """The sandwich, on the images that are solved where the exact method is used."""
    n = sum(len(part.evaluation) for part in solved) or len(tight)
    floors = {
        "clean": tight.clean_scores,
        "certified, members alone": bounds.evaluation.floor_scores,
        "certified, jointly": bounds.floor().per_sample.numpy(),
    }
    note = ""
    if solved:
        exact = [part.floor() for part in solved]
        low, high = (np.concatenate([getattr(f, k).numpy() for f in exact]) for k in ("per_sample", "upper"))
        floors |= {"exact, from": low, "exact, to": high}
        alone = np.concatenate([part.evaluation.floor_scores for part in solved])
        gaps, most = [100 * (tight.robust_scores[:n] - end) for end in (high, low)], 100 * (low - alone).mean()
        note = (
            f"optimum known on {(low == high).sum()} of {n} images; tight is {gaps[0].mean():.3f} to "
            f"{gaps[1].mean():.3f} points above it on average, on {(gaps[0] > 0).sum()} images at all; what can be "
            f"fooled alone but not together is worth {most:.2f} points"
        )
    floors |= {"tight": tight.robust_scores, "floor of tight": tight.floor_scores}
    figures = [Figure(key, round(100 * float(scores[:n].mean()), 4)) for key, scores in floors.items()]  # type: ignore[index]
    seconds = tight.seconds + bounds.evaluation.seconds + sum(part.evaluation.seconds for part in solved)
    return RowResult(
        name,
        tuple(figures),
        images=n,
        data=case.recipes[0].data,
        split="test",
        norm="linf",
        eps=case.eps,
        alpha=tuple(tight.alpha.tolist()),
        ensemble=" and ".join(recipe.name for recipe in case.recipes),
        attacks={"tight": "Tight(preset='standard')"},
        seconds=round(seconds, 1),
        command=f"python -m paper certificates --only {name}",
        commit=commit(),
        hardware=hardware_of(device),
        date=results.now(),
        note=note,
    )
