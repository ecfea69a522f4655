"""Pictures that are more than curves: adversarial images (Figure 11) and the auxiliary classifier (Figure 2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recarc.attacks import AdaptivePGD, Attack, LinearARC
from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.experiments.results import Figure, RowResult, commit, now
from recarc.geometry import Ball


def draw_gallery(
    ensemble: RandomizedEnsemble, images: ImageSet, ball: Ball, attacks: Mapping[str, Attack], path: Path
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
    return save(figure, path)


def _show(place: Any, image: Tensor, title: str) -> None:
    pixels = image.detach().cpu().permute(1, 2, 0)
    place.imshow(pixels.squeeze(-1), cmap="gray" if pixels.shape[-1] == 1 else None, vmin=0, vmax=1)
    place.set_title(title, fontsize=6)
    place.set_axis_off()


W_1, W_2, BIAS, EPS = (1.0, 0.25), (-1.0, 0.25), 0.8, 1.0  # two lines that the point x = 0 lies between, far from both


def plane_ensemble() -> tuple[RandomizedEnsemble, Tensor, Tensor, Ball]:
    """Two binary linear classifiers of the plane, equiprobable, and a point that both get right."""
    members = []
    for w in (W_1, W_2):
        layer = nn.Linear(2, 2, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([[0.0, 0.0], w]))
            layer.bias.copy_(torch.tensor([0.0, BIAS]))
        members.append(layer)
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.tensor([1])
    return RandomizedEnsemble(members), x, y, Ball("l2", EPS, box=None)


def auxiliary_classifier(keep: Path, item: str) -> RowResult:
    """Figure 2, computed: APGD moves against the sum of the weights and fools nobody; ARC fools one of the two."""
    ensemble, x, y, ball = plane_ensemble()
    found = {name: attack(ensemble, x, y, ball) for name, attack in (("APGD", AdaptivePGD()), ("ARC", LinearARC()))}
    figures = tuple(Figure(name, 100 * float(ensemble.expected_accuracy(u, y))) for name, u in found.items())
    _draw_plane({name: u[0].tolist() for name, u in found.items()}, keep / f"{item}.png")
    return RowResult(
        "plane",
        figures,
        images=1,
        data="one point of the plane",
        norm="l2",
        eps=f"{EPS:g}",
        alpha=(0.5, 0.5),
        alpha_chosen_by="equal",
        ensemble="two linear classifiers",
        command=f"recarc reproduce {item}",
        commit=commit(),
        hardware="any",
        date=now(),
    )


def _draw_plane(points: Mapping[str, list[float]], path: Path) -> None:
    plt = pyplot()
    figure, place = plt.subplots(figsize=(4.5, 4.5))
    mean = tuple((a + b) / 2 for a, b in zip(W_1, W_2))
    for w, label, style in ((W_1, "f1 = 0", "-"), (W_2, "f2 = 0", "-"), (mean, "auxiliary", "--")):
        point, along = _boundary(w)
        place.axline(point, (point[0] + along[0], point[1] + along[1]), linestyle=style, label=label, linewidth=1)
    place.add_patch(plt.Circle((0, 0), EPS, fill=False, color="0.6"))
    place.plot(0, 0, "ko", label="x")
    for name, marker in (("APGD", "<"), ("ARC", "*")):
        place.plot(*points[name], marker, markersize=10, label=name)
    place.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal")
    place.legend(fontsize=7, loc="upper right")
    save(figure, path)


def _boundary(w: tuple[float, ...]) -> tuple[tuple[float, float], tuple[float, float]]:
    """A point of w . u + BIAS = 0 and its direction."""
    scale = -BIAS / (w[0] ** 2 + w[1] ** 2)
    return (scale * w[0], scale * w[1]), (-w[1], w[0])


def pyplot() -> Any:
    """matplotlib without a window."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
    return path
