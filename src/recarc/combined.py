"""Deterministic rivals of a randomized ensemble, one classifier each: the average and the vote of its members."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

Member: TypeAlias = Callable[[Tensor], Tensor]
REACH = 1e4  # beyond which a logit below the largest says nothing more: its probability is 0 long before
LEAST = 1e-7  # effort of a class that does not win a vote


class Divisible(nn.Module):
    """What may be a vote, or a copy of one."""

    def voters(self) -> tuple[Member, ...]:
        """The members whose votes it counts; none if it is no vote."""
        return ()


class Combined(Divisible):
    """One classifier that asks every member at each query: those that it `combines`."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__()
        self.combines = tuple(members)
        self.modules_of_members = nn.ModuleList(m for m in self.combines if isinstance(m, nn.Module))
        self.train(any(m.training for m in self.modules_of_members))


class Averaged(Combined):
    """log sum_i alpha_i softmax(f_i(x))."""

    def __init__(self, members: Sequence[Member], alpha: Sequence[float]) -> None:
        super().__init__(members)
        self.alpha = tuple(alpha)

    def forward(self, x: Tensor) -> Tensor:
        logs = [math.log(a) + member(x).log_softmax(1) for a, member in zip(self.alpha, self.combines)]
        return torch.stack(logs).logsumexp(0)


class Voted(Combined):
    """One vote for each member; the mean probability decides between classes with as many votes.

    A count of votes has no gradient. So the logit of the winning class is 0, and that of any other class c is minus the
    effort that c needs to win. The effort is above 0, and next to 0 where the answer changes. Of the 2 M margins by
    which members keep to the winner or keep from c, c has more votes if more than M are negative, and as many if M are.
    So the effort is the sum of the M + 1 smallest, the last of which may be the gap in the logarithm of the mean
    probability instead. Margins are relative to the spread of the member's logits, since members with large ones are
    not harder to fool. The effort is multiplied by 1 + gap. That never changes a sign; it gives members whose margins
    are not among the smallest, and so have no say in the effort, a reason to lean towards c.
    """

    def voters(self) -> tuple[Member, ...]:
        return self.combines

    def forward(self, x: Tensor) -> Tensor:
        logits, count = torch.stack([member(x) for member in self.combines]), len(self.combines)
        choice, mean, winner = majority(logits)
        logits = within_reach(logits)
        first = logits.topk(2, dim=2).values
        voted = torch.zeros_like(logits).scatter(2, choice, 1.0)
        best_other = torch.where(voted > 0, first[..., 1:], first[..., :1])
        lead = (logits - best_other) / (1 + logits.std(2, keepdim=True))
        keeping = lead.gather(2, winner.expand(count, -1, -1)).expand_as(lead)
        margins = torch.cat([keeping, -lead]).sort(0).values
        gap = (mean.gather(1, winner) - mean).relu()
        effort = margins[:count].relu().sum(0) + torch.minimum(margins[count], gap)
        least = torch.full_like(effort, LEAST).scatter(1, winner, 0.0)  # or a tie inside a member is one of the vote
        return -(effort + least) * (1 + gap)


def majority(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each member's choice (M, B, 1) by its logits (M, B, C), log M times the mean probability (B, C), and the winner
    (B, 1) by votes, then by that probability. The mean is NaN where a logit is."""
    choice, mean = logits.argmax(2, keepdim=True), within_reach(logits).log_softmax(2).logsumexp(0)
    votes = torch.zeros_like(logits).scatter(2, choice, 1.0).sum(0)
    return choice, mean, mean.masked_fill(votes < votes.amax(1, keepdim=True), -torch.inf).argmax(1, keepdim=True)


def within_reach(logits: Tensor) -> Tensor:
    """The same classifier with finite logits: 0 is the largest, REACH below it the least. NaN makes all of them NaN."""
    logits = logits.nan_to_num(nan=math.nan)
    return (logits - logits.detach().amax(-1, keepdim=True)).clamp(min=-REACH)
