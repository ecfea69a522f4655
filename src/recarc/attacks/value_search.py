"""Search value by value, without gradients: for p = 1, where a change of one value is a move that gradients may hide.

A member that is flat where values are 0, such as one behind a contrast curve, has no gradient at most of a digit's
values, although to change a single one of these all the way is the best that an l1 ball allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_count
from recarc.attacks.problem import Best, Problem
from recarc.attacks.square import Square
from recarc.geometry import working_dtype
from recarc.randomness import sample_keys, uniform

FIRST_STREAM = 10_000  # of a sample's random numbers, above those of Square
AT_ONCE = 2**24  # values of all the points that are tried at once
POINTS = 1024  # that are tried at once, or twice as many as there are samples
NOTHING = 1e-6  # left of eps


@dataclass(frozen=True)
class ValueSearch(Attack):
    """In each round, move random values to either end of what eps and the box leave, and keep the best of them.

    Of the values that lower the margin, a round keeps as many as spend its share of eps. Meant for balls with p = 1.
    """

    member: int | None = None
    values: int = 64  # tried in each round
    rounds: int = 8
    choice: int = 0  # the first round moves the best value, or the one after that many better ones
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("values", self.values)
        check_count("rounds", self.rounds)

    def perturb(self, problem: Problem) -> Tensor:
        if self.member is not None:
            problem = problem.on_member(self.member)
        best = Best.clean(problem)
        index = (best.v > 0).nonzero()[:, 0]
        point = problem.x[index].to(working_dtype(problem.x))
        for k in range(self.rounds):
            left = (best.v[index] > 0).nonzero()[:, 0]
            index, point = index[left], point[left]
            if not len(index):
                break
            point = self._round(problem.take(index), best, index, point, k)
        return best.x_adv

    def _round(self, part: Problem, best: Best, index: Tensor, point: Tensor, k: int) -> Tensor:
        """The points after round k, from those of the round before; all that counts is offered to `best`."""
        keys, n = sample_keys(part.x, self.seed), len(index)
        left = (part.ball.radius(part.x) - part.ball.norm.norm(point - part.x)).clamp(min=0)
        flat = point.flatten(1)
        count = min(self.values, flat.shape[1])
        places = uniform(keys, flat.shape[1], stream=FIRST_STREAM + k).topk(count).indices
        old = flat.gather(1, places)
        low, high = part.ball.box or (-torch.inf, torch.inf)
        ends = torch.stack([(old - left[:, None]).clamp(min=low), (old + left[:, None]).clamp(max=high)], dim=2)

        before = self._asked(part, flat[:, None].reshape(n, 1, -1))[:, 0]
        margins = torch.empty_like(ends)
        size = max(1, min(AT_ONCE // flat.shape[1], max(POINTS, 2 * n)) // (2 * n))
        for some in range(0, count, size):
            chosen, width = places[:, some : some + size], min(size, count - some)
            tried = flat[:, None, None].repeat(1, width, 2, 1)
            tried.scatter_(3, chosen[:, :, None, None].expand(-1, -1, 2, 1), ends[:, some : some + size, :, None])
            margins[:, some : some + size] = self._asked(part, tried.flatten(1, 2)).unflatten(1, (width, 2))

        lowest, end = margins.min(2)
        new = ends.gather(2, end[:, :, None])[:, :, 0]
        order = torch.where((new - old).abs() > NOTHING, lowest, torch.inf).argsort(1)
        spent = (new - old).abs().gather(1, order).cumsum(1)
        share = left / (self.rounds - k)
        rank = torch.arange(count, device=order.device)
        chosen = (rank == min(self.choice if k == 0 else 0, count - 1)).expand(n, -1)
        more = (spent <= share[:, None]) & (lowest.gather(1, order) < before[:, None]) & (k > 0 or self.choice == 0)
        single, kept = (torch.zeros_like(which).scatter(1, order, which) for which in (chosen, chosen | more))
        both = [flat.scatter(1, places, torch.where(which, new, old)) for which in (single, kept)]
        candidates = [part.ball.move(part.x, part.ball.project(u.view_as(point) - part.x, part.x)) for u in both]
        ended = torch.stack([Square._ask(part, best, index, u) for u in candidates])
        first = (ended[1] < ended[0])[:, None]
        return torch.where(first, candidates[1].flatten(1), candidates[0].flatten(1)).view_as(point).to(point.dtype)

    @staticmethod
    def _asked(part: Problem, points: Tensor) -> Tensor:
        """(n, K) the objective at these points (n, K, d), which are offered to nobody: rounding may leave the ball."""
        rows = torch.arange(len(points), device=points.device).repeat_interleave(points.shape[1])
        copies = part.take(rows)
        u = points.flatten(0, 1).view(len(rows), *part.x.shape[1:]).to(part.x.dtype)
        return Square._ask(copies, Best.clean(copies), torch.arange(len(rows), device=u.device), u).view(
            len(points), -1
        )
