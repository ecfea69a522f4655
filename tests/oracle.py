"""Algorithm 2 of the paper, transcribed line by line for one sample: slow, plain, and independent of recarc.

It has its own norms, steepest directions and projections, exact fractions for alpha, and Python loops over
everything. Two readings are not in the paper and follow recarc's documentation: x_tilde and the projection are
clipped to the box [0, 1] (for p = 1 the projection is onto ball and box together), and for p other than 1, 2 and
infinity it scales radially.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import torch

Vector = np.ndarray
Classifier = Callable[[torch.Tensor], torch.Tensor]


def lp_norm(v: Vector, p: float) -> float:
    if math.isinf(p):
        return max(abs(c) for c in v.tolist())
    return math.fsum(abs(c) ** p for c in v.tolist()) ** (1 / p)


def dual_exponent(p: float) -> float:
    if p == 1:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1)


def unit_direction(w: Vector, p: float) -> Vector:
    """|w|^(q-1) sgn(w) / ||w||_q^(q-1), and for q = infinity the one-hot vector of the largest |w_k|."""
    q = dual_exponent(p)
    if math.isinf(q):
        d = np.zeros_like(w)
        k = max(range(len(w)), key=lambda k: abs(w[k]))
        d[k] = math.copysign(1.0, w[k]) if w[k] != 0 else 0.0
        return d
    if not w.any():
        return np.zeros_like(w)
    return np.abs(w) ** (q - 1) * np.sign(w) / lp_norm(w, q) ** (q - 1)


def onto_l1_and_box(d: Vector, x: Vector, eps: float) -> Vector:
    """The nearest point: shrink every |d_k| by one theta, then cut it at the box; theta by bisection."""
    room = [1 - x[k] if d[k] > 0 else x[k] for k in range(len(d))]

    def sizes(theta: float) -> list[float]:
        return [min(max(abs(d[k]) - theta, 0.0), room[k]) for k in range(len(d))]

    low, high = 0.0, max(abs(c) for c in d.tolist())
    if math.fsum(sizes(0.0)) > eps:
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if math.fsum(sizes(middle)) > eps else (low, middle)
    else:
        high = 0.0
    return np.array([math.copysign(size, d[k]) for k, size in enumerate(sizes(high))])


def onto_ball(d: Vector, p: float, eps: float) -> Vector:
    if lp_norm(d, p) <= eps:
        return d
    if math.isinf(p):
        return np.array([min(max(c, -eps), eps) for c in d.tolist()])
    return d * (eps / lp_norm(d, p))


def clipped(u: Vector) -> Vector:
    return np.clip(u, 0.0, 1.0)


class Algorithm2:
    """One sample (x, y) against the ensemble; `perturbation()` returns delta and the expected accuracy there."""

    def __init__(
        self,
        classifiers: Sequence[Classifier],
        alpha: Sequence[Fraction],
        x: torch.Tensor,
        y: int,
        p: float,
        eps: float,
        eta: float,
        steps: int,
        planes: int | None,
    ) -> None:
        self.f, self.alpha, self.shape, self.y = list(classifiers), list(alpha), x.shape, y
        self.x = x.detach().numpy().reshape(-1).astype(np.float64)
        self.p, self.q, self.eps, self.eta = p, dual_exponent(p), eps, eta
        self.steps, self.planes, self.rho = steps, planes, 0.05 * eps

    def tensor(self, u: Vector) -> torch.Tensor:
        return torch.from_numpy(u.copy()).reshape(1, *self.shape)

    def expected_accuracy(self, u: Vector) -> Fraction:
        """L of Eq. (1)."""
        total = Fraction(0)
        for f_i, alpha_i in zip(self.f, self.alpha):
            with torch.no_grad():
                logits = f_i(self.tensor(u))[0].tolist()
            label = max(range(len(logits)), key=lambda j: logits[j])
            total += alpha_i if label == self.y else 0
        return total

    def project(self, d: Vector) -> Vector:
        if self.p == 1:
            return onto_l1_and_box(d, self.x, self.eps)
        d = onto_ball(d, self.p, self.eps)
        return clipped(self.x + d) - self.x

    def linearise(self, f_i: Classifier, u: Vector) -> tuple[list[Vector], list[float]]:
        """Lines 9-11 with Appendix D: w_j and h_j for the G largest logits other than m."""
        inputs = self.tensor(u).requires_grad_()
        logits = f_i(inputs)[0]
        values = logits.tolist()
        m = max(range(len(values)), key=lambda j: values[j])
        others = sorted((j for j in range(len(values)) if j != m), key=lambda j: -values[j])
        w, h = [], []
        for j in others[: self.planes]:
            (gradient,) = torch.autograd.grad(logits[m] - logits[j], inputs, retain_graph=True)
            w.append(gradient.numpy().reshape(-1))
            h.append(values[m] - values[j])
        return w, h

    def perturbation(self) -> tuple[Vector, Fraction]:
        x, p, q, eta = self.x, self.p, self.q, self.eta
        delta, v = np.zeros_like(x), self.expected_accuracy(x)  # line 3
        order = sorted(range(len(self.f)), key=lambda i: -self.alpha[i])  # line 4: stable
        for _ in range(self.steps):  # line 5
            delta_l, v_l = np.zeros_like(x), v  # line 6
            for position, i in enumerate(order):  # line 7
                x_tilde = clipped(x + delta + delta_l)  # line 8
                w, h = self.linearise(self.f[i], x_tilde)  # lines 9-11
                distances = [abs(h_j) / lp_norm(w_j, q) if w_j.any() else math.inf for w_j, h_j in zip(w, h)]
                n = min(range(len(distances)), key=lambda j: distances[j])  # line 12
                g = -unit_direction(w[n], p)  # line 13
                zeta = distances[n]  # line 14
                if zeta >= eta or position == 0:  # line 15
                    beta = eta  # line 16
                else:
                    along = float(w[n] @ delta_l) / lp_norm(w[n], q)
                    beta = eta / (eta - zeta) * abs(along + zeta) + self.rho  # line 18
                pushed = delta_l + beta * g
                length = lp_norm(pushed, p)
                delta_l_hat = eta * pushed / length if length > 0 else pushed  # line 20
                delta_hat = self.project(delta + delta_l_hat)  # line 21
                v_l_hat = self.expected_accuracy(clipped(x + delta_hat))
                if v_l_hat <= v_l:  # line 22
                    delta_l, v_l = delta_l_hat, v_l_hat  # line 23
            delta_hat = self.project(delta + delta_l)  # line 26
            v_hat = self.expected_accuracy(clipped(x + delta_hat))
            if v_hat <= v:  # line 27
                delta, v = delta_hat, v_hat  # line 28
        return delta, v
