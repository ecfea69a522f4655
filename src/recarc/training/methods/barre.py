"""BARRE (Dbouk and Shanbhag 2023): boosting for randomized ensembles, with sampling probabilities chosen by OSP."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recarc.attacks.arc import ARC
from recarc.ensemble import RandomizedEnsemble
from recarc.geometry import Ball
from recarc.sampling import AttackedSamples, osp
from recarc.simplex import projected_descent
from recarc.training.method import StepContext
from recarc.training.methods.mrboost import MRBoost

EVERY = 10  # epochs between searches for alpha
FROM_MEMBER = 4


class BARRE(MRBoost):
    """MRBoost's members; from the fourth on, alpha is optimised every 10 epochs in the second half of training.

    The alpha of the finished ensemble is optimised against ARC on validation data.
    """

    summary = "mrboost with alpha chosen by OSP (Dbouk and Shanbhag 2023)"

    def epoch_end(self, context: StepContext, epoch: int, epochs: int, measure: Callable[[], Tensor]) -> None:
        if len(context.mixture) < FROM_MEMBER or epoch < epochs / 2 or epoch % EVERY or epoch == epochs:
            return
        current = context.alpha.double().cpu()

        def errors(alpha: Tensor) -> Tensor:
            context.alpha.copy_(alpha)
            return measure().double().cpu()

        context.alpha.copy_(projected_descent(errors, current)[0])

    def choose_alpha(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor | None:
        with torch.no_grad():
            arc = ARC(planes=min(4, ensemble.logits(x[:1]).shape[-1] - 1))
            return torch.tensor(osp(ensemble, AttackedSamples(x, y, ball), arc).alpha, dtype=torch.float64)
