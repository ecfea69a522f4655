"""Square: random search with square windows and no gradients, for members whose gradients mislead.

Andriushchenko, Croce, Flammarion and Hein 2020; for l1 as Croce and Hein 2021 adapted it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.attacks.base import Attack, check_count
from recarc.attacks.pgd import check_member
from recarc.attacks.problem import Best, Problem
from recarc.attacks.registry import register
from recarc.ensemble import predictions_of
from recarc.errors import InputError
from recarc.geometry import Ball, per_sample, working_dtype
from recarc.losses import margin
from recarc.randomness import sample_keys, uniform

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of p, in the paper's 10,000 queries
TILES = 5  # a side, of the start for p < inf
FIRST_STREAM = 16  # of a sample's random numbers; smaller ones are in use elsewhere
WORTH_COMPACTING = 0.8  # copying the state costs more than asking about a few finished samples


@register("square", label="Square", help="random search without gradients (Andriushchenko et al. 2020)")
@dataclass(frozen=True)
class Square(Attack):
    """Square Attack: change one random window per query, and keep the change unless the objective rises.

    `member=i` lowers one member's margin and stops on a sample as soon as that member is fooled. `member=None` lowers
    sum_i alpha_i max(margin_i, 0) / spread_i, where spread_i is the range of member i's logits at x. It is 0 where all
    are fooled; a member fooled deeply counts no less than one just fooled, and large logits carry no extra weight.
    Kept is the point of lowest expected accuracy among all that were queried.

    The last two axes of x are the picture, those before them its channels; plain features are a picture of one row.
    """

    member: int | None = None
    queries: int = 5000  # AutoAttack's, as is p_init; the paper has 10,000, and 0.05 (linf) or 0.1 (l2)
    p_init: float = 0.8  # the share of the picture that the first windows cover; halved as the queries go by
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("queries", self.queries)
        if not 0 < self.p_init <= 1:
            raise InputError(f"p_init is {self.p_init!r}; it must be a share of the picture, > 0 and at most 1")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.member is not None:
            check_member(self.member, members)

    def perturb(self, problem: Problem) -> Tensor:
        if self.member is not None:
            problem = problem.on_member(self.member)
        best = Best.clean(problem)
        index = (best.v > 0).nonzero()[:, 0]
        if len(index):
            self._search(problem, best, index)
        return best.x_adv

    def _search(self, problem: Problem, best: Best, index: Tensor) -> None:
        """Improve `best` on the samples `index`; those that reach 0 are dropped."""
        picture = Picture.of(problem.x)
        start, step = (stripes, recolour) if math.isinf(problem.ball.norm.p) else (tiles, move_bump)
        part, keys = problem.take(index), sample_keys(problem.x[index], self.seed)
        x = picture.planes(part.x)
        delta = part.ball.project(start(picture, x, part.ball, keys), x)
        lowest = self._ask(part, best, index, part.ball.move(x, delta))
        for k in range(1, self.queries):
            left = (best.v[index] > 0).nonzero()[:, 0]
            if not len(left):
                return
            if len(left) <= WORTH_COMPACTING * len(index):
                index, part, keys = index[left], part.take(left), keys[left]
                x, delta, lowest = x[left], delta[left], lowest[left]
            draws = uniform(keys, 5 + picture.channels, stream=FIRST_STREAM + k)
            changed = part.ball.project(step(picture, x, part.ball, delta, draws, self._share(k)), x)
            value = self._ask(part, best, index, part.ball.move(x, changed))
            # Paper: <. Here: <=, because a saturated or quantised member has plateaus, across which this drifts.
            keep = value <= lowest
            delta = torch.where(per_sample(keep, delta), changed, delta)
            lowest = torch.where(keep, value, lowest)

    def _share(self, k: int) -> float:
        """The paper's p at query k, its schedule of 10,000 queries stretched to `queries`."""
        return self.p_init / 2 ** sum(k * 10_000 / self.queries > at for at in HALVINGS)

    @staticmethod
    def _ask(part: Problem, best: Best, index: Tensor, planes: Tensor) -> Tensor:
        """The objective (n,) at these points, which are offered to `best`: one forward pass per member."""
        ensemble, y, u = part.ensemble, part.y, planes.reshape(part.x.shape)
        wrong = torch.zeros(len(ensemble), len(y), dtype=torch.bool, device=y.device)
        value = torch.zeros(len(y), dtype=working_dtype(u), device=y.device)
        for i in ensemble.order:
            logits = ensemble.members[i](u)
            wrong[i] = predictions_of(logits) != y
            clean = part.clean_logits[i].to(value.dtype)
            spread = (clean.amax(1) - clean.amin(1)).clamp(min=torch.finfo(value.dtype).tiny)
            height = margin(logits.to(value.dtype), y) / spread
            value += float(ensemble.alpha[i]) * torch.where(wrong[i], 0, height)
        best.offer(index, u, wrong, ensemble.score(~wrong))
        return value.nan_to_num(nan=math.inf)


@dataclass(frozen=True)
class Picture:
    """How samples are laid out: perturbations are (n, channels, height * width) while windows move over them."""

    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, x: Tensor) -> Picture:
        height, width = (1, 1, *x.shape[1:])[-2:]
        return cls(x[0].numel() // (height * width), height, width)

    def planes(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), self.channels, -1)

    def sides(self, share: float, least: int) -> tuple[int, int]:
        """Height and width of a window with this share of the area: a square where one fits."""
        area = share * self.height * self.width
        side = max(round(math.sqrt(area)), least)
        height, width = min(side, self.height), min(side, self.width)
        if height < side:
            width = min(max(round(area / height), width), self.width)
        elif width < side:
            height = min(max(round(area / width), height), self.height)
        return height, width

    def window(self, draws: Tensor, height: int, width: int) -> Tensor:
        """(n, channels, height * width) places of a window put down at random, from two draws per sample."""
        room = torch.tensor([self.height - height + 1, self.width - width + 1], device=draws.device)
        corner = (draws * room).long()
        rows = corner[:, :1] + torch.arange(height, device=draws.device)
        columns = corner[:, 1:] + torch.arange(width, device=draws.device)
        places = (rows[:, :, None] * self.width + columns[:, None]).flatten(1)
        return places[:, None].expand(-1, self.channels, -1)


def signs(draws: Tensor, like: Tensor) -> Tensor:
    return torch.where(draws < 0.5, -1.0, 1.0).to(like.dtype)


def stripes(picture: Picture, x: Tensor, ball: Ball, keys: Tensor) -> Tensor:
    """The start for linf: every column of every channel at -eps or eps."""
    radius = per_sample(ball.radius(x), x)
    draws = uniform(keys, picture.channels * picture.width, stream=FIRST_STREAM)
    columns = signs(draws, radius).reshape(len(x), picture.channels, 1, picture.width)
    return radius * columns.expand(-1, -1, picture.height, -1).flatten(2)


def recolour(picture: Picture, x: Tensor, ball: Ball, delta: Tensor, draws: Tensor, share: float) -> Tensor:
    """The step for linf: a window goes to -eps or eps, per channel; one that would change nothing is turned over."""
    where = picture.window(draws[:, :2], *picture.sides(share, least=1))
    centre, old = x.gather(2, where), delta.gather(2, where)
    colour = (per_sample(ball.radius(x), x) * signs(draws[:, 5:, None], delta)).expand_as(old)
    new, opposite = ball.project(colour, centre), ball.project(-colour, centre)
    idle = (new == old).flatten(1).all(1)
    return delta.scatter(2, where, torch.where(per_sample(idle, new), opposite, new))


def tiles(picture: Picture, x: Tensor, ball: Ball, keys: Tensor) -> Tensor:
    """The start for p < inf: a grid of bumps of random sign, scaled to norm eps."""
    radius = ball.radius(x)
    down, across = min(TILES, picture.height), min(TILES, picture.width)
    height, width = picture.height // down, picture.width // across
    bump = two_bumps(height, width, ball.norm.p).to(radius)
    sign = signs(uniform(keys, picture.channels * down * across, stream=FIRST_STREAM), radius)
    sign = sign.reshape(len(x), picture.channels, down, 1, across, 1)
    grid = (sign * bump[:, None]).reshape(len(x), picture.channels, down * height, across * width)
    above, before = (picture.height - down * height) // 2, (picture.width - across * width) // 2
    below, behind = picture.height - down * height - above, picture.width - across * width - before
    return ball.norm.scale_to(F.pad(grid, (before, behind, above, below)).flatten(2), radius)


def move_bump(picture: Picture, x: Tensor, ball: Ball, delta: Tensor, draws: Tensor, share: float) -> Tensor:
    """The step for p < inf: one window gives its norm to another, which grows a bump, per channel.

    What the box has cut off is handed out again, in equal parts to the channels.
    """
    norm, p = ball.norm, ball.norm.p
    height, width = picture.sides(share, least=3)
    height, width = min(height | 1, picture.height), min(width | 1, picture.width)  # odd: the bump has a middle
    here, there = picture.window(draws[:, :2], height, width), picture.window(draws[:, 2:4], height, width)
    bump = two_bumps(height, width, p).to(delta)
    turned = bump.T if height == width else bump
    bump = torch.where(draws[:, 4, None, None] < 0.5, bump, turned).flatten(1)[:, None]
    bump = signs(draws[:, 5:, None], delta) * bump

    radius = per_sample(ball.radius(x), x)
    unit = delta / torch.where(radius > 0, radius, 1)  # no power of a length in it can overflow
    old = unit.gather(2, here)
    rest = unit.scatter(2, here, 0)
    length, freed = lengths(old, ball), lengths(rest.gather(2, there), ball)
    unused = (1 - norm.norm(unit).pow(p)).clamp(min=0)
    room = (length.pow(p) + freed.pow(p) + unused[:, None] / picture.channels).pow(1 / p)
    new = bump + old / torch.where(length > 0, length, 1)[:, :, None]
    cancelled = lengths(new, ball) < 1e-3  # rounding is what would be left
    new = torch.where(cancelled[:, :, None], bump, new)
    new = norm.scale_to(new.flatten(0, 1), room.flatten()).reshape(new.shape)
    return radius * rest.scatter(2, there, 0).scatter(2, here, new)


def lengths(v: Tensor, ball: Ball) -> Tensor:
    """The norm of every channel, (n, channels)."""
    return ball.norm.norm(v.flatten(0, 1)).reshape(v.shape[:2])


def two_bumps(height: int, width: int, p: float) -> Tensor:
    """Eq. (2) of the paper, (height, width) of norm 1: a rise beside a hollow; the steeper, the smaller p."""
    if height > width:
        return two_bumps(width, height, p).T
    left = width // 2
    both = torch.cat([one_bump(height, left, p), -one_bump(height, width - left, p)], dim=1)
    return both / torch.linalg.vector_norm(both, p)


def one_bump(height: int, width: int, p: float) -> Tensor:
    """sum_{k=0}^{n-d} 1 / (n + 1 - k)^(4 / p) at distance d from the centre: the papers' 2 for l2 and 4 for l1."""
    n = max(height, width) // 2
    rows = (torch.arange(height) - height // 2).abs()
    columns = (torch.arange(width) - width // 2).abs()
    distance = torch.maximum(rows[:, None], columns)
    terms = torch.arange(n + 1, 0, -1, dtype=torch.float64).pow(-4 / p)
    heights = F.pad(terms.cumsum(0), (1, 0))  # of the first 0, 1, ... terms
    return heights[(n + 1 - distance).clamp(min=0)]
