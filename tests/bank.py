"""Many linear ensembles in one batch: each sample carries the number of its own ensemble as a last coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from halfspace_oracle import smallest_radius
from recarc import Ball, RandomizedEnsemble
from tiny import linear


class _Member(nn.Module):
    """Logits <w_k, x> + b_k of the ensemble k = round(last coordinate); an eps below 1/2 cannot change k."""

    def __init__(self, w: Tensor, b: Tensor) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(w), nn.Parameter(b)  # (K, C, D), (K, C)

    def forward(self, x: Tensor) -> Tensor:
        k = x[:, -1].detach().round().long()
        return torch.einsum("kcd,kd->kc", self.w[k], x[:, :-1]) + self.b[k]


@dataclass
class Bank:
    """K random linear ensembles of M binary members on R^D, with one point each, all correct there."""

    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    ball: Ball
    w: Tensor  # (M, K, D): f_y - f_other
    margins: Tensor  # (M, K)

    def single(self, k: int) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
        """Ensemble k by itself, for the exact solvers."""
        members = [linear(m.w[k].detach(), m.b[k].detach()) for m in self.ensemble.members]  # type: ignore[union-attr]
        return RandomizedEnsemble(members, self.ensemble.alpha), self.x[k : k + 1, :-1], self.y[k : k + 1]

    def missed(self, x_adv: Tensor, barely: float) -> list[bool]:
        """For each member that is still right at x_adv: could it be fooled together with those that are wrong there?

        What is foolable by less than a share `barely` of eps does not count.
        """
        wrong = (~self.ensemble.correct(x_adv, self.y)).numpy()
        found = []
        for k, i in zip(*np.nonzero(~wrong.T)):
            together = np.append(np.nonzero(wrong[:, k])[0], i)
            radius = smallest_radius(self.w[together, k].numpy(), self.margins[together, k].numpy(), self.ball.norm)
            found.append(radius < float(self.ball.eps) * (1 - barely))
        return found


def bank(
    count: int,
    members: int = 5,
    dim: int = 20,
    p: float | str = "linf",
    seed: int = 0,
    alpha: list[float] | None = None,
) -> Bank:
    """Gaussian members whose distances to x are uniform in (0, 0.9 eps)."""
    g = torch.Generator().manual_seed(seed)
    ball = Ball(p, 0.3, box=None)
    w = torch.randn(members, count, dim, generator=g, dtype=torch.float64)
    x = torch.randn(count, dim, generator=g, dtype=torch.float64)
    length = torch.stack([ball.norm.dual(rows) for rows in w])
    margins = 0.9 * 0.3 * length * torch.rand(members, count, generator=g, dtype=torch.float64)
    b = margins - torch.einsum("mkd,kd->mk", w, x)
    nets = [_Member(torch.stack([-w[i], w[i]], 1) / 2, torch.stack([-b[i], b[i]], 1) / 2) for i in range(members)]
    numbered = torch.cat([x, torch.arange(count, dtype=torch.float64)[:, None]], 1)
    ensemble = RandomizedEnsemble(nets)
    return Bank(ensemble, numbered, torch.ones(count, dtype=torch.long), ball, w, margins)
