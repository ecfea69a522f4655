"""How we attacked our own verdict: members that only seem robust, what each attack says of them, what the verdict."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from paper import results
from paper.gallery import HONEST, MASKED, digits
from paper.recipe import measured_item
from paper.results import Figure, RowResult, hardware_of
from paper.setup import Setup
from recarc import AutoPGD, Ball, Square, Tight, Verdict, evaluate
from recarc.ensemble import as_ensemble
from recarc.errors import RecarcWarning

SEEDS = (0, 1, 2)
BALL = Ball("linf", 0.1)
IMAGES = 300  # so many that the number of samples is no reason for a doubt
KINDS = {**HONEST, **MASKED}
ALONE = {"AutoPGD": AutoPGD(steps=100), "Square": Square(queries=1000)}


@measured_item(
    "gallery",
    "Members that only seem robust: what each attack says, and what the verdict says",
    cost="15 min on one CPU core",
    parts=tuple(KINDS),
    page="gallery",
)
def gallery(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    full = setup.scale.name == "full"
    for kind in parts:
        for seed in SEEDS if full else SEEDS[:1]:
            torch.manual_seed(seed)
            yield _row(kind, seed, KINDS[kind](seed), setup.limit or (IMAGES if full else 4))


def _row(kind: str, seed: int, member: nn.Module, count: int) -> RowResult:
    """One member alone, so that figure and floor meet by construction and the verdict has only its doubts."""
    x, y = (part[:count] for part in digits("test"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        run = evaluate(member, Tight(challenge=1.0), (x, y), BALL, progress=False)
    verdict, ensemble = Verdict.of(run), as_ensemble(member)
    left = {name: stage.value for name, stage in verdict.stages.items()}
    columns = {"clean": left["clean"], "AdaptivePGD": left["adaptive_pgd"], "ARC": left["arc"]}
    for name, attack in ALONE.items():
        columns[name] = float(ensemble.expected_accuracy(attack(ensemble, x, y, BALL), y).mean())
    columns |= {"tight": verdict.robust.value, "floor": verdict.floor}
    signals = [signal.name for signal in verdict.signals]
    return RowResult(
        f"{kind}, seed {seed}",
        tuple(Figure(column, round(100 * value, 4)) for column, value in columns.items()),
        images=count,
        data="digits",
        split="test",
        norm=str(BALL.norm),
        eps=f"{BALL.eps:g}",
        ensemble="a small network of paper/gallery.py, alone",
        attacks={"tight": "Tight(preset='standard')"},
        seconds=round(run.seconds, 1),
        command="python -m paper gallery",
        commit=results.commit(),
        hardware=hardware_of(torch.device("cpu")),
        date=results.now(),
        note=", ".join(["conclusive" if verdict.conclusive else "not conclusive", *(signals or ["no signal"])]),
    )
