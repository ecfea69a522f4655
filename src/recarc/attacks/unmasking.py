"""Members as seen by an attack that does not trust their gradients: the same answers, gradients of another kind."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recarc.attacks.problem import Problem
from recarc.ensemble import Member, RandomizedEnsemble
from recarc.geometry import Ball

Masked = Sequence[tuple[int, str]]  # (member, name of a signal), as `recarc.evaluation.masking` measures them
PROBABILITIES = "probabilities"
MISLEADING = frozenset(
    {
        "gradients_vanish",
        "gradients_disagree",
        "gradients_incomplete",
        "logits_rounded",
        "margin_jumps",
        "covering_ball_survived",
        "larger_ball_harder",
        "random_beats_gradients",
    }
)
NEIGHBOURS, MORE_NEIGHBOURS = 4, 16
NEARBY = 0.25  # of eps: the radius of the neighbourhood
NEARBY_PIXELS = 0.01  # of the width of the box, where every sample has a radius of its own
WIDE_PIXELS = 0.1


class Smoothed(nn.Module):
    """A member whose gradient is the mean of those at random neighbours: ripples and kinks average out.

    The neighbours of a point are its own, in any batch.
    """

    def __init__(self, member: Member, neighbourhood: Ball, count: int) -> None:
        super().__init__()
        self.member, self.neighbourhood, self.count = member, neighbourhood, count

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            answer = self.member(x)
        if not (torch.is_grad_enabled() and x.requires_grad):
            return answer
        starts = [self.neighbourhood.random_start(x.detach(), k) for k in range(self.count)]
        near = torch.cat([self.neighbourhood.move(x, start) for start in starts])
        mean = self.member(near).unflatten(0, (self.count, len(x))).mean(0)
        return answer + (mean - mean.detach())


class Logarithm(nn.Module):
    """The logarithm of a member's probabilities: logits again, up to a constant that no attack looks at.

    It is asked in float64, where a probability as small as 1e-300 is not 0 yet; whether it computes in float64 is up
    to the member.
    """

    def __init__(self, member: Member) -> None:
        super().__init__()
        self.member = member

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.member(x.double())
        return probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log().to(x.dtype)


def smoothed(ensemble: RandomizedEnsemble, ball: Ball, wide: bool = False) -> RandomizedEnsemble:
    """The ensemble with every member smoothed over a part of the ball, or over more of the inputs than is in it.

    `wide`: what a member does not see, such as faint values below a threshold, shows where these are less faint.
    """
    near = _pixels(ball, WIDE_PIXELS) if wide else _neighbourhood(ball)
    return ensemble.with_members([Smoothed(member, near, NEIGHBOURS) for member in ensemble.members])


def unmasked(problem: Problem, masked: Masked) -> Problem:
    """The problem with members that show their gradients, as far as the signals tell what hides them."""
    if not masked:
        return problem
    members: list[Member] = []
    for i, member in enumerate(problem.ensemble.members):
        names = {name for j, name in masked if i == j}
        if PROBABILITIES in names:  # what else was measured may be due to them
            member = Logarithm(member)
        elif names & MISLEADING:
            member = Smoothed(member, _neighbourhood(problem.ball), MORE_NEIGHBOURS)
        members.append(member)
    # Without the clean logits that are known: those of probabilities are other ones now.
    return Problem(problem.ensemble.with_members(members), problem.x, problem.y, problem.ball)


def misleading(masked: Masked) -> set[int]:
    """The members that a search without gradients should look at."""
    return {i for i, name in masked if name in MISLEADING}


def _neighbourhood(ball: Ball) -> Ball:
    if isinstance(ball.eps, float):
        return Ball(ball.norm, NEARBY * ball.eps, ball.box)
    return _pixels(ball, NEARBY_PIXELS)


def _pixels(ball: Ball, share: float) -> Ball:
    """Every value by up to this share of the box's width."""
    low, high = ball.box or (0.0, 1.0)
    return Ball("linf", share * (high - low), ball.box)
