"""Attacks made of attacks: the worst of several, restarts, and the attacker who draws a member too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recarc.attacks.base import Attack, Outcome, Stage, check_count, outcome_of, points_of
from recarc.attacks.problem import Best, Problem, frozen_problem
from recarc.attacks.unmasking import Masked
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.geometry import Ball
from recarc.randomness import sample_keys, uniform


@dataclass(frozen=True)
class WorstOf(Attack):
    """Per sample the x_adv of lowest expected accuracy, the first on ties; never worse than clean.

    Each attack, an `Attack` or a callable of (ensemble, x, y, ball), runs only on the samples that still have something
    to lose. If some of them are staged or show witnesses, so does the outcome: the stages are those of the first
    staged attack, and a member's witness comes from whichever attack fooled it.
    """

    attacks: Sequence[Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", tuple(self.attacks))
        if not self.attacks:
            raise InputError("WorstOf needs at least one attack")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        for attack in self.attacks:
            if hasattr(attack, "check_fit"):
                attack.check_fit(members, classes, ball)

    def adapted(self, ensemble: RandomizedEnsemble, samples: int, masked: Masked) -> WorstOf:
        return WorstOf([adapted(attack, ensemble, samples, masked) for attack in self.attacks])

    def perturb(self, problem: Problem) -> Tensor:
        best = Best.clean(problem)
        for attack in self.attacks:
            left = (best.v > 0).nonzero()[:, 0]
            if not len(left):
                break
            best.consider(problem, points_of(attack, problem.take(left)), left)
        return best.x_adv

    def outcome(self, problem: Problem) -> Outcome:
        if not _shows_more(self):
            return super().outcome(problem)
        best = Best.clean(problem, witnesses=True)
        stages: tuple[Stage, ...] = ()
        witnesses, challenged = False, None
        for attack in self.attacks:
            # Stages and witnesses are those of all samples, so the attacks that show them run on all at first.
            everyone = _shows_more(attack) and not (stages and witnesses)
            index = (best.v >= 0 if everyone else best.v > 0).nonzero()[:, 0]
            if not len(index) and not everyone:
                continue
            part = problem.take(index)
            outcome = outcome_of(attack, part) if _shows_more(attack) else Outcome([])
            x_adv = outcome.mixture[0][1] if len(outcome.mixture) == 1 else points_of(attack, part)
            if len(index):
                best.consider(problem, x_adv, index)
            stages = stages or tuple(outcome.stages)
            if everyone and challenged is None:  # pairs that fall to a later attack count as fallen to this challenge
                challenged = outcome.challenged
            if outcome.witnesses is not None:
                witnesses = True
                best.keep_witnesses(problem, index, outcome.witnesses)
        return Outcome([(1.0, best.x_adv)], stages, best.witnesses if witnesses else None, challenged)


@dataclass(frozen=True)
class Restarts(Attack):
    """n runs of an attack, each from another random point; the worst is kept per sample.

    keep="accuracy" keeps the lowest expected accuracy. keep="loss" keeps the highest objective of the attack
    itself: the paper's "+RR", which can do worse than a single run.
    """

    attack: Attack
    n: int = 10
    keep: str = "accuracy"

    def __post_init__(self) -> None:
        check_count("n", self.n)
        if self.keep not in ("accuracy", "loss"):
            raise unknown("keep", self.keep, ("accuracy", "loss"))
        if not hasattr(self.attack, "seed") or getattr(self.attack, "random_init", True) is False:
            hint = "set random_init=True" if hasattr(self.attack, "seed") else "it is deterministic"
            raise InputError(f"restarting {type(self.attack).__name__} would repeat itself: {hint}")
        if getattr(self.attack, "orders", 2) == 1:
            raise InputError(f"restarting {type(self.attack).__name__}(orders=1) would repeat itself: set orders=2")
        if self.keep == "loss" and not hasattr(self.attack, "objective"):
            raise InputError(f"{type(self.attack).__name__} has no objective of its own; use keep='accuracy'")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        self.attack.check_fit(members, classes, ball)

    def adapted(self, ensemble: RandomizedEnsemble, samples: int, masked: Masked) -> Restarts:
        return replace(self, attack=adapted(self.attack, ensemble, samples, masked))

    def seeded(self) -> list[Attack]:
        attack: Any = self.attack
        stride = getattr(attack, "orders", 1)  # the seeds that one run takes
        return [replace(attack, seed=attack.seed + stride * r) for r in range(self.n)]

    def outcome(self, problem: Problem) -> Outcome:
        return WorstOf(self.seeded()).outcome(problem) if _shows_more(self) else super().outcome(problem)

    def perturb(self, problem: Problem) -> Tensor:
        if self.keep == "accuracy":
            return WorstOf(self.seeded()).perturb(problem)
        objective = self.attack.objective  # type: ignore[attr-defined]
        x_adv, highest = problem.x.clone(), torch.full((len(problem),), -torch.inf, device=problem.x.device)
        for attack in self.seeded():
            candidate = attack.perturb(problem)
            value = objective(problem.ensemble, candidate, problem.y).float()
            better = value > highest
            x_adv[better], highest[better] = candidate[better], value[better]
        return x_adv


@dataclass(frozen=True)
class RandomAttacker(Attack):
    """The paper's randomized "PGD" and "C&W": attack member j with probability alpha_j.

    The call draws j per sample; `outcome` and `expected_accuracy` give the exact expectation over both draws.
    """

    attack: Attack
    seed: int = 0

    def __post_init__(self) -> None:
        if not hasattr(self.attack, "member"):
            raise InputError(f"{type(self.attack).__name__} does not attack a single member; use e.g. PGD()")

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        self.attack.check_fit(members, classes, ball)

    def on_member(self, j: int) -> Attack:
        attack: Any = self.attack
        return replace(attack, member=j)

    def perturb(self, problem: Problem) -> Tensor:
        ensemble, x = problem.ensemble, problem.x
        drawn = uniform(sample_keys(x, self.seed), 1, stream=3)
        member = (drawn > ensemble.alpha.to(x.device).cumsum(0)[:-1]).sum(1)
        x_adv = x.clone()
        for j in ensemble.order:
            chosen = (member == j).nonzero()[:, 0]
            if len(chosen):
                x_adv[chosen] = self.on_member(j).perturb(problem.take(chosen))
        return x_adv

    def outcome(self, problem: Problem) -> Outcome:
        alpha = problem.ensemble.alpha.tolist()
        return Outcome([(alpha[j], self.on_member(j).run_on(problem)) for j in problem.ensemble.order])

    def expected_accuracy(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        """L-bar = sum_j alpha_j L(x + delta_j), (B,) float64: the exact value of this attacker."""
        with frozen_problem(ensemble, x, y, ball) as problem:
            terms = [p * problem.expected_accuracy(x_adv) for p, x_adv in self.outcome(problem).mixture]
        return torch.stack(terms).sum(0)


def adapted(attack: Any, ensemble: RandomizedEnsemble, samples: int, masked: Masked) -> Any:
    """The attack for a run on so many samples, in which these signals were measured; most have nothing to adapt."""
    return attack.adapted(ensemble, samples, masked) if hasattr(attack, "adapted") else attack


def _shows_more(attack: Any) -> bool:
    """Whether the outcome of an attack has stages or witnesses to show, and not just its answer."""
    if isinstance(attack, WorstOf):
        return any(map(_shows_more, attack.attacks))
    if isinstance(attack, Restarts):
        return attack.keep == "accuracy" and _shows_more(attack.attack)
    if isinstance(attack, RandomAttacker):
        return False
    return hasattr(attack, "outcome") and getattr(type(attack), "outcome", None) is not Attack.outcome
