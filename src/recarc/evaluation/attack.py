"""Attack one batch: the attack is given a copy of the problem, and what it returns is kept for the judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recarc.attacks.base import Outcome, name_of, outcome_of
from recarc.attacks.problem import Problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import AttackViolation
from recarc.evaluation.records import CLEAN


@dataclass(frozen=True)
class Attacker:
    """An attack, the ensemble as it may call it, and the precision of the inputs that it is given."""

    attack: Any
    ensemble: RandomizedEnsemble
    dtype: torch.dtype
    coarse: bool = False  # whether this ensemble rounds more than the judge's, or in another way


@dataclass(frozen=True)
class Attacked:
    """What an attack did to one batch; `problem` is what it was given: only the `samples` that can be attacked."""

    name: str
    samples: Tensor
    problem: Problem
    outcome: Outcome
    coarse: bool


def run_attack(attacker: Attacker, problem: Problem) -> Attacked:
    """Attack the samples of a problem, except those on which clean logits are NaN: that member is wrong there.

    What a member gives that is never drawn does not matter.
    """
    samples = (problem.clean_predictions[problem.ensemble.order] >= 0).all(0).nonzero()[:, 0]
    given = _copy_for(attacker, problem.take(samples))
    name = name_of(attacker.attack)
    outcome = outcome_of(attacker.attack, given)
    _check(outcome, name, len(problem.ensemble))
    return Attacked(name, samples, given, outcome, attacker.coarse)


def _copy_for(attacker: Attacker, problem: Problem) -> Problem:
    """A copy of the problem for the attack, with the judge's clean logits where both compute them alike."""
    pairs = zip(problem.ensemble.members, attacker.ensemble.members, strict=True)
    alike = attacker.dtype == problem.x.dtype and all(inner(ours) is inner(theirs) for ours, theirs in pairs)
    x, y = problem.x.to(attacker.dtype, copy=True), problem.y.clone()
    copy = Problem(attacker.ensemble, x, y, problem.ball).with_clean_logits(problem.clean_logits if alike else None)
    if len(copy):  # many models cannot take an empty batch
        copy.check_clean_logits()
    return copy


def inner(member: Any) -> Any:
    """The user's model inside a tiled member."""
    return getattr(member, "member", member)


def _check(outcome: Outcome, name: str, members: int) -> None:
    """The parts of an outcome must fit together; the judge looks at the points themselves."""
    weights = [float(p) for p, _ in outcome.mixture]
    if not weights or min(weights) < 0 or abs(sum(weights) - 1) > 1e-9:
        raise AttackViolation(f"{name} returned a mixture with probabilities {weights}; they must sum to 1")
    names = [CLEAN, *(stage.name for stage in outcome.stages)]
    if len(set(names)) < len(names):
        raise AttackViolation(f"{name} returned stages {names[1:]}; names must be unique, other than clean")
    if outcome.stages and len(weights) > 1:
        raise AttackViolation(f"{name} returned stages with {len(weights)} answers; they need a single one")
    if outcome.witnesses is not None and len(outcome.witnesses) != members:
        raise AttackViolation(f"{name} returned {len(outcome.witnesses)} witnesses for {members} members; one each")
    if outcome.challenged is not None and (outcome.witnesses is None or len(outcome.challenged) != members):
        raise AttackViolation(f"{name} returned a challenge that does not fit its witnesses: one row for each member")
