"""The picture of joint certificates: networks that are wrong in different places of the ball, or in a common one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.ensemble import RandomizedEnsemble
from recarc.exact.bounds import margins
from recarc.exact.certificate import Certificate
from recarc.exact.network import network_of
from recarc.geometry import Ball
from recarc.report.figures import STYLE, new_figure
from recarc.report.plane import INK, MEMBERS, MUTED, OPTIMAL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REACH = 1.35  # of the picture around x
RADII = (0.7, 1.1)  # each member can be fooled within both, the two at one point only within the second


def networks() -> RandomizedEnsemble:
    """f = (m, 0) with m = 0.9 - relu(0.9 u + 0.5 v) - 0.5 relu(v - 0.6) + 0.3 relu(-u), and its mirror image."""
    members = []
    for side in (1.0, -1.0):
        first, last = nn.Linear(2, 3), nn.Linear(3, 2)
        with torch.no_grad():
            first.weight.copy_(torch.tensor([[0.9, 0.5 * side], [0.0, side], [-1.0, 0.0]]))
            first.bias.copy_(torch.tensor([0.0, -0.6, 0.0]))
            last.weight.copy_(torch.tensor([[-1.0, -0.5, 0.3], [0.0, 0.0, 0.0]]))
            last.bias.copy_(torch.tensor([0.9, 0.0]))
        members.append(nn.Sequential(first, nn.ReLU(), last).double().eval())
    return RandomizedEnsemble(members)


@dataclass(frozen=True)
class Solved:
    """What is proved of the two networks on one ball, and the exact optimum."""

    eps: float
    lines: np.ndarray  # (2, 3): each member's margin is above a . x' + b on the ball
    certified: float
    exact: float
    x_adv: np.ndarray

    @property
    def title(self) -> str:
        together = "never both at one point" if self.exact else "both at the star"
        shares = f"certified {100 * self.certified:.0f} %, exact {100 * self.exact:.0f} %"
        return f"eps = {self.eps:g}: each can be fooled, {together}\nexpected accuracy: {shares}"


def solved(eps: float) -> Solved:
    rec, ball = networks(), Ball("linf", eps, box=None)
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    found = [margins(network_of(member, x), x, y, ball) for member in rec.members]
    lines = np.stack([np.r_[m.a[0, 1].numpy(), m.b[0, 1].numpy()] for m in found])
    certified, exact = (Certificate(method)(rec, x, y, ball) for method in ("bounds", "exact"))
    assert exact.x_adv is not None
    low, truth = (float(c.floor(rec.alpha).per_sample) for c in (certified, exact))
    return Solved(eps, lines, low, truth, exact.x_adv[0].numpy())


def draw_regions() -> Figure:
    """One panel for each radius."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, [panels] = new_figure((4.7 * len(RADII), 5.1), columns=len(RADII))
        for axes, eps in zip(panels, RADII):
            _draw(axes, solved(eps))
        figure.legend(*_handles(), loc="outside lower center", ncols=3, fontsize=9, labelcolor=INK)
    return figure


def _draw(axes: Any, solution: Solved) -> None:
    grid = np.linspace(-REACH, REACH, 201)
    u, v = np.meshgrid(grid, grid)
    points = torch.from_numpy(np.stack([u, v], axis=-1).reshape(-1, 2))
    with torch.no_grad():
        logits: Tensor = networks().logits(points)
    for k, (a, b, c) in enumerate(solution.lines):
        margin = (logits[k, :, 0] - logits[k, :, 1]).reshape(u.shape).numpy()
        axes.contourf(u, v, margin, levels=[-1e9, 0], colors=[MEMBERS[k]], alpha=0.18)
        axes.contour(u, v, margin, levels=[0], colors=[MEMBERS[k]], linewidths=1.8)
        axes.contour(u, v, a * u + b * v + c, levels=[0], colors=[MEMBERS[k]], linewidths=1.2, linestyles=":")
        axes.text(0.45, 1.2 - 2.4 * k, f"fools member {k + 1}", color=MEMBERS[k], ha="center", va="center")
    mean = solution.lines.mean(0)
    axes.contour(u, v, mean[0] * u + mean[1] * v + mean[2], levels=[0], colors=[OPTIMAL], linewidths=1.6)
    square = solution.eps * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]])
    axes.plot(*square.T, color=INK, linewidth=1.3, linestyle=(0, (5, 3)))
    if solution.exact == 0:
        axes.plot(*solution.x_adv, marker="*", color=INK, markersize=13, linestyle="")
    axes.plot(0, 0, "o", color=INK, markersize=6)
    axes.text(0.06, -0.04, "x", color=INK, va="top")
    axes.set_title(solution.title, fontsize=10, color=INK)
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=MUTED, linewidth=0.6)


def _handles() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    entries: list[tuple[str, Any]] = [
        ("ball", {"color": INK, "linestyle": (0, (5, 3))}),
        ("a member may be wrong only beyond its bound", {"color": MUTED, "linestyle": ":"}),
        ("both together only beyond this", {"color": OPTIMAL}),
    ]
    return [Line2D([], [], **options) for _, options in entries], [name for name, _ in entries]
