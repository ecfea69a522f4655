"""Members as seen by an attack that does not trust their gradients: answers unchanged, gradients of another kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recarc.ensemble import Member, RandomizedEnsemble
from recarc.geometry import Ball

NEIGHBOURS = 4
NEARBY = 0.25  # of eps: the radius of the neighbourhood
NEARBY_PIXELS = 0.01  # of the width of the box, where every sample has a radius of its own


class Smoothed(nn.Module):
    """A member whose gradient is the mean of those at random neighbours: ripples and kinks average out.

    The neighbours of a point are its own, in any batch.
    """

    def __init__(self, member: Member, neighbourhood: Ball, count: int = NEIGHBOURS) -> None:
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


def smoothed(ensemble: RandomizedEnsemble, ball: Ball) -> RandomizedEnsemble:
    """The ensemble with every member smoothed over a part of the ball."""
    return ensemble.with_members([Smoothed(member, _neighbourhood(ball)) for member in ensemble.members])


def _neighbourhood(ball: Ball) -> Ball:
    if isinstance(ball.eps, float):
        return Ball(ball.norm, NEARBY * ball.eps, ball.box)
    low, high = ball.box or (0.0, 1.0)
    return Ball("linf", NEARBY_PIXELS * (high - low), ball.box)
