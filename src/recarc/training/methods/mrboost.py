"""MRBoost (Zhang et al. 2022): members added one at a time against the current mixture, with a margin loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.training.method import Method, Parts, Stage
from recarc.training.step_context import Team


class MRBoost(Method):
    """Member m starts from member m-1 and is trained on examples that hurt the whole mixture f_1 .. f_m."""

    name = "mrboost"
    summary = "margin boosting: members added one at a time against the current mixture"
    members = 3

    def plan(self, members: int, given: int) -> list[list[Stage]]:
        def start(i: int) -> tuple[int | None, ...]:
            return (i - 1 if i else None,)

        return [[Stage((i,), fixed=tuple(range(i)), start=start(i))] for i in range(given, members)]

    def attacked(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        return team.pgd(lambda u: margin_loss(mixture_log_probabilities(team, u), y), x)

    def loss(self, team: Team, x: Tensor, x_adv: Tensor, y: Tensor) -> Parts:
        return {"margin": margin_loss(team.trained[0](x_adv).float(), y).mean()}

    def score(self, team: Team, x: Tensor, y: Tensor) -> Tensor:
        """The mixture's expected accuracy."""
        with torch.no_grad():
            right = torch.stack([(member(x).argmax(1) == y).float() for member in team.mixture])
            return (team.alpha[:, None] * right).sum(0)


def mixture_log_probabilities(team: Team, x: Tensor) -> Tensor:
    """log sum_i alpha_i softmax(f_i(x)), (B, C)."""
    logs = torch.stack([member(x).float().log_softmax(1) for member in team.mixture])
    return torch.logsumexp(logs + team.alpha.clamp(min=1e-12).log()[:, None, None], 0)


def margin_loss(z: Tensor, y: Tensor) -> Tensor:
    """CE(z, y) + 1/(C-1) sum_{c != y} -log softmax(-z)_c, (B,)."""
    rivals = -(-z).log_softmax(1)
    own = rivals.gather(1, y[:, None])[:, 0]
    return F.cross_entropy(z, y, reduction="none") + (rivals.sum(1) - own) / (z.shape[1] - 1)
