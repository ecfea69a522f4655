"""Figures for papers, as PDF, SVG and PNG: drawn with matplotlib in the colours of the page.

Figure objects throughout: neither pyplot nor a backend of the user's is touched.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recarc.report.comparison import Comparison
from recarc.report.content import Matrix, Report
from recarc.report.curves import Curve
from recarc.report.gallery import Example, colours
from recarc.report.writing import file_names, write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
COLOURS = {
    "clean": "#596474",
    "pgd": "#7a5c00",
    "adaptive": "#b04a06",
    "arc": "#1d62b8",
    "tight": "#b3163b",
    "floor": "#0d6e66",
    "best": "#6b3cc0",
    "other": "#596474",
}
MARKS = "osD^xPv"
DASHES = {"floor": ":", "clean": "--", "best": "-."}
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e7ed",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "recarc",
    "pdf.fonttype": 42,
}


def new_figure(size: tuple[float, float], rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """A figure of this size in inches, and its (rows, columns) axes; a notebook shows it without pyplot."""
    from matplotlib.figure import Figure

    figure: Any = Figure(layout="constrained", figsize=size)
    figure._repr_png_ = lambda: figure_bytes(figure, "png", dpi=110)
    return figure, figure.subplots(rows, columns, squeeze=False)


def figure_bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    """The figure as a file of this kind, without a date: the same runs give the same bytes."""
    sink = io.BytesIO()
    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})
    figure.savefig(sink, format=kind, metadata=metadata, **options)
    return sink.getvalue()


def write_figures(report: Report, folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """attacks, sweep_*, cross_robustness and pictures, each in every format."""
    return write_files(figure_files(report, folder, formats))


def drawn_bytes(draw: Callable[[], Figure], kind: str) -> bytes:
    """One figure as a file, in the style of all."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return figure_bytes(draw(), kind, dpi=200)


def figure_files(report: Report, folder: str | Path, formats: Sequence[str] = FORMATS) -> dict[Path, bytes]:
    import matplotlib

    with matplotlib.rc_context(STYLE):
        drawn = figures(report)
        return {
            Path(folder) / f"{name}.{kind}": figure_bytes(figure, kind, dpi=200)
            for name, figure in drawn.items()
            for kind in formats
        }


def figures(report: Report) -> dict[str, Figure]:
    """Every figure of a report, by its file name."""
    drawn = {"attacks": attacks_figure(report)}
    sweeps = file_names("sweep", [curve.axis for curve in report.curves])
    drawn |= {name: curve_figure(curve) for name, curve in zip(sweeps, report.curves)}
    matrices = file_names("cross_robustness", [""] * len(report.matrices))
    drawn |= {name: matrix_figure(matrix) for name, matrix in zip(matrices, report.matrices)}
    drawn |= {"ensembles": forest_figure(report.comparison)} if report.comparison else {}
    return drawn | ({"pictures": pictures_figure(report.pictures)} if report.pictures else {})


def attacks_figure(report: Report) -> Figure:
    """The comparison as bars with their intervals."""
    rows = report.rows[::-1]
    figure, [[axes]] = new_figure((4.6, 0.36 * len(rows) + 0.7))
    for k, row in enumerate(rows):
        value, low, high = (100 * v for v in (row.estimate.value, row.estimate.low, row.estimate.high))
        axes.barh(k, value, color=COLOURS[row.role], height=0.62, alpha=0.85)
        axes.plot([low, high], [k, k], color="#1b2330", linewidth=1.4)
        axes.text(high + 1.5, k, f"{value:.1f}", va="center", fontsize=8)
    axes.set(yticks=range(len(rows)), yticklabels=[row.name for row in rows], xlim=(0, 108), xlabel="accuracy (%)")
    axes.grid(axis="y", visible=False)
    return figure


def forest_figure(comparison: Comparison) -> Figure:
    """Robust accuracies with their floors, and the paired differences to the reference, one line per ensemble."""
    entries = comparison.entries[::-1]
    figure, [panels] = new_figure((6.4, 0.42 * len(entries) + 1.0), 1, 2)
    for k, entry in enumerate(entries):
        for axes, found in zip(panels, (entry.robust, entry.difference)):
            if found is not None:
                axes.plot([100 * found.low, 100 * found.high], [k, k], color=COLOURS[entry.role], linewidth=1.6)
                axes.plot(100 * found.value, k, "o", color=COLOURS[entry.role], markersize=5)
        if entry.floor is not None:
            panels[0].plot(100 * entry.floor.value, k, "|", color=COLOURS[entry.role], markersize=11)
    panels[1].axvline(0, color="#1b2330", linewidth=0.8)
    panels[0].set(xlabel="robust accuracy (%), | floor", yticks=range(len(entries)))
    panels[0].set_yticklabels([entry.name for entry in entries])
    panels[1].set(xlabel=f"minus {comparison.reference} (points)", yticks=range(len(entries)), yticklabels=[])
    for axes in panels:
        axes.set_ylim(-0.6, len(entries) - 0.4)
        axes.grid(axis="y", visible=False)
    return figure


def curve_figure(curve: Curve) -> Figure:
    figure, [[axes]] = new_figure((4.2, 3.0))
    for k, series in enumerate(curve.series):
        xs, estimates = zip(*((point.x, point.estimate) for point in series.points))
        values, low, high = ([100 * getattr(e, key) for e in estimates] for key in ("value", "low", "high"))
        colour, dash = COLOURS[series.role], DASHES.get(series.role, "-")
        mark = "" if series.constant else MARKS[k % len(MARKS)]
        axes.plot(xs, values, color=colour, marker=mark, markersize=4, linestyle=dash, label=series.name)
        axes.fill_between(xs, low, high, color=colour, alpha=0.1, lw=0)
    if curve.logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(curve.xs, [curve.text(x) for x in curve.xs])
    axes.minorticks_off()
    axes.set(ylim=(0, 100), xlabel=curve.label, ylabel="accuracy (%)")
    axes.legend(fontsize=7)
    return figure


def matrix_figure(matrix: Matrix) -> Figure:
    size = 1.0 + 0.75 * len(matrix.values)
    figure, [[axes]] = new_figure((size + 0.5, size))
    shown = axes.imshow(matrix.values, vmin=0, vmax=1, cmap="GnBu")
    for i, row in enumerate(matrix.values):
        for j, value in enumerate(row):
            colour = "white" if value > 0.65 else "#1b2330"
            axes.text(j, i, f"{100 * value:.1f}", ha="center", va="center", color=colour)
    axes.set(xticks=range(len(matrix.columns)), yticks=range(len(matrix.values)))
    axes.set_xticklabels([f"against {j}" for j in matrix.columns])
    axes.set_yticklabels([f"member {i}" for i in range(len(matrix.values))])
    axes.grid(visible=False)
    figure.colorbar(shown, ax=axes, shrink=0.8, label="accuracy")
    return figure


def pictures_figure(examples: Sequence[Example]) -> Figure:
    """One row per sample: clean, then perturbation and result of every attack, with the members' answers."""
    rows, columns = len(examples), 1 + 2 * len(examples[0].outcomes)
    figure, axes = new_figure((1.15 * columns, 1.35 * rows), rows, columns)
    for line, example in zip(axes, examples):
        panels = [(example.clean, "clean", " ".join(a.text for a in example.answers))]
        for outcome in example.outcomes:
            answers = " ".join(a.text for a in outcome.answers)
            panels.append((colours(outcome.perturbation), outcome.attack, f"size {outcome.size:.3g}"))
            panels.append((outcome.adversarial, f"{100 * outcome.score:.0f} % right", answers))
        for panel, (picture, title, below) in zip(line, panels):
            image = picture.transpose(1, 2, 0)
            panel.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
            panel.set_title(title, fontsize=7, pad=2)
            panel.set_xlabel(below, fontsize=7, labelpad=2)
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
    return figure
