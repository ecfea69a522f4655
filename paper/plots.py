"""The one plotter: figures drawn from results files with matplotlib, and the images of Figure 11."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from paper.costs import MMACS
from paper.recipe import Item
from paper.results import ItemResult, RowResult
from paper.tables import against_gradients, is_matrix, matrix_of, positions
from recarc.atomic import replacing
from recarc.attacks import Attack
from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.geometry import Ball

STYLES = {
    "AT: PGD": ("o", "tab:blue"),
    "PGD": ("o", "tab:blue"),
    "PGD-1": ("o", "tab:cyan"),
    "APGD": ("<", "tab:green"),
    "APGD-L": ("<", "tab:olive"),
    "C&W": ("s", "tab:purple"),
    "C&W-1": ("s", "tab:pink"),
    "AC&W": (">", "tab:orange"),
    "AC&W-L": (">", "tab:brown"),
    "ARC": ("*", "tab:red"),
    "tight": ("v", "black"),
    "AutoAttack": ("s", "tab:purple"),
    "pyautoattack": ("s", "tab:pink"),
    "corrected ARC": ("*", "tab:orange"),
    "lattice climber": ("^", "tab:cyan"),
    "MORA": ("D", "tab:olive"),
    "Climb": ("o", "black"),
    "tight quick": ("v", "0.5"),
    "tight standard": ("v", "black"),
}
WIDE = 4  # panels per line
NEAR = 1.25  # ratio of multiply-adds below which the labels of two nets would overlap
MANY = 5  # curves; the legend of more would hide some of them


def draw(item: Item, result: ItemResult, folder: Path) -> Path | None:
    """The item's figure as FOLDER/ITEM.png; nothing for tables and for pictures that are drawn while measuring."""
    if item.drawing not in ("scatter", "lines", "gradients", "growth", "matrix") or not result.rows:
        return None
    panels = [result.rows]
    growth = item.drawing == "growth"  # on one scale, or a flat curve would look steep
    if item.drawing != "scatter":
        panels = [(row,) for row in result.rows if is_matrix(row) or len(positions(row)) > growth]
    if not panels:
        return None
    lines = -(-len(panels) // WIDE)
    shape = (lines, min(WIDE, len(panels)))
    figure, axes = new_figure(*shape, figsize=(3.6 * shape[1], 3.2 * lines), sharey=growth)
    for place in axes.flat[len(panels) :]:
        place.set_axis_off()
    for place, rows in zip(axes.flat, panels):
        if item.drawing == "scatter":
            _scatter(place, rows)
        elif growth:
            _growth(place, rows[0])
        elif is_matrix(rows[0]):
            _matrix(place, rows[0])
        elif item.drawing == "gradients":
            _gradients(place, rows[0])
        else:
            _lines(place, rows[0])
    return save(figure, folder / f"{result.item}.png")


def _scatter(place: Any, rows: tuple[RowResult, ...]) -> None:
    """Robust accuracy against the multiply-adds of a query, which a randomized ensemble does not raise."""
    nets = {row.row: row.row.rpartition("-")[0] for row in rows}
    for column, (marker, colour) in STYLES.items():
        points = [(MMACS[nets[row.row]], f.measured) for row in rows if (f := row.figure(column))]
        if points:
            place.plot(*zip(*sorted(points)), marker, color=colour, label=column)
    place.set(xscale="log", xlabel="million multiply-adds per query", ylabel="robust accuracy [%]")
    marks: dict[float, list[str]] = {}
    for net in sorted(set(nets.values()), key=lambda net: MMACS[net]):
        at = next((at for at in marks if MMACS[net] < NEAR * at), MMACS[net])  # labels would overlap
        marks.setdefault(at, []).append(f"{net}: {MMACS[net]:g}")
    place.set_xticks(list(marks), ["\n".join(names) for names in marks.values()], rotation=60, ha="right", fontsize=7)
    place.minorticks_off()
    place.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, columnspacing=0.8, frameon=False)


def _lines(place: Any, row: RowResult) -> None:
    columns = [c for c in dict.fromkeys(f.column for f in row.figures if f.unit == "%") if c != "floor"]
    for column in columns:
        marker, colour = STYLES.get(column, (".", None))
        points = row.curve(column)
        if points:
            label = f"{column} (out of date)" if column in row.stale else column
            place.plot(*zip(*points), marker=marker, color=colour, label=label, linewidth=1, markersize=4)
    floor = row.curve("floor")
    if floor:
        place.plot(*zip(*floor), ":", color="0.5", label="floor", linewidth=1)
    if row.axis in ("K", "G"):
        place.set_xscale("log")
    place.set(xlabel="eps [1/255]" if row.axis == "255 eps" else row.axis, ylabel="robust accuracy [%]")
    place.set_title(f"{row.row} ({row.images} images)", fontsize=8)
    if len(columns) > MANY:
        place.legend(fontsize=6, loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=4)
    else:
        place.legend(fontsize=6)


def _gradients(place: Any, row: RowResult) -> None:
    """Every attack at its budgets: accuracy against the gradients it took."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    for column in dict.fromkeys(f.column for f in row.figures if f.unit == "%"):
        points = [(cost, f.measured) for cost, f in against_gradients(row, column)]
        if points:
            marker, colour = STYLES.get(column, (".", None))
            place.plot(*zip(*points), marker=marker, color=colour, label=column, linewidth=1, markersize=4)
    floor = row.figure("floor")
    if floor is not None:
        place.axhline(floor.measured, linestyle=":", color="0.5", linewidth=1, label="floor")
    place.set(xscale="log", xlabel="gradients per image", ylabel="expected accuracy [%]")
    place.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    place.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    place.minorticks_off()
    place.set_title(f"{row.row} ({row.images} images)", fontsize=8)
    place.legend(fontsize=5, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=3)


def _matrix(place: Any, row: RowResult) -> None:
    values = matrix_of(row)
    place.imshow(values, vmin=0, vmax=100, cmap="viridis")
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            place.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=6, color="w" if value < 50 else "k")
    names = [f"f{i + 1}" for i in range(len(values))]
    place.set_xticks(range(len(values)), names, fontsize=7)
    place.set_yticks(range(len(values)), names, fontsize=7)
    place.set(xlabel="perturbed for", ylabel="accuracy of")
    place.set_title(f"{row.row} ({row.images} images)", fontsize=8)


def _growth(place: Any, row: RowResult) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    sizes, times = zip(*row.curve("seconds"))
    place.loglog(sizes, times, "o-", color="tab:blue")
    place.set_xticks(sizes, [f"{s:g}" for s in sizes], fontsize=7)
    place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    place.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    place.minorticks_off()
    place.grid(axis="y", color="0.87", linewidth=0.6)
    place.set(xlabel=row.axis, ylabel="seconds per iteration")
    slope = row.figure("exponent")
    place.set_title(
        f"{row.row} ({row.images} images)" + (f", exponent {slope.measured:.2f}" if slope else ""), fontsize=8
    )


def draw_gallery(
    ensemble: RandomizedEnsemble, images: ImageSet, ball: Ball, attacks: Mapping[str, Attack], path: Path, title: str
) -> Path:
    """One row per image: clean, then each attack's image and its perturbation, with every member's prediction."""
    x, y = images.batch(np.arange(len(images)))
    device = ensemble.device_of_members() or x.device
    x, y = x.to(device), y.to(device)
    columns: list[tuple[str, Tensor]] = [("clean", x)]
    columns += [(name, attack(ensemble, x, y, ball)) for name, attack in attacks.items()]
    figure, axes = new_figure(len(x), 2 * len(columns) - 1, figsize=(4 * len(columns), 2.3 * len(x)))
    for k, (name, shown) in enumerate(columns):
        predictions = ensemble.predictions(shown)
        for i in range(len(x)):
            place = axes[i][max(0, 2 * k - 1)]
            _show(place, shown[i], f"{name}: " + ", ".join(images.classes[int(k)] for k in predictions[:, i]))
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


def new_figure(rows: int, columns: int, figsize: tuple[float, float], **options: Any) -> tuple[Any, Any]:
    """A figure and its (rows, columns) axes, without a window and without touching matplotlib's global backend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    with replacing(path) as part:  # complete at any moment: several processes may measure rows of one item
        figure.savefig(part, dpi=120)
    return path
