"""Linear bounds that hold on a whole ball: margin_c(x') >= a_c . x' + b_c for every point x' of it.

Intervals first (Gowal et al. 2018), then every bound again by going back through the network with linear bounds of each
ReLU (CROWN, Zhang et al. 2018), then with the slopes of those bounds optimised (Xu et al. 2021). All of it in float64
on the ball that an evaluation accepts (`Ball.widened`); a margin counts as positive above `SLACK` times the largest
logit, far more than rounding in float64 and more than a small network's in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recarc.exact.network import Network, sizes
from recarc.geometry import Ball, per_sample

SLACK = 1e-5
NUMBERS = {"cpu": 2**24, "cuda": 2**25}  # float64 values of the largest tensor at once
RATE, DECAY = 0.5, 0.95  # of the slopes' ascent


@dataclass(frozen=True)
class Line:
    """Linear bounds of a ReLU on the intervals of its input, per sample: lower z <= relu(z) <= upper z + offset."""

    lower: Tensor
    upper: Tensor
    offset: Tensor
    free: Tensor  # where any slope in [0, 1] is a lower bound

    @classmethod
    def of(cls, low: Tensor, high: Tensor) -> Line:
        free = ~((low >= 0) | (high <= 0))  # NaN stays NaN
        width = torch.where(free, high - low, 1)
        upper = torch.where(free, high / width, (low >= 0).to(low.dtype))
        lower = torch.where(free, (high > -low).to(low.dtype), upper)
        return cls(lower, upper, torch.where(free, -upper * low, 0), free)

    def rows(self, sample: Tensor) -> Line:
        return Line(self.lower[sample], self.upper[sample], self.offset[sample], self.free[sample])


@dataclass(frozen=True)
class Linear:
    """Lower bounds a . x' + b on the ball, for R rows, and the lowest value of each there."""

    a: Tensor  # (R, ...)
    b: Tensor  # (R,)
    lowest: Tensor  # (R,)


@dataclass(frozen=True)
class Bounds:
    """What is known of a network on the balls around x: the input intervals of every ReLU, and their lines."""

    network: Network
    x: Tensor
    ball: Ball
    intervals: dict[int, tuple[Tensor, Tensor]]  # by step
    lines: dict[int, Line]
    logits: tuple[Tensor, Tensor] | None = None  # their interval

    def linear(self, k: int, a: Tensor, sample: Tensor, slopes: dict[int, Tensor] | None = None) -> Linear:
        """Lower bounds of <a_r, z_k> for rows a (R, ...) that belong to these samples (R,).

        `slopes`: other lower slopes of the ReLUs, a row each.
        """
        coefficients, b = {k: a}, a.new_zeros(len(a))
        for j in range(k, 0, -1):
            if j not in coefficients:
                continue
            a = coefficients.pop(j)
            if self.network.steps[j].is_relu:
                line = self.lines[j].rows(sample)
                lower = line.lower if slopes is None else torch.where(line.free, slopes[j], line.lower)
                below = a.clamp(max=0)
                b = b + (below * line.offset).flatten(1).sum(1)
                parts = [(self.network.steps[j].inputs[0], a.clamp(min=0) * lower + below * line.upper)]
            else:
                parts, more = self.network.transposed(j, a)
                b = b + more
            for source, part in parts:
                coefficients[source] = coefficients[source] + part if source in coefficients else part
        a = coefficients.get(0, torch.zeros_like(self.x[sample]))
        return self._lowest(a, b, sample)

    def _lowest(self, a: Tensor, b: Tensor, sample: Tensor) -> Linear:
        x = self.x[sample]
        with torch.no_grad():
            delta = self.ball.take(sample).lowest(a, x)
        return Linear(a, b, (a * (x + delta)).flatten(1).sum(1) + b)

    def rows_at_once(self) -> int:
        """Rows whose coefficients fit into memory."""
        return max(1, NUMBERS.get(self.x.device.type, NUMBERS["cpu"]) // max(sizes(self.network)))


def bounds(network: Network, x: Tensor, ball: Ball, crown: Tensor | None = None) -> Bounds:
    """Bounds on every ReLU's input on the balls around x (B, ...) by intervals, of the samples `crown` by CROWN."""
    known = Bounds(network, x, ball, {}, {})
    exact = network.exact_intervals() if ball.norm.p == torch.inf else set()
    centre, radius = _input_interval(x, ball)
    values = [(centre, radius)]
    for k, step in enumerate(network.steps[1:], 1):
        inputs = [values[j] for j in step.inputs]
        if step.is_relu:
            (centre, radius) = inputs[0]
            low, high = centre - radius, centre + radius
            if crown is not None and step.inputs[0] not in exact:
                low, high = _tightened(known, step.inputs[0], low, high, crown)
            known.intervals[k], known.lines[k] = (low, high), Line.of(low, high)
            low, high = low.clamp(min=0), high.clamp(min=0)
            values.append(((low + high) / 2, (high - low) / 2))
        else:
            assert step.function is not None and step.magnitude is not None
            values.append((step.function(*(c for c, _ in inputs)), step.magnitude(*(r for _, r in inputs))))
    centre, radius = values[network.output]
    return replace(known, logits=(centre - radius, centre + radius))


def _input_interval(x: Tensor, ball: Ball) -> tuple[Tensor, Tensor]:
    """Centre and radius of the smallest interval around ball and box; |delta_i| <= ||delta||_p for every p."""
    eps = per_sample(ball.radius(x), x)
    low, high = x - eps, x + eps
    if ball.box is not None:
        low, high = low.clamp(*ball.box), high.clamp(*ball.box)
    return (low + high) / 2, (high - low) / 2


def _tightened(known: Bounds, k: int, low: Tensor, high: Tensor, crown: Tensor) -> tuple[Tensor, Tensor]:
    """The interval of z_k, by CROWN where its sign is open, for the samples `crown`."""
    low, high = (side.clone(memory_format=torch.contiguous_format) for side in (low, high))
    flat_low, flat_high = low.view(len(low), -1), high.view(len(high), -1)
    sample, unit = ((flat_low < 0) & (flat_high > 0) & crown[:, None]).nonzero(as_tuple=True)
    for part in torch.arange(len(sample), device=low.device).split(known.rows_at_once()):
        s, u = sample[part], unit[part]
        a = low.new_zeros(len(s), flat_low.shape[1]).scatter_(1, u[:, None], 1.0).reshape(len(s), *low.shape[1:])
        flat_low[s, u] = torch.maximum(flat_low[s, u], known.linear(k, a, s).lowest)
        flat_high[s, u] = torch.minimum(flat_high[s, u], -known.linear(k, -a, s).lowest)
    return low, high


@dataclass(frozen=True)
class Margins:
    """Lower bounds of f_y - f_c on the ball around each sample; of c = y itself, 0."""

    a: Tensor  # (B, C, ...)
    b: Tensor  # (B, C)
    lowest: Tensor  # (B, C)
    slack: Tensor  # (B,): what a lowest margin must exceed to count
    known: Bounds

    @property
    def open(self) -> Tensor:
        """(B, C): the wrong classes that may win somewhere in the ball."""
        return ~(self.lowest > self.slack[:, None])  # also where it is NaN


def margins(
    network: Network, x: Tensor, y: Tensor, ball: Ball, steps: int = 20, wanted: Tensor | None = None
) -> Margins:
    """Linear bounds of every margin, from the ReLUs' intervals; of those that stay open, from CROWN's bounds of every
    ReLU, with `steps` steps of the slopes' ascent. On samples outside `wanted` (B,) intervals must do.
    """
    with torch.no_grad():
        x = x.double()
        ball = ball.widened(x)
        known, logits = bounds(network, x, ball), network.logits(x)
        a, b = x.new_zeros(*logits.shape, *x.shape[1:]), torch.zeros_like(logits)
        slack, lowest = SLACK * logits.abs().amax(1).clamp(min=1), torch.full_like(logits, torch.inf)
        found = Margins(a, b, lowest, slack, known)
        others = torch.arange(logits.shape[1], device=x.device) != y[:, None]
        _fill(found, y, others, 0)
        assert known.logits is not None
        plain = known.logits[0].gather(1, y[:, None]) - known.logits[1]
        higher = (plain > lowest) & others
        a[higher], b[higher], lowest[higher] = 0, plain[higher], plain[higher]
        todo = found.open if wanted is None else found.open & wanted[:, None]
        if bool(todo.any()):
            found = replace(found, known=bounds(network, x, ball, todo.any(1)))
            _fill(found, y, todo, steps)
        return found


def _fill(found: Margins, y: Tensor, wanted: Tensor, steps: int) -> None:
    """Put the linear bounds of the margins `wanted` (B, C) into `found`."""
    sample, wrong = wanted.nonzero(as_tuple=True)
    eye = torch.eye(wanted.shape[1], dtype=found.a.dtype, device=found.a.device)
    for part in torch.arange(len(sample), device=y.device).split(found.known.rows_at_once()):
        s, c = sample[part], wrong[part]
        line = _optimised(found.known, eye[y[s]] - eye[c], s, found.slack[s], steps)
        found.a[s, c], found.b[s, c], found.lowest[s, c] = line.a, line.b, line.lowest


def _optimised(known: Bounds, rows: Tensor, sample: Tensor, enough: Tensor, steps: int) -> Linear:
    """The best linear bounds of <row, logits> found by ascent over the ReLUs' lower slopes, row by row."""
    best = known.linear(known.network.output, rows, sample)
    best = replace(best, lowest=best.lowest.clone())
    todo = (best.lowest <= enough).nonzero()[:, 0]
    slopes = {k: line.lower[sample[todo]].clone() for k, line in known.lines.items() if bool(line.free.any())}
    fixed = {k: line.lower[sample[todo]] for k, line in known.lines.items() if k not in slopes}
    for t in range(steps if slopes else 0):
        if not len(todo):
            break
        with torch.enable_grad():
            moving = {k: value.requires_grad_() for k, value in slopes.items()}
            line = known.linear(known.network.output, rows[todo], sample[todo], {**fixed, **moving})
            gradients = torch.autograd.grad(line.lowest.sum(), list(moving.values()))
        better = (line.lowest.detach() > best.lowest[todo]).nonzero()[:, 0]
        for name in ("a", "b", "lowest"):
            getattr(best, name)[todo[better]] = getattr(line, name).detach()[better]
        rest = (best.lowest[todo] <= enough[todo]).nonzero()[:, 0]
        rate = RATE * DECAY**t
        slopes = {k: _ascended(v.detach(), g, rate)[rest] for (k, v), g in zip(moving.items(), gradients)}
        fixed, todo = {k: v[rest] for k, v in fixed.items()}, todo[rest]
    return best


def _ascended(slopes: Tensor, gradient: Tensor, rate: float) -> Tensor:
    """A step along the gradient, scaled to its largest entry in each row, back into [0, 1]."""
    scale = gradient.flatten(1).abs().amax(1)
    return (slopes + rate * gradient / per_sample(torch.where(scale > 0, scale, 1), gradient)).clamp(0, 1)
