"""BARRE (Dbouk and Shanbhag 2023): boosting for randomized ensembles, with sampling probabilities chosen by OSP."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recarc.attacks.arc import ARC
from recarc.ensemble import RandomizedEnsemble
from recarc.geometry import Ball
from recarc.sampling import Samples, osp, projected_descent
from recarc.training.methods.mrboost import MRBoost
from recarc.training.step_context import Team

EVERY = 10  # epochs between searches while training
FROM_MEMBER = 4


class BARRE(MRBoost):
    """MRBoost's members; from the fourth on, alpha is searched every 10 epochs from the middle of training.

    The finished ensemble's alpha is found with ARC in the loop on validation data.
    """

    name = "barre"
    summary = "boosting for randomized ensembles, alpha by optimal sampling"

    def epoch_end(self, team: Team, epoch: int, epochs: int, measure: Callable[[], Tensor]) -> None:
        if len(team.mixture) < FROM_MEMBER or epoch < epochs / 2 or epoch % EVERY or epoch == epochs:
            return
        keep = team.alpha.clone()

        def errors(alpha: Tensor) -> Tensor:
            team.alpha.copy_(alpha)
            return measure().double().cpu()

        found = projected_descent(errors, keep.double().cpu())
        team.alpha.copy_(found.alpha)

    def choose_alpha(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor | None:
        with torch.no_grad():
            arc = ARC(planes=min(4, ensemble.logits(x[:1]).shape[-1] - 1))
            return torch.tensor(osp(ensemble, Samples(x, y, ball), arc).alpha, dtype=torch.float64)
