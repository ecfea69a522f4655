"""ARC() beside ARC(planes=9), which is the paper's search over all planes of ten classes.

Claim: leaving out planes that are too far to be the nearest saves a fifth of the passes or more and moves the robust
accuracy by less than 0.1 points. Passes per image, as `evaluate` counts them; "other images" are those on which the
expected accuracy differs. Neither depends on the machine, up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paper.bench.common import measured_row
from paper.recipe import EnsembleRecipe, measured_item, radius
from paper.results import Figure, RowResult
from paper.settings import EPS, bat
from paper.setup import Setup
from recarc import ARC, Ball, evaluate

PAIRS = {f"bat-{norm}": bat("cifar10", norm) for norm in ("linf", "l2")} | {
    f"iat-{norm}": EnsembleRecipe("iat", "cifar10", "resnet20", norm, EPS["cifar10", norm]) for norm in ("linf", "l2")
}


@measured_item(
    "bench-planes", "ARC without the planes that are too far", parts=tuple(PAIRS), page="performance", note=__doc__
)
def planes(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    toy = setup.scale.name == "toy"
    for part in parts[:1] if toy else parts:
        yield from _rows(setup, part)


def _rows(setup: Setup, part: str) -> Iterator[RowResult]:
    pair, (x, y) = PAIRS[part], setup.images("cifar10").tensors()
    loaded, ball = setup.ensemble(pair), Ball(str(pair.norm), radius(str(pair.eps)))
    scores = None
    for name, count in (("ARC(planes=9)", 9), ("ARC()", None)):
        attack = ARC(steps=setup.scale.steps or ARC.steps, planes=count)
        found = evaluate(loaded.ensemble, attack, (x, y), ball, progress=False)
        figures = [
            Figure("robust", 100 * found.robust.value, (100 * found.robust.low, 100 * found.robust.high)),
            Figure("forward", found.forward_passes / len(x), unit="passes"),
            Figure("backward", found.backward_passes / len(x), unit="passes"),
        ]
        if scores is not None:
            figures.append(Figure("other images", int((found.robust_scores != scores).sum()), unit="images"))
        scores = found.robust_scores
        setup.say(f"{part}: {name} {', '.join(f'{f.column} {f.measured:.4g}' for f in figures)}")
        known = {"data": "cifar10", "split": "test", "norm": str(pair.norm), "eps": str(pair.eps), "images": len(x)}
        yield measured_row(setup, "bench-planes", part, f"{part}: {name}", figures, ensemble=loaded.source, **known)
