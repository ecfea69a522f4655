"""Pictures that are more than curves: adversarial images (Figure 11) and the auxiliary classifier (Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from recarc.atomic import replacing
from recarc.attacks import Attack
from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.experiments.results import Figure, RowResult, now
from recarc.geometry import Ball
from recarc.provenance import commit
from recarc.report.plane import THREE, TWO, Plane, solved, write_plane


def draw_gallery(
    ensemble: RandomizedEnsemble, images: ImageSet, ball: Ball, attacks: Mapping[str, Attack], path: Path, title: str
) -> Path:
    """One row an image: clean, then each attack's image and its perturbation, with every member's answer."""
    import numpy as np

    x, y = images.batch(np.arange(len(images)))
    device = ensemble.device_of_members() or x.device
    x, y = x.to(device), y.to(device)
    columns: list[tuple[str, Tensor]] = [("clean", x)]
    columns += [(name, attack(ensemble, x, y, ball)) for name, attack in attacks.items()]
    plt = pyplot()
    figure, axes = plt.subplots(len(x), 2 * len(columns) - 1, squeeze=False, figsize=(4 * len(columns), 2.3 * len(x)))
    for k, (name, shown) in enumerate(columns):
        answers = ensemble.predictions(shown)
        for i in range(len(x)):
            place = axes[i][max(0, 2 * k - 1)]
            _show(place, shown[i], f"{name}: " + ", ".join(images.classes[int(a)] for a in answers[:, i]))
            if k:
                change = 0.5 + (shown[i] - x[i]) / (2 * float(ball.radius(x)[i]))
                _show(axes[i][2 * k], change.clamp(0, 1), "perturbation, scaled")
    figure.suptitle(title, fontsize=9)
    return save(figure, path)


def _show(place: Any, image: Tensor, title: str) -> None:
    pixels = image.detach().cpu().permute(1, 2, 0)
    place.imshow(pixels.squeeze(-1), cmap="gray" if pixels.shape[-1] == 1 else None, vmin=0, vmax=1)
    place.set_title(title, fontsize=6)
    place.set_axis_off()


def auxiliary_classifiers(keep: Path, item: str) -> list[RowResult]:
    """Figure 2, computed: on two members APGD fools nobody and ARC one of them; a third shows where ARC falls short."""
    write_plane(keep / f"{item}.png")
    return [_plane_row(name, plane, item) for name, plane in (("two members", TWO), ("three members", THREE))]


def _plane_row(name: str, plane: Plane, item: str) -> RowResult:
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
        command=f"recarc reproduce {item}",
        commit=commit(),
        hardware="any",
        date=now(),
    )


def pyplot() -> Any:
    """matplotlib without a window."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    with replacing(path) as part:  # whole at any moment: several processes may measure rows of one item
        figure.savefig(part, dpi=120)
    pyplot().close(figure)
    return path
