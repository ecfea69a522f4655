"""The paper's picture in the plane (Figure 2): why adaptive PGD stalls where ARC does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.attacks import AdaptivePGD, LinearARC
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.exact import optimum
from recarc.geometry import Ball
from recarc.report.figures import STYLE, figure_bytes, new_figure
from recarc.report.writing import write_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 12  # of AdaptivePGD's path
INK, MUTED = "#1b2330", "#535e70"
MEMBERS = ("#596474", "#6b3cc0", "#7a5c00")
ADAPTIVE, GREEDY, OPTIMAL = "#b04a06", "#1d62b8", "#0d6e66"
# On a page, its own colours are used, so that they change with its theme.
ON_A_PAGE = {INK: "ink", MUTED: "muted", ADAPTIVE: "adaptive", GREEDY: "arc", OPTIMAL: "floor"}
ON_A_PAGE |= dict(zip(MEMBERS, ("clean", "best", "pgd")))
REACH = 1.75  # of the picture, in units of eps


@dataclass(frozen=True)
class Plane:
    """Linear members f_i(x) = <w_i, x> + b_i in the plane, attacked at the origin, where all of them answer 1."""

    title: str
    weights: Sequence[tuple[float, float]]
    biases: Sequence[float]
    alpha: Sequence[float]
    eps: float = 1.0

    def ensemble(self) -> RandomizedEnsemble:
        members = []
        for w, b in zip(self.weights, self.biases):
            member = nn.Linear(2, 2)
            with torch.no_grad():
                member.weight.copy_(torch.tensor([[0.0, 0.0], w]))
                member.bias.copy_(torch.tensor([0.0, b]))
            members.append(member)
        return RandomizedEnsemble(members, list(self.alpha))


# Each line alone is within reach. Left: the two together are not. Right: members 1 and 2 together are, but ARC, which
# begins with member 0, does not find that point.
TWO = Plane("Two members", ((0.35, 1.0), (0.35, -1.0)), (0.76, 0.76), (0.5, 0.5))
THREE = Plane("Three members", ((-0.99, 0.13), (0.84, -0.54), (0.61, 0.79)), (0.46, 0.46, 0.79), (0.4, 0.3, 0.3))


@dataclass(frozen=True)
class Solved:
    """Where every attack on a plane ends: points (2,), and the expected accuracy at each."""

    path: np.ndarray  # (STEPS + 1, 2) of AdaptivePGD
    greedy: np.ndarray
    optimal: np.ndarray
    auxiliary: np.ndarray  # (2,) weights of the classifier that adaptive PGD attacks
    accuracy: dict[str, float]


def solved(plane: Plane) -> Solved:
    ensemble, ball = plane.ensemble(), Ball("l2", plane.eps, box=None)
    x, y = torch.zeros(1, 2), torch.ones(1, dtype=torch.long)
    path = [x[0], *(AdaptivePGD(steps=k)(ensemble, x, y, ball)[0] for k in range(1, STEPS + 1))]
    greedy = LinearARC()(ensemble, x, y, ball)
    exact = optimum(ensemble, x, y, ball)

    def accuracy(point: Tensor) -> float:
        return float(ensemble.expected_accuracy(point.reshape(1, 2), y))

    # The gradient of the expected loss is sum_i alpha_i lambda_i w_i, lambda_i = sigmoid(-f_i(x)): at x itself.
    lambdas = [a / (1 + np.exp(b)) for a, b in zip(plane.alpha, plane.biases)]
    auxiliary = np.sum([k * np.array(w) for k, w in zip(lambdas, plane.weights)], axis=0)
    accuracies = {"AdaptivePGD": accuracy(path[-1]), "ARC": accuracy(greedy), "optimum": float(exact.accuracy[0])}
    return Solved(torch.stack(path).numpy(), greedy[0].numpy(), exact.x_adv[0].numpy(), auxiliary, accuracies)


def draw_plane(planes: Sequence[Plane] = (TWO, THREE)) -> Figure:
    """One panel per plane."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, [panels] = new_figure((4.7 * len(planes), 5.1), columns=len(planes))
        for axes, plane in zip(panels, planes):
            _draw(axes, plane, solved(plane))
        columns = 3 if len(planes) > 1 else 2
        figure.legend(*_handles(), loc="outside lower center", ncols=columns, fontsize=9, labelcolor=INK)
    return figure


def _room(plane: Plane, k: int, reach: float) -> tuple[float, float]:
    """The centre of a label where member k is fooled, as far as possible from the lines, the ball and the frame."""
    half = 0.24 * reach  # half the label's width
    centres = np.linspace(-reach, reach, 71)
    room = np.full((71, 71), np.inf)
    for shift in (-half, 0, half):
        x, y = np.meshgrid(centres + shift, centres)
        room = np.minimum(room, reach - np.maximum(np.abs(x), np.abs(y)))
        room = np.minimum(room, np.abs(np.hypot(x, y) - plane.eps))
        for j, (w, b) in enumerate(zip(plane.weights, plane.biases)):
            side = (w[0] * x + w[1] * y + b) / np.hypot(*w)
            room = np.minimum(room, -side if j == k else np.abs(side))
    row, column = np.unravel_index(room.argmax(), room.shape)
    return float(centres[column]), float(centres[row])


def _draw(axes: Any, plane: Plane, solution: Solved) -> None:
    reach = REACH * plane.eps
    grid = np.linspace(-reach, reach, 3)  # enough: contours of linear functions are exact on any grid
    gx, gy = np.meshgrid(grid, grid)
    for k, (w, b) in enumerate(zip(plane.weights, plane.biases)):
        f = w[0] * gx + w[1] * gy + b
        axes.contourf(gx, gy, f, levels=[-1e9, 0], colors=[MEMBERS[k]], alpha=0.13)
        axes.contour(gx, gy, f, levels=[0], colors=[MEMBERS[k]], linewidths=1.8)
        x, y = _room(plane, k, reach)
        axes.text(x, y, f"fools member {k}", color=MEMBERS[k], ha="center", va="center")
    circle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(plane.eps * np.cos(circle), plane.eps * np.sin(circle), color=INK, linewidth=1.3, linestyle=(0, (5, 3)))
    # The line of the auxiliary classifier where adaptive PGD ends: that is where its normal pushes it.
    length = np.hypot(*solution.auxiliary)
    if length > 1e-9:
        normal = -solution.auxiliary / length
        along = np.array([-normal[1], normal[0]])
        ends = np.stack([plane.eps * normal - 0.75 * along, plane.eps * normal + 0.75 * along])
        axes.plot(ends[:, 0], ends[:, 1], color=MUTED, linewidth=1.4, linestyle=(0, (1, 2)))
    axes.plot(*solution.path.T, color=ADAPTIVE, linewidth=2, marker=".", markersize=6)
    axes.plot(*solution.path[-1], marker="X", color=ADAPTIVE, markersize=11, linestyle="")
    for point, colour, mark, size in ((solution.greedy, GREEDY, "D", 8), (solution.optimal, OPTIMAL, "*", 15)):
        axes.annotate("", xy=point, xytext=(0, 0), arrowprops={"arrowstyle": "-", "color": colour, "lw": 1.3})
        axes.plot(*point, marker=mark, color=colour, markersize=size, linestyle="")
    axes.plot(0, 0, "o", color=INK, markersize=6)
    axes.text(0.06, -0.04, "x", color=INK, va="top")
    figures = ", ".join(f"{name} {100 * value:.0f} %" for name, value in solution.accuracy.items())
    axes.set_title(f"{plane.title}, expected accuracy after:\n{figures}", fontsize=10, color=INK)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color="#8a94a3", linewidth=0.6)


def _handles() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    entries: list[tuple[str, Any]] = [
        ("AdaptivePGD, where it stalls", {"color": ADAPTIVE, "marker": "X", "markersize": 9}),
        ("ARC", {"color": GREEDY, "marker": "D", "markersize": 7}),
        ("optimum", {"color": OPTIMAL, "marker": "*", "markersize": 12}),
        ("auxiliary classifier", {"color": MUTED, "linestyle": (0, (1, 2))}),
        ("ball", {"color": INK, "linestyle": (0, (5, 3))}),
    ]
    return [Line2D([], [], **options) for _, options in entries], [name for name, _ in entries]


def plane_svg(plane: Plane) -> str:
    """The picture of one plane as an SVG element for a page: transparent, in the colours of the page's theme."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        matplotlib.rcParams["svg.hashsalt"] = plane.title  # ids of its own: several drawings may be on one page
        text = figure_bytes(draw_plane([plane]), "svg", transparent=True).decode()
    text = text[text.index("<svg") :]
    for colour, name in ON_A_PAGE.items():
        text = text.replace(colour, f"var(--{name})")
    accuracies = ", ".join(f"{name} {100 * value:.0f} percent" for name, value in solved(plane).accuracy.items())
    about = f"{plane.title} in the plane, the ball around x and the attacks' paths; expected accuracy: {accuracies}"
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(about)}" ', 1)


def write_plane(path: str | Path, planes: Sequence[Plane] = (TWO, THREE)) -> Path:
    """Write the picture as a PNG, SVG or PDF, whatever the name ends in."""
    return write_picture(path, lambda: draw_plane(planes))


def write_picture(path: str | Path, draw: Callable[[], Figure]) -> Path:
    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"{target.name!r} does not end in .png, .svg or .pdf; choose one of these")
    return write_files({target: figure_bytes(draw(), kind, dpi=160)})[0]
