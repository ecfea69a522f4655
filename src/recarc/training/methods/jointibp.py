"""Certified training of several members at once: no point of the ball should fool two of them together."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from recarc.exact.bounds import Bounds
from recarc.training.method import LossTerms, StepContext
from recarc.training.methods.ibp import IBP, KAPPA, linear_margins, ramp, scaled


class JointIBP(IBP):
    """kappa sum_i CE(f_i(x), y) + (1 - kappa) sum_{i<j} log(1 + sum_{c, c'} exp(-g_cc')).

    g_cc' is the lowest value over the ball of the mean of the linear bounds of member i's margin over class c and
    member j's over class c': while it is positive, i does not answer c where j answers c'.
    """

    summary = "members trained jointly with the worst joint bound of every two, ramped up like ibp"
    default_members = 2
    min_members = 2
    joint = True

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> LossTerms:
        done = ramp(context.progress)
        kappa, ball = 1 - (1 - KAPPA) * done, scaled(context.required_ball(), done)
        known = [self.bounds_of(member, x, ball) for member in context.trained]
        pairs = itertools.combinations(known, 2)
        worst = torch.stack([_joint_loss(one, other, y) for one, other in pairs]).sum()
        clean = torch.stack([context.loss(member(x), y) for member in context.trained]).sum()
        return {"ce": kappa * clean, "bound": (1 - kappa) * worst}

    def score(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        """On the validation batch, the share of pairs that these bounds show to be never wrong together."""
        if x is not self.certified:
            return super().score(context, x, y)
        known = [self.bounds_of(member, x, context.required_ball()) for member in context.trained]
        pairs = itertools.combinations(known, 2)
        return torch.stack([(joint_lowest(*pair, y).flatten(1).amin(1) > 0).float() for pair in pairs]).mean(0)


def joint_lowest(one: Bounds, other: Bounds, y: Tensor) -> Tensor:
    """(B, C, C): g_cc' of two members; infinite where c or c' is y."""
    (a, b), (a2, b2) = (_lines(known, y) for known in (one, other))
    classes = b.shape[1]
    a, b = (a[:, :, None] + a2[:, None]) / 2, (b[:, :, None] + b2[:, None]) / 2
    sample = torch.arange(len(y), device=y.device).repeat_interleave(classes**2)
    rows, x = a.flatten(0, 2), one.x.flatten(1)[sample]
    with torch.no_grad():
        point = x + one.ball.take(sample).lowest(rows, x)
    lowest = ((rows * point).sum(1) + b.flatten()).reshape(b.shape)
    right = torch.arange(classes, device=y.device) == y[:, None]
    return lowest.masked_fill(right[:, :, None] | right[:, None], torch.inf)


def _lines(known: Bounds, y: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients (B, C, D) and offsets (B, C) of a member's margins."""
    line = linear_margins(known, y)
    return line.a.reshape(len(y), -1, known.x[0].numel()), line.b.reshape(len(y), -1)


def _joint_loss(one: Bounds, other: Bounds, y: Tensor) -> Tensor:
    terms = -joint_lowest(one, other, y).flatten(1)
    return torch.logsumexp(torch.cat([torch.zeros_like(terms[:, :1]), terms], dim=1), dim=1).mean()
