"""Local linearisation of one member: its nearest decision plane. Shared by every version of ARC."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from recarc.attacks.base import differentiate
from recarc.ensemble import Member
from recarc.geometry import Norm, distance_along, per_sample, total, working_dtype

PullBack = Callable[[Tensor, bool], Tensor]  # weights (k, B, C), whether more will follow -> (k, B, ...)
AT_ONCE = 2**23  # numbers of gradients that are compared at once: many small ones in few operations


class Plane(NamedTuple):
    """The hyper-plane {u: <w, u - x> + h = 0} of each sample, with ||w||_q = 1 and so zeta = h signed distance."""

    w: Tensor
    zeta: Tensor

    def along(self, v: Tensor) -> Tensor:
        """<w, v> per sample."""
        return total(self.w * v)


def nearest_plane(
    member: Member,
    x: Tensor,
    norm: Norm,
    *,
    label: Tensor | None,
    planes: int,
    offset: Tensor | None = None,
    longest: float = math.inf,
) -> Plane:
    """Eq. (15): of the planes between class m and its G runners-up, the one nearest to x - offset.

    m is `label`, or the label the member assigns (None); planes = G. Planes run through the linearisation at x. One
    backward pass of f_m - f_j per plane, the likeliest classes first, a few at a time. A sample is done as soon as the
    next plane could be nearer only with a normal more than `longest` times as long as any so far.
    """
    cuts, most = _cuts(planes, longest), max(1, AT_ONCE // max(1, x.numel()))
    values, pull_back, together = linearised(member, x, planes if planes <= most else min(cuts[1], most))
    all_at_once = together and planes <= most
    m = values.argmax(1) if label is None else label
    rivals = _runners_up(values, m, planes)
    h = values.gather(1, m[:, None]).T - values.gather(1, rivals.T).T  # (G, B), ascending
    best = _Nearest.of_none(x, norm, offset)
    more = torch.ones_like(m, dtype=torch.bool)
    if all_at_once:
        w = pull_back(_in_logits(m, rivals, values), False)
    for start, stop in itertools.pairwise(cuts):
        more = more & best.may_be_beaten(h[start], longest)
        if all_at_once:  # then leaving planes out saves nothing, but must give the same answer
            best.offer(slice(None), w[start:stop], h[start:stop], more)
            continue
        rows: Tensor | slice = slice(None)
        step = most
        if start:
            rows = more.nonzero()[:, 0]
            if not len(rows):
                break
            step = max(1, AT_ONCE // max(1, x[rows].numel()))
            _, pull_back, _ = linearised(member, x[rows], min(stop - start, step))
        for k in range(start, stop, step):
            some = slice(k, min(k + step, stop))
            weights = _in_logits(m[rows], rivals[some, rows], values)
            best.offer(rows, pull_back(weights, some.stop < stop), h[some, rows])
    length = norm.dual(best.w)
    return Plane(best.w / per_sample(torch.where(length > 0, length, 1), best.w), best.zeta)


def _runners_up(values: Tensor, m: Tensor, planes: int) -> Tensor:
    """(G, B) the likeliest classes other than m, best first; of equal ones the first, whatever the batch."""
    others = torch.arange(values.shape[1] - 1, device=m.device).expand(len(m), -1)
    others = others + (others >= m[:, None])
    order = values.gather(1, others).sort(dim=1, descending=True, stable=True).indices
    return others.gather(1, order[:, :planes]).T


def _in_logits(m: Tensor, rivals: Tensor, values: Tensor) -> Tensor:
    """The gradient of f_m - f_j in the logits, (k, n, C), for rivals j (k, n)."""
    weights = values.new_zeros(*rivals.shape, values.shape[1])
    return weights.scatter_(2, m.expand_as(rivals)[:, :, None], 1).scatter_(2, rivals[:, :, None], -1)


def _cuts(planes: int, longest: float) -> list[int]:
    """After how many planes to ask whether the next could be nearer: seldom, since a new forward pass follows."""
    cuts = [0]
    while cuts[-1] < planes:
        cuts.append(planes if math.isinf(longest) else min(planes, 2 * cuts[-1] + 1 if cuts[-1] else 2))
    return cuts


@dataclass
class _Nearest:
    """The nearest plane of each sample so far, and its distance from x - offset; improved in place."""

    norm: Norm
    offset: Tensor | None
    w: Tensor
    zeta: Tensor
    distance: Tensor
    length: Tensor  # of the longest normal so far

    @classmethod
    def of_none(cls, x: Tensor, norm: Norm, offset: Tensor | None) -> _Nearest:
        w = torch.zeros_like(x, dtype=working_dtype(x))
        far = torch.full((len(x),), math.inf, dtype=w.dtype, device=x.device)
        return cls(norm, offset, w, far, far.clone(), torch.zeros_like(far))

    def may_be_beaten(self, h: Tensor, longest: float) -> Tensor:
        """Whether a plane with this h could be nearer, with a normal at most `longest` times as long as any so far.

        Also where there was no normal so far, which makes the product NaN.
        """
        return ~(h >= longest * self.length * self.distance)

    def offer(self, rows: Tensor | slice, w: Tensor, h: Tensor, allowed: Tensor | None = None) -> None:
        """Planes (k, n) with normals w (k, n, ...) of the samples `rows`, or of the `allowed` ones among these."""
        w = w.to(self.w.dtype).nan_to_num_(nan=0.0)
        length = self.norm.dual(w.flatten(0, 1)).view_as(h)
        zeta = distance = distance_along(h, length)
        if self.offset is not None:
            distance = distance_along(h - total((w * self.offset[rows]).flatten(0, 1)).view_as(h), length)
        distance = torch.where(distance.isnan(), math.inf, distance)
        if allowed is not None:
            distance, length = torch.where(allowed, distance, math.inf), torch.where(allowed, length, 0)
        first, each = distance.argmin(0), torch.arange(h.shape[1], device=h.device)
        closer = distance[first, each] < self.distance[rows]
        self.w[rows] = torch.where(per_sample(closer, w[0]), w[first, each], self.w[rows])
        self.zeta[rows] = torch.where(closer, zeta[first, each], self.zeta[rows])
        self.distance[rows] = torch.where(closer, distance[first, each], self.distance[rows])
        self.length[rows] = torch.maximum(self.length[rows], length.amax(0))


class Linearised(NamedTuple):
    """Logits at x, and a function of weights (k, B, C) for the k gradients of <weights, logits> in x.

    The function is told whether it will be called again.
    """

    logits: Tensor
    pull_back: PullBack
    all_at_once: bool = False  # whether as many gradients as were announced cost little more than one


def linearised(member: Member, x: Tensor, count: int) -> Linearised:
    """For a member whose gradients will be asked for up to `count` times. An accelerated member brings its own."""
    own = getattr(member, "linearised", None)
    return by_autograd(member, x) if own is None else Linearised(*own(x, count))


def by_autograd(member: Member, x: Tensor) -> Linearised:
    """`linearised` of any member."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits = member(x)

    def pull_back(weights: Tensor, again: bool) -> Tensor:
        with torch.enable_grad():
            values = [(logits * each).sum() for each in weights]
        return torch.stack([differentiate(v, x, again or j + 1 < len(values)) for j, v in enumerate(values)])

    return Linearised(logits.detach(), pull_back)
