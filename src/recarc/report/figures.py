"""Figures for papers: PDF, SVG and PNG, drawn with matplotlib in the colours of the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recarc.errors import InputError
from recarc.report.content import Matrix, Report, file_names
from recarc.report.curves import Curve
from recarc.report.gallery import Gallery, colours

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


def new_figure(**options: Any) -> tuple[Figure, Any]:
    """A figure without a window, whatever the machine's default is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shape = (options.pop("rows", 1), options.pop("columns", 1))
    figure = Figure(layout="constrained", **options)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(*shape, squeeze=False)


def write_figures(report: Report, folder: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """attacks, sweep_*, cross_robustness and pictures, each in every format."""
    import matplotlib

    jobs: dict[str, Callable[[], Figure]] = {"attacks": lambda: attacks_figure(report)}
    for name, curve in zip(file_names("sweep", [curve.axis for curve in report.curves]), report.curves):
        jobs[name] = lambda curve=curve: curve_figure(curve)  # type: ignore[misc]
    for name, matrix in zip(file_names("cross_robustness", [""] * len(report.matrices)), report.matrices):
        jobs[name] = lambda matrix=matrix: matrix_figure(matrix)  # type: ignore[misc]
    if report.gallery is not None:
        pictures = report.gallery
        jobs["pictures"] = lambda: gallery_figure(pictures)
    target, made = Path(folder), []
    try:
        target.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(STYLE):
            for name, draw in jobs.items():
                figure = draw()
                for kind in formats:
                    figure.savefig(target / f"{name}.{kind}", dpi=200, metadata=metadata(kind))
                    made.append(target / f"{name}.{kind}")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from None
    return made


def metadata(kind: str) -> dict[str, None]:
    """No date in the file: the same runs give the same bytes."""
    return {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind, {})


def attacks_figure(report: Report) -> Figure:
    """The comparison as bars with intervals, best first."""
    rows = report.rows[::-1]
    figure, [[axes]] = new_figure(figsize=(4.6, 0.36 * len(rows) + 0.7))
    for k, row in enumerate(rows):
        value, low, high = (100 * v for v in (row.estimate.value, row.estimate.low, row.estimate.high))
        axes.barh(k, value, color=COLOURS[row.role], height=0.62, alpha=0.85)
        axes.plot([low, high], [k, k], color="#1b2330", linewidth=1.4)
        axes.text(high + 1.5, k, f"{value:.1f}", va="center", fontsize=8)
    axes.set(yticks=range(len(rows)), yticklabels=[row.name for row in rows], xlim=(0, 108), xlabel="accuracy (%)")
    axes.grid(axis="y", visible=False)
    return figure


def curve_figure(curve: Curve) -> Figure:
    figure, [[axes]] = new_figure(figsize=(4.2, 3.0))
    for k, series in enumerate(curve.series):
        xs = [point.x for point in series.points]
        found = [point.estimate for point in series.points]
        colour = COLOURS.get(series.role, "#596474")
        mark = "" if series.constant else MARKS[k % len(MARKS)]
        values = [100 * e.value for e in found]
        dash = DASHES.get(series.role, "-")
        axes.plot(xs, values, color=colour, marker=mark, markersize=4, linestyle=dash, label=series.name)
        axes.fill_between(
            xs, [100 * e.low for e in found], [100 * e.high for e in found], color=colour, alpha=0.1, lw=0
        )
    if curve.logarithmic:
        axes.set_xscale("log")
    axes.set_xticks(curve.xs, [curve.text(x) for x in curve.xs])
    axes.minorticks_off()
    axes.set(ylim=(0, 100), xlabel=curve.label, ylabel="accuracy (%)")
    axes.legend(fontsize=7)
    return figure


def matrix_figure(matrix: Matrix) -> Figure:
    size = 1.0 + 0.75 * len(matrix.values)
    figure, [[axes]] = new_figure(figsize=(size + 0.5, size))
    shown = axes.imshow(matrix.values, vmin=0, vmax=1, cmap="GnBu")
    for i, row in enumerate(matrix.values):
        for j, value in enumerate(row):
            axes.text(
                j, i, f"{100 * value:.1f}", ha="center", va="center", color="white" if value > 0.65 else "#1b2330"
            )
    axes.set(xticks=range(len(matrix.columns)), yticks=range(len(matrix.values)))
    axes.set_xticklabels([f"made for {j + 1}" for j in matrix.columns])
    axes.set_yticklabels([f"member {i + 1}" for i in range(len(matrix.values))])
    axes.grid(visible=False)
    figure.colorbar(shown, ax=axes, shrink=0.8, label="accuracy")
    return figure


def gallery_figure(pictures: Gallery) -> Figure:
    """A row a sample: clean, then perturbation and result of every attack, with the members' answers."""
    rows, columns = len(pictures.examples), 1 + 2 * len(pictures.examples[0].shots)
    figure, axes = new_figure(rows=rows, columns=columns, figsize=(1.15 * columns, 1.35 * rows))
    for line, example in zip(axes, pictures.examples):
        panels = [(example.clean, "clean", " ".join(a.text for a in example.answers))]
        for shot in example.shots:
            panels.append((colours(shot.perturbation), shot.attack, f"size {shot.size:.3g}"))
            panels.append((shot.adversarial, f"{100 * shot.score:.0f} % right", " ".join(a.text for a in shot.answers)))
        for panel, (picture, title, below) in zip(line, panels):
            image = picture.transpose(1, 2, 0)
            panel.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
            panel.set_title(title, fontsize=7, pad=2)
            panel.set_xlabel(below, fontsize=7, labelpad=2)
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
    return figure
