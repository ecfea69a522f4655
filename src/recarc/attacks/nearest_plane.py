"""Local linearisation of one member: its nearest decision plane. Shared by every version of ARC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recarc.attacks.base import differentiate
from recarc.ensemble import Member
from recarc.geometry import Norm, per_sample, total, working_dtype

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
    member: Member, x: Tensor, norm: Norm, *, label: Tensor | None, planes: int | None, offset: Tensor | None = None
) -> Plane:
    """Eq. (15): of the planes between class m and its G runners-up, the one nearest to x - offset.

    m is `label`, or the label the member assigns (None); planes = G, None for all C - 1. Planes run through the
    linearisation at x. One backward pass of f_m - f_j per plane.
    """
    values, pull_back = linearised(member, x)
    m = values.argmax(1) if label is None else label
    rivals = values.scatter(1, m[:, None], -math.inf).topk(planes or values.shape[1] - 1, dim=1).indices.T
    h = values.gather(1, m[:, None]).T - values.gather(1, rivals.T).T  # (G, B)
    difference = torch.zeros_like(values).scatter_(1, m[:, None], 1).repeat(len(h), 1, 1)
    difference.scatter_(2, rivals[:, :, None], -1)  # (G, B, C), the gradient of h in the logits
    w_best = torch.zeros_like(x, dtype=working_dtype(x))
    nearest = torch.full((len(x),), math.inf, dtype=w_best.dtype, device=x.device)
    zeta_best, rows = nearest.clone(), torch.arange(len(x), device=x.device)
    at_once = max(1, AT_ONCE // max(1, x.numel()))
    for start in range(0, len(h), at_once):
        some = range(start, min(start + at_once, len(h)))
        w = pull_back(difference[some.start : some.stop], some.stop < len(h))
        w = w.to(w_best.dtype).nan_to_num_(nan=0.0)
        zeta = distance = _distances(norm, w, h[some.start : some.stop])
        if offset is not None:
            distance = _distances(norm, w, h[some.start : some.stop] - total((w * offset).flatten(0, 1)).view_as(zeta))
        distance = torch.where(distance.isnan(), math.inf, distance)
        first = distance.argmin(0)
        closer = distance[first, rows] < nearest
        nearest = torch.where(closer, distance[first, rows], nearest)
        zeta_best = torch.where(closer, zeta[first, rows], zeta_best)
        w_best = torch.where(per_sample(closer, w_best), w[first, rows], w_best)
    length = norm.dual(w_best)
    return Plane(w_best / per_sample(torch.where(length > 0, length, 1), w_best), zeta_best)


def linearised(member: Member, x: Tensor) -> tuple[Tensor, PullBack]:
    """Logits at x, and a function of weights (k, B, C) for the k gradients of <weights, logits> in x.

    The function is told whether it will be called again. An accelerated member brings its own `linearised`.
    """
    own = getattr(member, "linearised", None)
    return by_autograd(member, x) if own is None else own(x)


def by_autograd(member: Member, x: Tensor) -> tuple[Tensor, PullBack]:
    """`linearised` of any member."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits = member(x)

    def pull_back(weights: Tensor, again: bool) -> Tensor:
        with torch.enable_grad():
            values = [(logits * each).sum() for each in weights]
        return torch.stack([differentiate(v, x, again or j + 1 < len(values)) for j, v in enumerate(values)])

    return logits.detach(), pull_back


def _distances(norm: Norm, w: Tensor, h: Tensor) -> Tensor:
    """Signed distances (G, B) of planes with normals w (G, B, ...)."""
    return norm.distance(w.flatten(0, 1), h.flatten()).view_as(h)
