"""Carlini and Wagner's attack, as the paper adapts it to randomized ensembles (Appendix C.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recarc.attacks.base import Attack, check_at_least, check_count, differentiate
from recarc.attacks.pgd import check_member
from recarc.attacks.problem import Problem
from recarc.attacks.registry import register
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.geometry import Ball, per_sample, total, working_dtype
from recarc.losses import margin

TANH_INSIDE = 1 - 1e-6  # arctanh of the box's edge is infinite


@register("cw", label="C&W", help="Carlini and Wagner, adapted to the expectation")
@dataclass(frozen=True)
class CarliniWagner(Attack):
    """min ||delta||_2^2 + c h(x + delta) with delta = (tanh(theta) + 1)/2 - x, then projection onto the ball.

    h is the margin clipped at -kappa: of one member (`member=0` is C&W-1), or with member=None its expectation
    (expectation="loss", AC&W) or that of the expected logits (expectation="logits", AC&W-L). The paper's random
    attacker "C&W" is `RandomAttacker(CarliniWagner(member=0))`. Defaults are the paper's.
    """

    member: int | None = None
    expectation: str = "loss"
    steps: int = 50
    search_steps: int = 9
    initial_c: float = 1e-3
    learning_rate: float = 1e-2
    kappa: float = 0.0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("search_steps", self.search_steps)
        check_at_least("kappa", self.kappa, 0)
        if not (self.initial_c > 0 and self.learning_rate > 0):
            raise InputError("initial_c and learning_rate must be > 0 (the paper: 1e-3 and 1e-2)")
        if self.expectation not in ("loss", "logits"):
            raise unknown("expectation", self.expectation, ("loss", "logits"))

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        if self.member is not None:
            check_member(self.member, members)
        if ball.box is None:
            raise InputError("CarliniWagner works inside a pixel box; give the ball one, e.g. box=(0, 1)")

    def cost(self, ensemble: RandomizedEnsemble, u: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """h, and the margin that must fall to -kappa for success, each (B,)."""
        if self.expectation == "logits":
            raw = margin(ensemble.expected_logits(u), y).to(working_dtype(u))
            return raw.clamp(min=-self.kappa), raw
        margins = [(float(ensemble.alpha[i]), margin(ensemble.members[i](u), y)) for i in ensemble.order]
        zero = torch.zeros(len(u), dtype=working_dtype(u), device=u.device)
        h = sum((a * m.clamp(min=-self.kappa) for a, m in margins), zero)
        # Paper: AC&W minimises E[h], each member's h clipped at -kappa; what counts as success is left to Foolbox.
        # Here: E[h] at its minimum -kappa, which is every member fooled, because C&W ends where h = -kappa. The mean
        # of the unclipped margins would call it a success to drive one weak member deep and fool nobody else.
        return h, torch.stack([m for _, m in margins]).amax(0).to(zero.dtype)

    def perturb(self, problem: Problem) -> Tensor:
        if self.member is not None:
            problem = problem.on_member(self.member)
        x, ball = problem.x, problem.ball
        wide = x.to(working_dtype(x))
        c = torch.full((len(x),), self.initial_c, device=x.device, dtype=wide.dtype)
        low, high = torch.zeros_like(c), torch.full_like(c, torch.inf)
        shortest, lowest = torch.full_like(c, torch.inf), torch.full_like(c, torch.inf)
        fooled_by, closest = wide.clone(), wide.clone()
        for _ in range(self.search_steps):
            success = torch.zeros_like(c, dtype=torch.bool)
            for u, h, highest in self._descend(problem, wide, c):
                length = total((u - wide).square()).sqrt()
                fools = (highest <= -self.kappa) & (highest < 0)
                success |= fools
                better = fools & (length < shortest)
                shortest = torch.where(better, length, shortest)
                fooled_by = torch.where(per_sample(better, u), u, fooled_by)
                nearer = h < lowest
                lowest = torch.where(nearer, h, lowest)
                closest = torch.where(per_sample(nearer, u), u, closest)
            low, high = torch.where(success, low, c), torch.where(success, c, high)
            c = torch.where(high.isfinite(), (low + high) / 2, c * 10)
        # Never a success: the point of smallest h is the best there is to project.
        best = torch.where(per_sample(shortest.isfinite(), wide), fooled_by, closest)
        return ball.move(x, ball.project(best - wide, x))

    def _descend(self, problem: Problem, wide: Tensor, c: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Adam on theta with one c per sample; yields every iterate with its `cost`."""
        assert problem.ball.box is not None
        low, width = problem.ball.box[0], problem.ball.box[1] - problem.ball.box[0]
        theta = torch.atanh(((wide - low) / width * 2 - 1).clamp(-1, 1) * TANH_INSIDE)
        theta.requires_grad_()
        adam = torch.optim.Adam([theta], lr=self.learning_rate)
        for _ in range(self.steps):
            with torch.enable_grad():
                u = low + width * (torch.tanh(theta) + 1) / 2
                h, highest = self.cost(problem.ensemble, u.to(problem.x.dtype), problem.y)
                objective = (u - wide).square().flatten(1).sum(1) + c * h
                theta.grad = differentiate(objective.sum(), theta)
            yield u.detach(), h.detach(), highest.detach()
            adam.step()
