"""Theorem 4.2 drawn in the plane: two classifiers on which adaptive PGD cannot move.

    python examples/counterexample.py [picture.png]

f_1(x) = <w, x> + b and f_2(x) = -<w, x> + b answer 1 at x = 0. Each can be fooled inside the ball, but their
gradients cancel, so the expected loss is flat where adaptive PGD starts. ARC attacks the members one after the other.
"""

from __future__ import annotations

import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble

W, BIAS = torch.tensor([2.0, 1.0]), 1.0
BLUE, ORANGE, DARK = "#2b6cb0", "#c05621", "#1a202c"


def binary(w: Tensor, b: float) -> nn.Linear:
    """<w, x> + b as two logits (0, f): label 1 where f > 0."""
    member = nn.Linear(2, 2)
    with torch.no_grad():
        member.weight.copy_(torch.stack([torch.zeros(2), w]))
        member.bias.copy_(torch.tensor([0.0, b]))
    return member


def draw(axes: Axes, ball: Ball, title: str, x_adv: Tensor, accuracy: float) -> None:
    """Draw the ball, both decision lines with their wrong sides shaded, and where the attack ends."""
    reach, eps = 1.6 * ball.eps, ball.eps
    grid = np.linspace(-reach, reach, 400)
    gx, gy = np.meshgrid(grid, grid)
    for sign, colour, name in ((1, BLUE, "f₁"), (-1, ORANGE, "f₂")):
        f = sign * (W[0].item() * gx + W[1].item() * gy) + BIAS
        axes.contourf(gx, gy, f, levels=[-1e9, 0], colors=[colour], alpha=0.13)
        axes.contour(gx, gy, f, levels=[0], colors=[colour], linewidths=1.8)
        foot = -sign * (BIAS / float(W @ W) + 0.36) * W.numpy()
        axes.text(*foot, f"{name} fooled", color=colour, ha="center", va="center", fontsize=11)
    axes.add_patch(plt.Circle((0, 0), eps, fill=False, color=DARK, linewidth=1.4, linestyle=(0, (5, 3))))
    axes.text(0.72 * eps, -0.82 * eps, "eps", color=DARK, fontsize=10, ha="left", va="top")
    if torch.equal(x_adv, torch.zeros(2)):
        for sign, colour in ((-1, BLUE), (1, ORANGE)):  # the direction in which each member's own loss rises
            tip = sign * 0.42 * eps * (W / W.norm()).numpy()
            axes.annotate("", xy=tip, xytext=(0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2})
        axes.set_xlabel("the two members' gradients cancel: x is a fixed point", fontsize=10.5, color=DARK, labelpad=8)
    else:
        axes.annotate("", xy=x_adv, xytext=(0, 0), arrowprops={"arrowstyle": "-|>", "color": DARK, "lw": 2.2})
        axes.set_xlabel("one member after the other: x crosses one line", fontsize=10.5, color=DARK, labelpad=8)
    axes.text(0.1 * eps, -0.06 * eps, "x", color=DARK, ha="left", va="top", fontsize=11)
    axes.plot(0, 0, "o", color=DARK, markersize=7, zorder=5)
    axes.plot(*x_adv, "*", color=DARK, markersize=14, zorder=6)
    axes.set_title(f"{title}\nexpected accuracy {accuracy:.1f}", fontsize=12, color=DARK, pad=10)
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), xticks=[], yticks=[], aspect="equal")
    for spine in axes.spines.values():
        spine.set_color("#cbd5e0")


def main(picture: str = "counterexample.png") -> None:
    ensemble = RandomizedEnsemble([binary(W, BIAS), binary(-W, BIAS)])
    x, y = torch.zeros(1, 2), torch.ones(1, dtype=torch.long)
    ball = Ball("l2", 2 * BIAS / float(W.norm()), box=None)  # eps = 2 b ||w||_p / ||w||_2^2
    figure, panels = plt.subplots(1, 2, figsize=(9, 5.3), constrained_layout=True)
    for axes, attack, title in (
        (panels[0], AdaptivePGD(steps=100), "AdaptivePGD, 100 steps"),
        (panels[1], ARC(step_size=ball.eps), "ARC"),
    ):
        x_adv = attack(ensemble, x, y, ball)
        accuracy = ensemble.expected_accuracy(x_adv, y).item()
        print(f"{type(attack).__name__:<12} delta {x_adv[0].tolist()}  expected accuracy {accuracy}")
        draw(axes, ball, title, x_adv[0], accuracy)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    figure.savefig(picture, dpi=150)
    print(f"saved as {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
