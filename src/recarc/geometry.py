"""Norms and balls: the only place that branches on p.

Every function takes tensors with a leading batch and works per sample. Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.errors import InputError
from recarc.randomness import sample_keys, uniform

LARGEST_EPS = 1e30  # float32 holds it, and sums of it
BOX_TOLERANCE = 1e-6  # float noise on the box is not an error
BISECTIONS, DOUBLINGS = 50, 60.0  # of the length of a direction that the box cuts off
LONG = 2**15  # values from which PyTorch shares the sum of a single row out to its threads


def per_sample(value: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) so that it broadcasts over `like` of shape (B, ...)."""
    return value.reshape(-1, *([1] * (like.dim() - 1)))


def total(v: Tensor) -> Tensor:
    """The sum of each sample, (B,), added in an order that does not depend on how many samples there are.

    CUDA's own sums choose their order by the shape, and so do those of several CPU threads over long rows, which
    would let a sample's figures depend on its batch.
    """
    v = v.flatten(1)
    if not (v.is_cuda or v.shape[1] >= LONG):
        return v.sum(1)
    if not v.is_floating_point() or v.shape[1] < 2 or not len(v):
        return v.sum(1)
    columns = _pool(v, _fold(v.shape[1]))
    return _pool(columns, columns.shape[1])[:, 0]


def _pool(v: Tensor, rows: int) -> Tensor:
    """The column sums of each sample's values, written in this many rows; each is added up by one thread, in order."""
    v = F.pad(v, (0, -v.shape[1] % rows)) if v.shape[1] % rows else v
    return F.avg_pool2d(v.view(len(v), 1, rows, -1), (rows, 1), divisor_override=1).flatten(1)


def _fold(count: int) -> int:
    """About the root of `count`, a divisor of it if there is one nearby."""
    root = math.isqrt(count)
    return next((rows for rows in range(root, root // 2, -1) if count % rows == 0), root)


def running_total(v: Tensor) -> Tensor:
    """The sums over the first 1, 2, ... values of each sample, (B, n), likewise."""
    if not v.is_cuda:
        return v.cumsum(1)
    step = 1
    while step < v.shape[1]:
        v = torch.cat([v[:, :step], v[:, step:] + v[:, :-step]], dim=1)
        step *= 2
    return v


def working_dtype(x: Tensor) -> torch.dtype:
    """The precision perturbations are kept in: float32, or float64 where the input is."""
    return torch.promote_types(x.dtype, torch.float32)


@dataclass(frozen=True)
class Norm:
    """The lp norm on samples, p >= 1 or infinity: `Norm("linf")`, `Norm("L2")`, `Norm(1)`, `Norm(1.5)`."""

    p: float

    def __init__(self, p: float | str | Norm) -> None:
        object.__setattr__(self, "p", p.p if isinstance(p, Norm) else _parse_p(p))

    def __str__(self) -> str:
        return "linf" if math.isinf(self.p) else f"l{self.p:g}"

    @property
    def q(self) -> float:
        """The dual exponent, 1/p + 1/q = 1."""
        if self.p == 1:
            return math.inf
        return 1.0 if math.isinf(self.p) else self.p / (self.p - 1)

    @property
    def sparse(self) -> bool:
        """Whether the best perturbations change few values: p = 1, where `steepest` changes a single one."""
        return self.p == 1

    def norm(self, v: Tensor) -> Tensor:
        """||v||_p per sample, (B,)."""
        return _vector_norm(v, self.p)

    def dual(self, w: Tensor) -> Tensor:
        """||w||_q per sample, (B,): the largest <w, d> over ||d||_p <= 1."""
        return _vector_norm(w, self.q)

    def steepest(self, w: Tensor) -> Tensor:
        """The unit-lp-norm d with <w, d> = ||w||_q (mu_p of the paper); 0 where w is 0.

        |w|^(q-1) sgn(w) / ||w||_q^(q-1); for p = 1 the limit that has unit norm: one-hot at the largest |w|.
        """
        w = w.to(working_dtype(w))
        if math.isinf(self.p):
            return w.sign()
        flat = w.flatten(1)
        if self.p == 1:
            index = flat.abs().argmax(1, keepdim=True)
            d = torch.zeros_like(flat).scatter_(1, index, flat.gather(1, index).sign())
            return d.reshape(w.shape)
        r = flat / _largest(flat)[:, None]  # in [-1, 1]: no overflow, no underflow of the sum
        if self.p == 2:
            return (r / total(r.square()).clamp(min=torch.finfo(r.dtype).tiny).sqrt()[:, None]).reshape(w.shape)
        r = r.abs()
        length = total(r.pow(self.q))[:, None]
        d = r.pow(self.q - 1) * flat.sign() / torch.where(length > 0, length, 1).pow((self.q - 1) / self.q)
        return d.reshape(w.shape)

    def distance(self, w: Tensor, h: Tensor) -> Tensor:
        """Signed lp distance h / ||w||_q to the hyper-plane {u: <w, u - x> + h = 0} (Lemma A.1); inf where w is 0."""
        return distance_along(h, self.dual(w))

    def scale_to(self, v: Tensor, radius: Tensor) -> Tensor:
        """v scaled to ||v||_p = radius (B,); 0 stays 0."""
        length = self.norm(v)
        return v * per_sample(torch.where(length > 0, radius / length, 0), v)


def distance_along(h: Tensor, length: Tensor) -> Tensor:
    """`Norm.distance` for normals whose dual norms are known: h / length; inf where that is 0."""
    return torch.where(length > 0, h.to(length.dtype) / length, math.inf)


def _parse_p(p: float | str) -> float:
    text = str(p).strip().lower()
    text = text.removeprefix("l").removeprefix("_").replace("∞", "inf")
    try:
        value = math.nan if "_" in text else float(text)
    except ValueError:
        value = math.nan
    if not value >= 1:
        raise InputError(f"norm {p!r} is not an lp norm with p >= 1; use 'linf', 'l2', 'l1' or a number p >= 1")
    return value


def _vector_norm(v: Tensor, p: float) -> Tensor:
    flat = v.to(working_dtype(v)).flatten(1)
    if flat.shape[1] == 0:
        return flat.new_zeros(flat.shape[0])
    if math.isinf(p):
        return flat.abs().amax(1)
    if p == 1:
        return _plain_norm(flat, 1)
    scale = _largest(flat)
    return _plain_norm(flat / scale[:, None], p) * scale


def _largest(flat: Tensor) -> Tensor:
    """The largest absolute value of each sample, to divide by: not quite 0 where all are 0."""
    return flat.abs().amax(1).clamp(min=torch.finfo(flat.dtype).tiny)


def _plain_norm(flat: Tensor, p: float) -> Tensor:
    if flat.is_cuda or flat.shape[1] >= LONG:
        if p == 1:
            return total(flat.abs())
        return total(flat.square()).sqrt() if p == 2 else total(flat.abs().pow(p)).pow(1 / p)
    return torch.linalg.vector_norm(flat, p, dim=1)


@dataclass(frozen=True)
class Ball:
    """Perturbations an attacker may use: ||delta||_p <= eps and x + delta in the box.

    eps is a float or a (B,) tensor, in the units of x (8/255, not 8); box is (low, high) or None.
    """

    norm: Norm
    eps: float | Tensor
    box: tuple[float, float] | None = (0.0, 1.0)

    def __init__(
        self, norm: float | str | Norm, eps: float | Tensor, box: tuple[float, float] | None = (0.0, 1.0)
    ) -> None:
        if isinstance(eps, Tensor) and eps.dim() == 0:
            eps = float(eps)
        if isinstance(eps, Tensor):
            eps = eps.detach()
            if eps.dim() != 1:
                raise InputError(f"eps has shape {tuple(eps.shape)}; it must be one number, or one per sample (B,)")
            bad = eps[~(torch.isfinite(eps) & (eps >= 0))]
            if len(bad):
                raise InputError(f"eps holds {bad[0].item()!r}; every value must be finite and >= 0, in the units of x")
        elif not (isinstance(eps, Real) and 0 <= eps <= LARGEST_EPS):
            raise InputError(f"eps is {eps!r}; it must be a finite number >= 0 in the units of x, such as 8/255")
        if box is not None and not (len(box) == 2 and box[0] < box[1]):
            raise InputError(f"box is {box!r}; it must be (low, high) with low < high, or None for no box")
        object.__setattr__(self, "norm", Norm(norm))
        object.__setattr__(self, "eps", eps if isinstance(eps, Tensor) else float(eps))
        object.__setattr__(self, "box", None if box is None else (float(box[0]), float(box[1])))

    def __str__(self) -> str:
        eps = "per sample" if isinstance(self.eps, Tensor) else f"{self.eps:.6g}"
        return f"{self.norm} ball, eps {eps}, box {self.box}"

    def check(self, x: Tensor) -> None:
        """Raise InputError where x does not fit the ball: outside the box, or another batch size than eps."""
        if isinstance(self.eps, Tensor) and len(self.eps) != len(x):
            raise InputError(f"eps has {len(self.eps)} values for {len(x)} samples; give one each, or a single number")
        if self.box is None or x.numel() == 0:
            return
        low, high = float(x.min()), float(x.max())
        if low < self.box[0] - BOX_TOLERANCE or high > self.box[1] + BOX_TOLERANCE:
            hint = "divide 8-bit images by 255" if high > 2 * self.box[1] else "move normalisation into the model"
            raise InputError(
                f"x has values in [{low:.4g}, {high:.4g}], outside the box {list(self.box)}; {hint}, "
                "or give the ball another box"
            )

    @property
    def largest_eps(self) -> float:
        return float(self.eps.max()) if isinstance(self.eps, Tensor) and len(self.eps) else float(self.eps)

    def take(self, index: Tensor) -> Ball:
        """The ball of a subset of the samples."""
        return replace(self, eps=self.eps[index.to(self.eps.device)]) if isinstance(self.eps, Tensor) else self

    def radius(self, x: Tensor) -> Tensor:
        """eps as a (B,) tensor beside x."""
        if isinstance(self.eps, Tensor):
            return self.eps.to(device=x.device, dtype=working_dtype(x))
        return torch.full((len(x),), self.eps, device=x.device, dtype=working_dtype(x))

    def project(self, delta: Tensor, x: Tensor) -> Tensor:
        """Pi: the nearest point of ball and box together for p in {1, inf}.

        For another p the ball comes first (exactly for p = 2, else by radial scaling) and the box then clips: the
        result is in both (|delta| only shrinks, as x is in the box), though not the nearest such point.
        """
        eps = per_sample(self.radius(x), x)
        if math.isinf(self.norm.p):
            delta = torch.maximum(torch.minimum(delta, eps), -eps)
        elif self.norm.p == 1:
            delta = _soft_threshold(delta, self.radius(x), self._room(x, delta))
        else:
            length = per_sample(self.norm.norm(delta), delta)
            delta = delta * torch.where(length > eps, eps / torch.where(length > eps, length, 1), 1)
        if self.box is not None:
            wide = x.to(delta.dtype)
            delta = torch.maximum(torch.minimum(delta, self.box[1] - wide), self.box[0] - wide)
        if self.norm.p != 1:
            return delta
        length = per_sample(self.norm.norm(delta), delta)  # of a point from far away, rounding leaves it too long
        return torch.where(length > eps * (1 + 1e-6), delta * (eps / length), delta)

    def _room(self, x: Tensor, towards: Tensor) -> Tensor:
        """How far each value of x may move in the direction of the sign of `towards` before it leaves the box."""
        if self.box is None:
            return torch.full_like(towards, math.inf)
        wide = x.to(towards.dtype)
        return torch.where(towards > 0, self.box[1] - wide, wide - self.box[0]).clamp(min=0)

    def step_direction(self, g: Tensor, x: Tensor, delta: Tensor, support: Tensor | None = None) -> Tensor:
        """The direction of unit lp norm in which to step from x + delta so that <g, delta> grows.

        `Norm.steepest(g)`, except for p = 1, where its single value soon hits the box and then stays there: a sparse
        step (Croce and Hein 2021) over the `support` (B,) values of largest |g| that the box still lets move. By
        default as many as `fewest_values`: a quarter of eps then moves each by a quarter of the box's width.
        """
        if not self.norm.sparse:
            return self.norm.steepest(g)
        if support is None:
            support = self.fewest_values(x)
        sizes = torch.where(self._room(x + delta, g) > BOX_TOLERANCE, g.abs(), 0).flatten(1)
        last = support.long().clamp(1, sizes.shape[1]) - 1  # rounded down, or two values would never become one
        smallest = sizes.sort(dim=1, descending=True).values.gather(1, last[:, None])
        chosen = (sizes >= smallest) & (sizes > 0)
        return (g.sign().flatten(1) * chosen / chosen.sum(1, keepdim=True).clamp(min=1)).reshape(g.shape)

    def fewest_values(self, x: Tensor) -> Tensor:
        """How many values a perturbation of l1 norm eps changes at least, (B,); none moves further than the box."""
        eps = self.radius(x)
        return torch.ones_like(eps) if self.box is None else (eps / (self.box[1] - self.box[0])).clamp(min=1)

    def move(self, x: Tensor, delta: Tensor) -> Tensor:
        """x + delta inside the box, in the dtype of x: the point a model sees and an attack returns.

        Half precision rounds towards x: to the nearest would leave the ball by up to 6 % of 8/255.
        """
        moved = x + delta
        if self.box is not None:
            moved = moved.clamp(*self.box)
        if moved.dtype == x.dtype:
            return moved
        rounded = moved.to(x.dtype)
        too_far = (rounded.to(delta.dtype) - x).abs() > (moved - x).abs()
        return torch.where(too_far, torch.nextafter(rounded, x), rounded)

    def random_start(self, x: Tensor, seed: int) -> Tensor:
        """delta uniform in the lp ball (then clipped to the box), drawn from each sample's own stream."""
        delta = _uniform_in_unit_ball(sample_keys(x, seed), x[0].numel() if len(x) else 0, self.norm.p)
        delta = delta.to(working_dtype(x)).reshape(x.shape) * per_sample(self.radius(x), x)
        return self.project(delta, x)

    def lowest(self, a: Tensor, x: Tensor) -> Tensor:
        """argmin of <a, delta> over ball and box, (B, ...) like a; the gradient of the minimum in a.

        For p = 2 with a box from a bisection's outer side, and for p other than 1, 2 and inf without the box, so that
        <a, lowest> may be below the minimum by as much, but never above it.
        """
        eps, flat = self.radius(x)[:, None], a.flatten(1)
        far = self._room(x, -a).flatten(1) * -flat.sign()  # the corner of the box
        if math.isinf(self.norm.p):
            delta = torch.maximum(torch.minimum(far, eps), -eps) if self.box is not None else -eps * flat.sign()
        elif self.norm.p == 1:
            order = flat.abs().argsort(dim=1, descending=True)
            room = (far.abs() if self.box is not None else eps.expand_as(far)).gather(1, order)
            used = torch.minimum(running_total(room), eps)
            moved = torch.diff(used, dim=1, prepend=torch.zeros_like(eps))
            delta = torch.zeros_like(flat).scatter(1, order, moved) * -flat.sign()
        elif self.norm.p == 2 and self.box is not None:
            delta = _farthest_in_box(-flat, far, eps)
        else:
            delta = -eps * self.norm.steepest(flat)
        return delta.reshape(a.shape)

    def widened(self, x: Tensor) -> Ball:
        """Ball and box with the room that `tolerance` leaves: every point that an evaluation accepts is inside."""
        radius = self.radius(x) + self.tolerance(x)
        if self.box is None:
            return Ball(self.norm, radius, None)
        low, high = self.box
        most = 2 * BOX_TOLERANCE * (1 + max(abs(low), abs(high)))  # more than tolerance: clipping is exact
        return Ball(self.norm, radius, (low - most, high + most))

    def tolerance(self, x: Tensor) -> Tensor:
        """How far float32 rounding can carry a correct attack outside, (B,): an ulp a coordinate, in the norm."""
        flat = x.flatten(1)
        scale = flat.abs().amax(1).clamp(min=1e-3) + self.radius(x)
        spread = 1.0 if math.isinf(self.norm.p) else flat.shape[1] ** (1 / self.norm.p)
        allowed = 1e-6 * self.radius(x) + 2.0**-23 * scale * spread
        if self.box is not None:  # an input outside the box by float noise is moved back into it
            allowed = allowed + torch.maximum(flat.amax(1) - self.box[1], self.box[0] - flat.amin(1)).clamp(min=0)
        return allowed

    def violation(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """How far x_adv is outside ball or box, (B,) in float64; 0 where it is inside."""
        delta = x_adv.double() - x.double()
        excess = (self.norm.norm(delta) - self.radius(x).double()).clamp(min=0)
        if self.box is not None and x.numel():
            flat = x_adv.double().flatten(1)
            outside = torch.maximum(flat.amax(1) - self.box[1], self.box[0] - flat.amin(1)).clamp(min=0)
            excess = torch.maximum(excess, outside)
        return excess


def odd_scale(ball: Ball, shape: Sequence[int]) -> str | None:
    """Why an eps looks like one of another scale, for inputs of a shape: 8 instead of 8/255; None if it does not."""
    if ball.box is None:
        return None
    eps, width, image = ball.largest_eps, ball.box[1] - ball.box[0], len(shape) == 3
    across = width * float(ball.norm.norm(torch.ones(1, math.prod(shape), dtype=torch.float64)))
    if eps >= across:
        return "covers the whole box"
    if eps >= 0.5 * across:
        return f"is large enough to turn any {'image uniform grey' if image else 'input into the middle of the box'}"
    whole = image and ball.box == (0, 1) and eps >= 2 and eps == int(eps)
    return "is a whole number" if whole and eps >= 8 / 255 * across else None  # l1 12 is a usual radius


def _soft_threshold(delta: Tensor, eps: Tensor, room: Tensor) -> Tensor:
    """sgn(d) (|d| - theta)+ with the smallest theta >= 0 at which sum min((|d| - theta)+, room) is at most eps.

    Cut off at `room` this is the nearest point of l1 ball and box. The sum falls with theta, with kinks where a
    value reaches 0 (theta = |d|) or leaves its bound (theta = |d| - room): sort the kinks, add the slopes up from the
    highest, and solve on the piece that crosses eps.
    """
    flat = delta.flatten(1)
    sizes = flat.abs()
    kinks, order = torch.cat([sizes, (sizes - room.flatten(1)).clamp(min=0)], dim=1).sort(dim=1, descending=True)
    slopes = torch.where(order < flat.shape[1], 1.0, -1.0).to(flat.dtype)
    slope, height = running_total(slopes), running_total(slopes * kinks)
    piece = (height - slope * kinks < eps[:, None]).sum(1, keepdim=True).clamp(min=1) - 1
    slope, height = slope.gather(1, piece), height.gather(1, piece)
    theta = torch.where(slope > 0, (height - eps[:, None]) / slope.clamp(min=1), kinks.gather(1, piece)).clamp(min=0)
    inside = piece == kinks.shape[1] - 1  # below the last kink nothing changes: the bounds alone keep the sum small
    return (flat.sign() * (sizes - torch.where(inside, 0, theta)).clamp(min=0)).reshape(delta.shape)


def _farthest_in_box(direction: Tensor, far: Tensor, eps: Tensor) -> Tensor:
    """k direction, cut off at `far`, with the smallest k that has length eps, approached from above; else `far`."""
    length = direction.norm(dim=1, keepdim=True)
    unit = direction / torch.where(length > 0, length, 1)
    inner, outer = torch.zeros_like(eps), torch.full_like(eps, DOUBLINGS)

    def cut_off(doublings: Tensor) -> Tensor:
        moved = eps * 2**doublings * unit
        return torch.where(moved.abs() < far.abs(), moved, far)

    for _ in range(BISECTIONS):
        middle = (inner + outer) / 2
        enough = cut_off(middle).norm(dim=1, keepdim=True) >= eps
        inner, outer = torch.where(enough, inner, middle), torch.where(enough, middle, outer)
    return torch.where(outer < DOUBLINGS, cut_off(outer), far)


def _uniform_in_unit_ball(keys: Tensor, dim: int, p: float) -> Tensor:
    """(B, dim) points uniform in the unit lp ball.

    With |g_i|^p ~ Gamma(1/p) and an independent e ~ Exp(1), g / (sum |g_i|^p + e)^(1/p) is uniform.
    """
    u = uniform(keys, dim, stream=0)
    if math.isinf(p):
        return 2 * u - 1
    sign = torch.where(uniform(keys, dim, stream=1) < 0.5, -1.0, 1.0)
    power = _gamma_quantile(u, 1 / p)
    e = -uniform(keys, 1, stream=2).log()
    return sign * (power / (total(power)[:, None] + e)).pow(1 / p)


def _gamma_quantile(u: Tensor, shape: float) -> Tensor:
    if shape == 1:
        return -torch.log1p(-u)
    if shape == 0.5:
        return torch.erfinv(u).square()
    from scipy.special import gammaincinv

    return torch.from_numpy(gammaincinv(shape, u.cpu().numpy())).to(u.device)
