"""Local linearisation of one member: its nearest decision plane. Shared by every version of ARC."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from recarc.attacks.base import differentiate
from recarc.ensemble import Member
from recarc.geometry import Norm, per_sample, total, working_dtype


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
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        logits = member(x)
        m = logits.detach().argmax(1) if label is None else label
        rivals = logits.detach().scatter(1, m[:, None], -math.inf).topk(planes or logits.shape[1] - 1, dim=1).indices
        h = logits.gather(1, m[:, None]) - logits.gather(1, rivals)
        gradients = (differentiate(h[:, j].sum(), x, again=j + 1 < h.shape[1]) for j in range(h.shape[1]))
        w_best = torch.zeros_like(x, dtype=working_dtype(x), requires_grad=False)
        zeta_best = torch.full((len(x),), math.inf, dtype=w_best.dtype, device=x.device)
        nearest = zeta_best.clone()
        for j, gradient in enumerate(gradients):
            w = gradient.to(w_best.dtype).nan_to_num(nan=0.0)
            zeta = norm.distance(w, h[:, j].detach())
            distance = zeta
            if offset is not None:
                distance = norm.distance(w, h[:, j].detach() - total(w * offset))
            closer = distance < nearest
            nearest = torch.where(closer, distance, nearest)
            zeta_best = torch.where(closer, zeta, zeta_best)
            w_best = torch.where(per_sample(closer, w), w, w_best)
    length = norm.dual(w_best)
    return Plane(w_best / per_sample(torch.where(length > 0, length, 1), w_best), zeta_best)
