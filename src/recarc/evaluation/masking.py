"""Masking, measured on a few samples before a run and on a few that withstood it: signs that gradients mislead.

Robust accuracy and floor both come from attacks that follow gradients. Where a member hides or bends its gradient, both
are too high, and they agree. So each sign is a named signal, and no verdict is conclusive where one stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.attacks.base import differentiate
from recarc.ensemble import Member, RandomizedEnsemble, predictions_of
from recarc.evaluation.tiling import dtype_of
from recarc.geometry import Ball, Norm, per_sample, total
from recarc.losses import cross_entropy, margin
from recarc.randomness import sample_keys, uniform

PROBE, ONE_IN, FEWEST = 64, 8, 16  # samples: at most, one in so many (so that they cost a few percent), at least
TOLERATED, FEW = 0.1, 3  # a share of the probe, and a number of samples, that may look masked by accident
# Other shares: strongly curved but honest networks look incomplete on a tenth, and hardly any margin jumps.
TOLERATED_OF = {"gradients_incomplete": 0.25, "margin_jumps": 0.0}
# Of the samples that a member withstood: at most so many, and the share of them that may look masked. That is less,
# because a mask on one sample in fifty hardly shows among all, but makes the figure too high by more than a point.
LEFT, TOLERATED_LEFT = 256, 0.03


# Scale of a step in eps -> the least share of the predicted decrease that it must bring. Less is asked of larger steps,
# because honest networks bend too, the more the longer the step.
SCALES = {0.01: 1 / 4, 0.03: 1 / 8, 0.1: 0.0}
FACTOR = 8.0  # times the predicted decrease at most
DIRECTIONS = 8  # random ones, in each of which the margin must change as the gradient says
UNEXPLAINED = 0.1  # of the squared changes; honest networks leave less than 0.01 on nine samples in ten
HALVINGS = 16  # of the way to an image of another class, to find where the answer changes
ROUNDING = 32  # units in the last place of a logit, below which a difference says nothing

STEPS = 10  # of the short gradient attack
QUERIES = 32  # of the random search, the first quarter of which are stripes
BEATEN = 0.1  # of the clean margin: a random search that gets lower by less is no better, a smaller jump is none
SEED = 17


@dataclass(frozen=True)
class Signal:
    """A sign that the figures of a member may mislead; `figure` is the share of the probe that shows it."""

    member: int
    name: str
    figure: float
    explanation: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.name} of members[{self.member}] ({100 * self.figure:.0f} %)"

    def to_json(self) -> dict[str, Any]:
        return {"member": self.member, "name": self.name, "figure": self.figure}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Signal:
        return cls(int(saved["member"]), str(saved["name"]), float(saved["figure"]))


def probe_size(samples: int) -> int:
    """How many samples to measure on before a run on this many."""
    return min(samples, PROBE, max(FEWEST, samples // ONE_IN))


def probe_rows(samples: int) -> np.ndarray:
    """A random few of them, since the first ones of a set that is sorted by class are all of one kind."""
    keys = sample_keys(torch.arange(samples)[:, None], SEED)
    return np.sort(uniform(keys, 1)[:, 0].argsort()[: probe_size(samples)].numpy())


def left_rows(withstood: np.ndarray) -> np.ndarray:
    """A random few of the samples that a member withstood; (N,) whether it did."""
    rows = np.flatnonzero(withstood)
    keys = sample_keys(torch.arange(len(rows))[:, None], SEED)
    chosen = uniform(keys, 1)[:, 0].argsort()[: min(LEFT, max(FEWEST, len(withstood) // ONE_IN))]
    return np.sort(rows[chosen.numpy()])


def measured(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> list[Signal]:
    """The signals of every member of alpha > 0, on these samples."""
    return [signal for i in sorted(ensemble.order) for signal in member_signals(i, ensemble.members[i], x, y, ball)]


@torch.no_grad()
def member_signals(i: int, member: Member, x: Tensor, y: Tensor, ball: Ball, left: bool = False) -> Iterator[Signal]:
    """The signals of one member, from the cheapest measurement to the dearest; `left`: it withstood these samples."""
    logits = member(x)
    if look_like_probabilities(logits):
        yield Signal(
            i,
            "probabilities",
            1.0,
            f"the outputs of members[{i}] look like probabilities; attacks expect logits and are weaker without: "
            "take the softmax out of the model",
        )
    with torch.enable_grad():
        differentiable = member(x.detach().clone().requires_grad_()).requires_grad
    if not differentiable:
        blind = f"members[{i}] has no gradient in its input, so gradient attacks are blind to it; look for a detach()"
        yield Signal(i, "gradients_vanish", 1.0, blind)
        return
    usual = TOLERATED_LEFT if left else TOLERATED
    vanishing = _vanishing(i, member, x, y, usual)
    if vanishing is not None:
        yield vanishing
    right = (predictions_of(logits) == y).nonzero()[:, 0]
    if len(right) < FEW:
        return
    probe = Probe(member, x[right], y[right], ball.take(right))
    for name, mask in probe.signs(left).items():
        count, samples = int(mask.sum()), len(right)
        if count >= FEW and count > TOLERATED_OF.get(name, usual) * samples:
            yield Signal(
                i, name, count / samples, EXPLANATIONS[name].format(i=i, share=f"{count} of {samples} samples")
            )


ADVICE = "; attack a smooth copy of it, or add an attack without gradients through WorstOf"
EXPLANATIONS = {
    "gradients_disagree": "on {share} a small step along the gradient of members[{i}] does not do what the gradient "
    "predicts (rounded or rippled inputs, activations that switch), so gradient attacks are misled" + ADVICE,
    "gradients_incomplete": "on {share} the gradient of members[{i}] leaves out much of how it changes in random "
    "directions (a detach() in a branch, another network's gradient), so gradient attacks are misled" + ADVICE,
    "logits_rounded": "on {share} the logits of members[{i}] are so large that rounding swallows what a step of 1 % of "
    "eps changes, so nobody can tell whether its gradients mislead; subtract a constant from them inside the model, or "
    "convert it to a higher precision",
    "margin_jumps": "on {share} the margin of members[{i}] jumps where its answer changes (rounding, or logits that do "
    "not make the decision), so no attack that lowers it can tell how close it is" + ADVICE,
    "covering_ball_survived": "on {share} a gradient attack that may change members[{i}]'s input into any other does "
    "not fool it, though images of other classes would: its gradients lead nowhere" + ADVICE,
    "larger_ball_harder": "on {share} a gradient attack fools members[{i}] within eps, but not within twice as much: "
    "its gradients lead astray" + ADVICE,
    "random_beats_gradients": f"on {{share}} {QUERIES} random points get closer to fooling members[{{i}}] than "
    "gradients do: these are masked" + ADVICE,
}


def look_like_probabilities(logits: Tensor) -> bool:
    """Rows in [0, 1] that sum to one."""
    inside = bool(((logits >= 0) & (logits <= 1)).all())
    return inside and bool(((logits.sum(1) - 1).abs() < 1e-3).all())


def _vanishing(i: int, member: Member, x: Tensor, y: Tensor, tolerated: float) -> Signal | None:
    """Whether the gradient of the logits, or only that of the cross-entropy, is exactly zero on too many samples."""

    def mixed(logits: Tensor) -> Tensor:
        return logits @ torch.arange(1, 1 + logits.shape[1], device=x.device, dtype=logits.dtype).cos()

    of_loss = _without_gradient(member, x, lambda logits: cross_entropy(logits, y))
    of_logits = _without_gradient(member, x, mixed)
    if of_logits > tolerated * len(x):
        text = (
            f"the gradient of members[{i}] vanishes on {of_logits} of {len(x)} samples, even that of its logits: it is "
            f"masked (by rounding, steps or saturation), and gradient attacks are blind to it{ADVICE}"
        )
    elif of_loss > tolerated * len(x):
        text = (
            f"the gradient of members[{i}] vanishes on {of_loss} of {len(x)} samples, but only that of the "
            "cross-entropy: its logits are too large for float32; try loss='margin' or --precision float64"
        )
    else:
        return None
    return Signal(i, "gradients_vanish", max(of_logits, of_loss) / len(x), text)


def _without_gradient(member: Member, x: Tensor, objective: Any) -> int:
    """How many samples without NaN logits have an objective whose gradient is exactly zero."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        logits = member(leaf)
        gradient = differentiate(objective(logits).sum(), leaf)
    return int((~logits.isnan().any(1) & (gradient.flatten(1).abs().amax(1) == 0)).sum())


@dataclass(frozen=True)
class Probe:
    """Samples that a member answers correctly, and measurements of how its margin falls around them."""

    member: Member
    x: Tensor
    y: Tensor
    ball: Ball

    def signs(self, left: bool = False) -> dict[str, Tensor]:
        """(B,) which samples show each sign; `left`: only those that tell masked samples from honest ones best."""
        lowest = self.path[0]
        signs = {"logits_rounded": self.rounded(), "gradients_disagree": self.disagreeing()}
        if not left:
            signs |= {
                "gradients_incomplete": self.incomplete(),
                "margin_jumps": self.jumping(),
                "covering_ball_survived": self.surviving(),
                "larger_ball_harder": self.withstanding(_larger(self.ball), lowest < 0),
            }
        return signs | {"random_beats_gradients": self.searched() < lowest - BEATEN * self.at_x[0]}

    def margin(self, u: Tensor) -> Tensor:
        return margin(self.member(u), self.y)

    def descent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """The margin at u, (B,), and minus its gradient."""
        with torch.enable_grad():
            leaf = u.detach().clone().requires_grad_()
            value = self.margin(leaf)
            gradient = differentiate(-value.sum(), leaf)
        return value.detach(), gradient.nan_to_num(nan=0.0)

    @cached_property
    def at_x(self) -> tuple[Tensor, Tensor]:
        """The margin at the clean points, and minus its gradient."""
        return self.descent(self.x)

    @cached_property
    def noise(self) -> Tensor:
        """(B,) differences of the margin up to which nothing can be told: a margin rounds as its two logits do."""
        dtype, logits = dtype_of(self.member) or self.x.dtype, self.member(self.x)
        own = logits.gather(1, self.y[:, None])[:, 0]
        return ROUNDING * torch.finfo(dtype).eps * torch.maximum(own.abs(), (own - margin(logits, self.y)).abs())

    @cached_property
    def random_place(self) -> tuple[Tensor, Tensor, Tensor]:
        """Random points of the ball, the margin there, and minus its gradient."""
        u = self.ball.move(self.x, self.ball.random_start(self.x, SEED))
        return u, *self.descent(u)

    def rounded(self) -> Tensor:
        """(B,) samples where rounding hides what the smallest step down a gradient other than 0 does."""
        slope = self.at_x[1]
        step = _clipped(self.x + _step(self.ball.norm, slope, min(SCALES) * self.ball.radius(self.x)), self.ball)
        predicted = total((step - self.x) * slope)
        return (predicted > 0) & (predicted <= self.noise)

    def disagreeing(self) -> Tensor:
        """(B,) samples at which a step down the gradient does too little or too much.

        Of all scales, from the clean point, a random one of the ball, and the one closest to another answer that the
        gradient itself leads to, where a mask has most to gain: where the most samples show it.
        """
        x, ball, noise = self.x, self.ball, self.noise
        masks = []
        for u, before, slope in ((x, *self.at_x), self.random_place, self.path[1]):
            for scale, least in SCALES.items():
                v = _clipped(u + _step(ball.norm, slope, scale * ball.radius(x)), ball)
                predicted, decrease = total((v - u) * slope), before - self.margin(v)
                masks.append((decrease < least * predicted - noise) | (decrease > FACTOR * predicted + noise))
        return max(masks, key=lambda mask: int(mask.sum()))

    def incomplete(self) -> Tensor:
        """(B,) samples where, at every scale, the gradient does not explain how the margin changes around.

        A gradient of half of a network leads down, too, but past what the other half does. From random points of the
        ball, as a mask may be off at clean ones.
        """
        x, ball, keys, noise = self.x, self.ball, sample_keys(self.x, SEED), self.noise
        u, before, slope = self.random_place
        random = [uniform(keys, x[0].numel(), stream=QUERIES + k).reshape(x.shape) for k in range(DIRECTIONS)]
        signs = torch.where(torch.cat(random) < 0.5, -1.0, 1.0).to(x.dtype)
        radius, start = ball.radius(x).repeat(DIRECTIONS), u.repeat(DIRECTIONS, *(1,) * (u.dim() - 1))
        missed = torch.ones_like(self.y, dtype=torch.bool)
        for scale in SCALES:
            v = _clipped(start + ball.norm.scale_to(signs, scale * radius), ball)
            reached = margin(self.member(v), self.y.repeat(DIRECTIONS))
            wrong, changes = torch.zeros_like(before), torch.zeros_like(before)
            for step, value in zip((v - start).chunk(DIRECTIONS), reached.chunk(DIRECTIONS)):
                change = before - value
                wrong, changes = wrong + (change - total(step * slope)) ** 2, changes + change**2
            missed &= wrong > UNEXPLAINED * changes + DIRECTIONS * noise**2
        return missed

    def jumping(self) -> Tensor:
        """(B,) samples on whose way to an image of another class the margin jumps where the answer changes."""
        places = torch.arange(len(self.y), device=self.y.device)
        onwards = (places - places[:, None]).remainder(len(places))  # from each sample to each
        other = torch.where(self.y != self.y[:, None], onwards, len(places)).argmin(1)
        inside, outside = self.x, self.x[other]
        for _ in range(HALVINGS):
            middle = (inside + outside) / 2
            right = per_sample(self.margin(middle) >= 0, middle)
            inside, outside = torch.where(right, middle, inside), torch.where(right, outside, middle)
        jump = self.margin(inside) - self.margin(outside)
        return (self.y != self.y[other]) & (jump > BEATEN * self.at_x[0] + self.noise)

    @cached_property
    def path(self) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """(B,) the lowest margin that a few steps down the gradient reach, and the place where it is lowest but right.

        That place as in `random_place`: the point with the lowest margin >= 0, the margin, and minus its gradient.
        """
        x, ball, delta = self.x, self.ball, torch.zeros_like(self.x)
        lowest = closest = torch.full_like(self.y, torch.inf, dtype=x.dtype)
        place = (x, *self.at_x)
        for _ in range(STEPS + 1):
            u = ball.move(x, delta)
            value, slope = self.descent(u)
            lowest, nearer = torch.minimum(lowest, value), (value >= 0) & (value < closest)
            closest = torch.where(nearer, value, closest)
            there = zip((u, value, slope), place)
            place = tuple(torch.where(per_sample(nearer, new), new, old) for new, old in there)  # type: ignore[assignment]
            delta = ball.project(delta + _step(ball.norm, slope, ball.radius(x) / 4), x)
        return lowest, place

    def withstanding(self, ball: Ball, among: Tensor) -> Tensor:
        """(B,) which of the samples `among` the same steps do not fool in this ball; who is fooled leaves early."""
        left, delta = among.nonzero()[:, 0], torch.zeros_like(self.x)
        for _ in range(STEPS + 1):
            if not len(left):
                break
            part = Probe(self.member, self.x[left], self.y[left], ball.take(left))
            value, slope = part.descent(part.ball.move(part.x, delta[left]))
            step = _step(ball.norm, slope, part.ball.radius(part.x) / 4)
            delta[left] = part.ball.project(delta[left] + step, part.x)
            left = left[value >= 0]
        return torch.zeros_like(among).index_fill(0, left, True)

    def surviving(self) -> Tensor:
        """(B,) samples not fooled although the whole box is allowed: every image of another class would fool."""
        box = self.ball.box
        if box is None or len(self.y.unique()) < 2:
            return torch.zeros_like(self.y, dtype=torch.bool)
        return self.withstanding(Ball("linf", box[1] - box[0], box), torch.ones_like(self.y, dtype=torch.bool))

    def searched(self) -> Tensor:
        """(B,) the lowest margin of a random search: stripes, then ever smaller squares, kept where they help."""
        x, ball, keys = self.x, self.ball, sample_keys(self.x, SEED)
        channels, height, width = x.shape[1:] if x.dim() == 4 else (1, 1, x[0].numel())
        best, lowest = x.new_zeros(len(x), channels, height, width), torch.full_like(self.y, torch.inf, dtype=x.dtype)
        for k in range(QUERIES):
            u = uniform(keys, 2 + channels * width, stream=k)
            signs = torch.where(u[:, 2:] < 0.5, -1.0, 1.0).to(x.dtype).reshape(len(x), channels, 1, width)
            if k < QUERIES // 4:
                pattern = signs.expand_as(best)
            else:
                share = 0.6 - k / (2 * QUERIES)
                rows, columns = _window(u[:, 0], height, share), _window(u[:, 1], width, share)
                pattern = torch.where(rows[:, None, :, None] & columns[:, None, None], signs[..., :1], best)
            delta = ball.norm.scale_to(pattern.reshape(x.shape), ball.radius(x))
            value = self.margin(ball.move(x, ball.project(delta, x)))
            better = value < lowest
            lowest, best = torch.where(better, value, lowest), torch.where(per_sample(better, best), pattern, best)
        return lowest


def _step(norm: Norm, slope: Tensor, length: Tensor) -> Tensor:
    """A step of this length along the steepest descent; spread over the pixels where that would be a single one."""
    return per_sample(length, slope) * norm.steepest(slope) if norm.p >= 2 else norm.scale_to(slope, length)


def _clipped(u: Tensor, ball: Ball) -> Tensor:
    return u if ball.box is None else u.clamp(*ball.box)


def _larger(ball: Ball) -> Ball:
    return Ball(ball.norm, 2 * ball.eps, ball.box)


def _window(u: Tensor, length: int, share: float) -> Tensor:
    """(B, length) a window of this share of the length, at the random place u in (0, 1)."""
    side = max(1, round(share * length))
    start = (u * (length - side + 1)).floor()[:, None]
    place = torch.arange(length, device=u.device)
    return (place >= start) & (place < start + side)
