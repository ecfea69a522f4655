"""The plots of the page as inline SVG: they print and need no script; the page adds hovering and toggles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup

from recarc.evaluation.saturation import Saturation
from recarc.report.comparison import Comparison
from recarc.report.curves import Curve, Series
from recarc.report.rescoring import Rescoring

T = TypeVar("T")
WIDTH, HEIGHT, LOW, ROW = 560, 380, 190, 42
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 16, 58
MARKS = ("circle", "square", "diamond", "triangle", "cross", "ring", "bar")
DASHES = {"floor": "2 4", "clean": "7 4", "best": "10 3 2 3"}
WIDEST = 12  # of a letter of a tick, on a narrow screen
STEPS = 40  # segments of the re-scored worst case


@dataclass(frozen=True)
class Frame:
    """The axes of a plot: from data to pixels, with accuracies as fractions."""

    low: float
    high: float
    logarithmic: bool = False

    def x(self, value: float) -> float:
        a, b, v = (math.log(t) if self.logarithmic else t for t in (self.low, self.high, value))
        return LEFT + (WIDTH - LEFT - RIGHT) * ((v - a) / (b - a) if b > a else 0.5)

    def y(self, fraction: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - fraction)


def curve_svg(curve: Curve, number: int) -> Markup:
    """The plot of a sweep; every series is a group of its own, so that it can be switched off."""
    xs = curve.xs
    frame = Frame(xs[0], xs[-1], curve.logarithmic)
    parts = [_axes(frame, curve.label, [(x, curve.text(x)) for x in _thinned(xs)])]
    parts += [_series(series, frame, k, curve.text) for k, series in enumerate(curve.series)]
    parts.append(Markup('<line class="guide" y1="{}" y2="{}" hidden=""/>').format(TOP, HEIGHT - BOTTOM))
    names = ", ".join(series.name for series in curve.series)
    about = f"Accuracy in percent against {curve.label}, for {names}. The values are in the table below the plot."
    return _picture(Markup("").join(parts), f"curve-{number}", about)


def rescoring_svg(bounds: Rescoring) -> Markup:
    """Bounds for two members against the first one's probability, with a cursor for the slider."""
    frame = Frame(0.0, 1.0)
    grid = [k / STEPS for k in range(STEPS + 1)]
    worst = [(frame.x(a), frame.y(bounds.worst((a, 1 - a)))) for a in grid]
    parts = [_axes(frame, "sampling probability of member 0", [(a, f"{a:g}") for a in (0, 0.25, 0.5, 0.75, 1)])]
    floor = next((line for line in bounds.lines if line.role == "floor"), None)
    if floor is not None:
        below = [(frame.x(a), frame.y(floor.at((a, 1 - a)))) for a in reversed(grid)]
        parts.append(Markup('<polygon class="bracket" points="{}"/>').format(_points([*worst, *below])))
    for line in bounds.lines:
        ends = [(frame.x(a), frame.y(line.at((a, 1 - a)))) for a in (0.0, 1.0)]
        parts.append(_group(line.name, line.role, _line(ends, line.role)))
    parts.append(_group("Worst of all saved patterns", "worst", _line(worst, "worst")))
    x = frame.x(bounds.alpha[0])
    parts.append(
        Markup(
            '<line id="alpha-cursor" class="cursor" x1="{x}" x2="{x}" y1="{}" y2="{}" data-left="{}" data-span="{}"/>'
        ).format(TOP, HEIGHT - BOTTOM, frame.x(0), frame.x(1) - frame.x(0), x=round(x, 2))
    )
    about = "Upper bounds on the robust accuracy, and its floor, against the sampling probability of member 0."
    return _picture(Markup("").join(parts), "rescoring", about)


def saturation_svg(found: Saturation) -> Markup:
    """By how many points the rounds lowered the accuracy, and a wedge down to what another one brings at most."""
    last = found.rounds + 1
    deepest = max(found.curve[-1] + found.limit, 1e-4)

    def at(rounds: float, decrease: float) -> tuple[float, float]:
        x, y = rounds / last, decrease / deepest
        return LEFT + (WIDTH - LEFT - RIGHT) * x, TOP + (LOW - TOP - BOTTOM) * y

    parts = []
    for decrease in (0.0, found.curve[-1], deepest) if found.curve[-1] > deepest / 5 else (0.0, deepest):
        (left, y), text = at(0, decrease), f"{-100 * decrease:.2f}" if decrease else "0"
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/>').format(left, WIDTH - RIGHT, y=y))
        parts.append(Markup('<text x="{}" y="{}" class="tick end">{}</text>').format(left - 8, y + 5, text))
    for k, text in [*((k, str(k)) for k in _thinned(range(last))), (last, "one more")]:
        place = "end" if k == last else "middle"
        parts.append(Markup('<text x="{}" y="{}" class="tick {}">{}</text>').format(at(k, 0)[0], LOW - 36, place, text))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(Markup('<text x="{}" y="{}" class="label middle">rounds</text>').format(middle, LOW - 10))
    ends = [at(k, decrease) for k, decrease in enumerate(found.curve)]
    wedge = [ends[-1], at(last, found.curve[-1]), at(last, found.curve[-1] + found.limit)]
    band = Markup('<polygon class="band" points="{}"/>').format(_points(wedge))
    parts.append(_group("rounds", "tight", band + _line(ends, "tight")))
    about = f"Points by which rounds of the search lowered the accuracy: {-100 * found.curve[-1]:.2f}. {found}."
    return _picture(Markup("").join(parts), "saturation", about, LOW)


def forest_svg(comparison: Comparison, differences: bool) -> Markup:
    """One line per ensemble with its 95 % interval: robust accuracies above their floors, or differences around 0."""
    shown = [e for e in comparison.entries if not differences or e.difference is not None]
    figures: list[Any] = [e.difference if differences else e.robust for e in shown]
    ends = [end for f in figures for end in (f.low, f.high)]
    ends += [] if differences else [e.floor.value for e in shown if e.floor is not None]
    low, high = nice_range(min(ends), max(ends), differences)
    height = TOP + ROW * len(shown) + BOTTOM

    def at(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low), 1)

    parts = []
    for tick in np.linspace(low, high, 5):
        sign = "+" if differences and tick > 1e-9 else ""
        line = Markup('<line class="grid" x1="{x}" x2="{x}" y1="{}" y2="{}"/>').format(TOP, height - BOTTOM, x=at(tick))
        x, place = (WIDTH, "end") if tick == high else (at(tick), "middle")  # nothing is cut off on a narrow screen
        text = Markup('<text x="{}" y="{}" class="tick {}">{}{:g}</text>')
        parts += [line, text.format(x, height - BOTTOM + 22, place, sign, round(100 * tick, 2))]
    if differences:
        zero = Markup('<line class="cursor" x1="{x}" x2="{x}" y1="{}" y2="{}"/>')
        parts.append(zero.format(TOP, height - BOTTOM, x=at(0)))
    for k, (entry, figure) in enumerate(zip(shown, figures)):
        y = TOP + ROW * k + 32
        name = Markup('<text x="{}" y="{}" class="tick">{}</text>').format(LEFT, y - 12, entry.name)
        marks = _mark(0, at(figure.value), y)
        if entry.floor is not None and not differences:
            marks += _mark(MARKS.index("bar"), at(entry.floor.value), y)
        inside = _line([(at(figure.low), y), (at(figure.high), y)], "") + Markup('<g class="mark">{}</g>').format(marks)
        parts.append(_group(entry.name, entry.role, inside) + name)
    label = f"robust accuracy minus that of {comparison.reference}, points" if differences else "robust accuracy, %"
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(Markup('<text x="{}" y="{}" class="label middle">{}</text>').format(middle, height - 10, label))
    listed = "; ".join(f"{e.name} {f}" for e, f in zip(shown, figures))
    return _picture(Markup("").join(parts), f"forest-{int(differences)}", f"{label}: {listed}.", height)


def nice_range(low: float, high: float, around_zero: bool) -> tuple[float, float]:
    """A range of fractions with round ends that holds both, and 0 if it is of differences."""
    low, high = (min(low, 0.0), max(high, 0.0)) if around_zero else (low, high)
    step = next(s for s in (0.002, 0.004, 0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 1.0) if (high - low) / s <= 6)
    low, high = step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)
    return (low, high) if high > low else (low, low + step)


def _picture(inside: Markup, name: str, about: str, height: int = HEIGHT) -> Markup:
    return Markup(
        '<svg class="plot" id="{name}" viewBox="0 0 {w} {h}" role="img" aria-labelledby="{name}-about">'
        '<title id="{name}-about">{about}</title>{inside}</svg>'
    ).format(name=name, w=WIDTH, h=height, about=about, inside=inside)


def _axes(frame: Frame, label: str, ticks: Sequence[tuple[float, str]]) -> Markup:
    parts = []
    for percent in (0, 20, 40, 60, 80, 100):
        y = frame.y(percent / 100)
        parts.append(
            Markup(
                '<line class="grid" x1="{}" x2="{}" y1="{y}" y2="{y}"/><text x="{}" y="{}" class="tick end">{}</text>'
            ).format(LEFT, WIDTH - RIGHT, LEFT - 8, y + 5, percent, y=round(y, 1))
        )
    for value, text in ticks:
        x, place = round(frame.x(value), 1), "middle"
        if x + WIDEST * len(text) / 2 > WIDTH:  # it would be cut off on a narrow screen, where letters are larger
            x, place = WIDTH, "end"
        parts.append(
            Markup('<text x="{}" y="{}" class="tick {}">{}</text>').format(x, HEIGHT - BOTTOM + 22, place, text)
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(Markup('<text x="{}" y="{}" class="label middle">{}</text>').format(middle, HEIGHT - 10, label))
    return Markup("").join(parts)


def _series(series: Series, frame: Frame, number: int, text: Callable[[float], str]) -> Markup:
    ends = [(frame.x(p.x), frame.y(p.estimate.value)) for p in series.points]
    upper = [(frame.x(p.x), frame.y(p.estimate.high)) for p in series.points]
    lower = [(frame.x(p.x), frame.y(p.estimate.low)) for p in reversed(series.points)]
    band = Markup('<polygon class="band" points="{}"/>').format(_points([*upper, *lower]))
    data = 'data-x="{}" data-at="{}" data-text="{}" data-value="{}" data-low="{}" data-high="{}"'
    marks = Markup("").join(
        Markup(f'<g class="mark" {data}>{{}}</g>').format(
            p.x, round(x, 2), text(p.x), p.estimate.value, p.estimate.low, p.estimate.high, _mark(number, x, y)
        )
        for p, (x, y) in zip(series.points, ends)
    )
    return _group(
        series.name, series.role, band + _line(ends, series.role) + (Markup("") if series.constant else marks)
    )


def _group(name: str, role: str, inside: Markup) -> Markup:
    return Markup('<g class="series role-{}" data-series="{}">{}</g>').format(role, name, inside)


def _line(ends: Sequence[tuple[float, float]], role: str) -> Markup:
    return Markup('<polyline class="line" points="{}"{}/>').format(_points(ends), _dash(role))


def _dash(role: str) -> Markup:
    return Markup(' stroke-dasharray="{}"').format(DASHES[role]) if role in DASHES else Markup("")


def _points(ends: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in ends)


def _mark(number: int, x: float, y: float) -> Markup:
    """Every series has a shape of its own: colour is not the only difference."""
    kind, r = MARKS[number % len(MARKS)], 4.6
    at = {"x": round(x, 1), "y": round(y, 1)}
    if kind in ("circle", "ring"):
        return Markup('<circle class="{}" cx="{x}" cy="{y}" r="{}"/>').format(kind, r, **at)
    paths = {
        "square": f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8z",
        "diamond": f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z",
        "triangle": f"M{x:.1f} {y - 6:.1f}l6 10h-12z",
        "cross": f"M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10",
        "bar": f"M{x:.1f} {y - 6:.1f}v12",
    }
    return Markup('<path class="{}" d="{}"/>').format(kind, paths[kind])


def _thinned(xs: Sequence[T], most: int = 8) -> list[T]:
    """At most this many ticks, including the first and the last."""
    if len(xs) <= most:
        return list(xs)
    return [xs[round(k * (len(xs) - 1) / (most - 1))] for k in range(most)]


def legend_mark(number: int, role: str) -> Markup:
    """The line and the shape of a series, for its button in the legend."""
    return Markup(
        '<svg class="swatch series role-{}" viewBox="0 0 30 14" aria-hidden="true">'
        '<polyline class="line" points="1,7 29,7"{}/>{}</svg>'
    ).format(role, _dash(role), _mark(number, 15, 7))
