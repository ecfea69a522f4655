"""Tight: a staged attack that spends its effort on the samples that are still above their own floor."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recarc.attacks.adaptive_pgd import AdaptivePGD
from recarc.attacks.arc import ARC
from recarc.attacks.autopgd import AutoPGD
from recarc.attacks.base import Attack, Outcome, Stage, check_count, name_of, points_of
from recarc.attacks.challenge import CHALLENGED, Challenge
from recarc.attacks.climb import Climb
from recarc.attacks.lattice_climber import LatticeClimber
from recarc.attacks.problem import Best, Problem
from recarc.attacks.registry import register
from recarc.attacks.square import Square
from recarc.attacks.unmasking import Masked, misleading, unmasked
from recarc.attacks.value_search import ValueSearch
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.geometry import Ball

EXTRA = "extra_"  # begins the names of the stages that are attacks of the user's own
LONGER = 5  # times the steps of the challenge for p = 1
VOTE_STEPS, VOTE_ROUNDS = 50, 2  # of AutoPGD on a vote as a whole; times the rounds of Climb through its members
SEARCH = 500  # queries; on the plateaus of a masked member, short searches find more than a long one


@dataclass(frozen=True)
class Effort:
    """How much each stage of `Tight` does."""

    planes: int  # ARC's G (never more than there are)
    members: tuple[AutoPGD | ValueSearch, ...]  # against each member alone
    corrected_steps: int
    climb: Climb
    lattice_steps: int = 0  # of the lattice climber, which ends close to Climb at a fraction of its gradients
    queries: int = 0  # of Square, against each member alone
    searches: int = 1  # of SEARCH queries against a member whose gradients mislead, each with another seed
    challenge: Challenge | None = None
    sparse: tuple[AutoPGD | ValueSearch, ...] = ()  # in place of `members` for p = 1, where much depends on the start

    def for_ball(self, ball: Ball) -> Effort:
        """For p = 1 with longer attacks on the members, and a challenge that is longer still."""
        if not ball.norm.sparse or not self.sparse:
            return self
        challenge = None if self.challenge is None else self.challenge.longer(LONGER)
        return replace(self, members=self.sparse, challenge=challenge)


def _sparse(steps: int, targeted: AutoPGD, *searches: ValueSearch) -> tuple[AutoPGD | ValueSearch, ...]:
    """For p = 1: two losses in turn, each from several starts; then searches value by value, without gradients.

    Every run finds pairs that the others missed.
    """
    ce, margin = AutoPGD(steps=steps), AutoPGD(steps=steps, loss="margin")
    again = (replace(loss, seed=r) for r in (1, 2, 3) for loss in (ce, margin))
    return ce, margin, targeted, *again, *searches


PRESETS = {
    "quick": Effort(4, (AutoPGD(steps=20),), 3, Climb(steps=20, orders=1)),
    "standard": Effort(
        4,
        (AutoPGD(steps=10), AutoPGD(steps=20, loss="dlr_targeted", scout=4)),
        5,
        Climb(steps=20, orders=2, rounds=3, round_steps=50, targets=8),
        lattice_steps=20,
        queries=30,
        searches=4,
        challenge=Challenge(steps=40, queries=100, smooth_steps=10, most=0.15, allowed=0.002),
        sparse=_sparse(100, AutoPGD(steps=100, loss="dlr_targeted", scout=20, finalists=3), ValueSearch()),
    ),
    "thorough": Effort(
        9,
        (AutoPGD(steps=100), AutoPGD(steps=100, loss="dlr_targeted", targets=9)),
        20,
        Climb(steps=50, orders=4, rounds=4, round_steps=150, targets=9),
        lattice_steps=50,
        queries=500,
        searches=10,
        challenge=Challenge(steps=200, queries=2000, smooth_steps=100, most=1.0, allowed=0.001),
        sparse=_sparse(
            200,
            AutoPGD(steps=200, loss="dlr_targeted"),
            *(ValueSearch(values=128, choice=choice) for choice in range(2)),
        ),
    ),
}


@register("tight", label="Tight", help="staged, down to the floor (presets quick, standard, thorough)")
@dataclass(frozen=True)
class Tight(Attack):
    """AdaptivePGD, ARC -> AutoPGD, Square on each member -> corrected ARC, lattice climber, Climb -> challenge.

    A vote is attacked through its members first; where too few of them fell to lose it, by its gradient alone.
    A sample leaves as soon as it is at its floor: the alpha of the members that nothing fooled, not even alone. At the
    end a random few of the pairs that make the floor are challenged (`recarc.attacks.challenge`; not in quick).
    Its outcome shows AdaptivePGD and ARC by themselves, then the best so far after each later stage; each round of
    Climb by itself, from the best before the first one, so that one can tell what another round would bring.
    """

    preset: str = "standard"
    steps: int = 20  # K of AdaptivePGD and ARC, the paper's for CIFAR-10
    seed: int = 0
    challenge: float | None = None  # the share of those pairs; None: as an evaluation needs, by its number of samples
    masked: Masked | None = None  # signals that an evaluation measured: from the third stage on, Tight reacts to them
    extra: Sequence[Any] | None = None  # attacks of your own, run on every sample after ARC, each a stage of its own

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        if self.preset not in PRESETS:
            raise unknown("preset", self.preset, PRESETS)
        if self.challenge is not None and not 0 <= self.challenge <= 1:
            raise InputError(f"challenge is {self.challenge!r}; it must be a share of the pairs, from 0 to 1")
        object.__setattr__(self, "extra", _checked(self.extra))

    def check_fit(self, members: int, classes: int, ball: Ball) -> None:
        for attack in self.extra or ():
            if hasattr(attack, "check_fit"):
                attack.check_fit(members, classes, ball)

    def adapted(self, ensemble: RandomizedEnsemble, samples: int, masked: Masked) -> Tight:
        """This attack for a run on so many samples (the fewer, the more pairs are challenged), with these signals."""
        challenge, share = PRESETS[self.preset].challenge, self.challenge
        if challenge is not None and share is None:
            share = challenge.share(samples, float(ensemble.alpha.max()))
        return replace(self, challenge=share, masked=self.masked or tuple(masked) or None)

    def plain_stages(self, classes: int | None = None) -> dict[str, Any]:
        """The stages that are attacks by themselves; with few classes ARC has fewer planes."""
        planes = PRESETS[self.preset].planes
        arc = ARC(steps=self.steps, planes=planes if classes is None else min(planes, classes - 1))
        stages = {"adaptive_pgd": AdaptivePGD(steps=self.steps, seed=self.seed), "arc": arc}
        return stages | dict(zip(_stage_names(self.extra or ()), self.extra or ()))

    def perturb(self, problem: Problem) -> Tensor:
        best = Best.clean(problem)
        for _ in self._stages(problem, best):
            pass
        self._challenge(problem, best)
        return best.x_adv

    def outcome(self, problem: Problem) -> Outcome:
        best = Best.clean(problem, witnesses=True)
        stages = list(self._stages(problem, best))
        challenged = self._challenge(problem, best)
        if challenged is not None:
            stages.append(Stage("challenge", best.x_adv))
        return Outcome([(1.0, best.x_adv)], stages, best.witnesses, challenged)

    def _stages(self, problem: Problem, best: Best) -> Iterator[Stage]:
        """Run the stages one by one, each improving `best`; yields where each one ended."""
        effort = PRESETS[self.preset].for_ball(problem.ball)
        for name, plain in self.plain_stages(problem.classes).items():
            x_adv = points_of(plain, problem)
            best.consider(problem, x_adv)
            yield Stage(name, x_adv, alone=True)

        safe = yield from self._apart(effort, problem, best)
        problem, blind = unmasked(problem, self.masked or ()), misleading(self.masked or ())
        for i in problem.ensemble.order:
            self._alone(effort, problem, best, i)
        yield Stage("members", best.x_adv.clone())

        if effort.queries or blind:
            fresh = [Square(queries=SEARCH, seed=self.seed + r) for r in range(effort.searches)]
            usual = [Square(queries=effort.queries, seed=self.seed)] if effort.queries else []
            for i in problem.ensemble.order:
                for search in fresh if i in blind else usual:
                    standing = (~best.ever_wrong[i] & ~safe[i]).nonzero()[:, 0]
                    _run(replace(search, member=i), problem, best, standing)
            for search in fresh if blind else ():
                _run(search, problem, best, _above_floor(problem.ensemble, best))
            yield Stage("square", best.x_adv.clone())

        planes = min(effort.planes, problem.classes - 1)
        corrected = ARC(steps=effort.corrected_steps, planes=planes, variant="corrected")
        _run(corrected, problem, best, _above_floor(problem.ensemble, best))
        yield Stage("corrected_arc", best.x_adv.clone())
        if effort.lattice_steps:
            _run(LatticeClimber(steps=effort.lattice_steps), problem, best, _above_floor(problem.ensemble, best))
            yield Stage("lattice_climber", best.x_adv.clone())

        self._climb(problem, best, _above_floor(problem.ensemble, best))
        yield Stage("climb", best.x_adv.clone())
        if effort.climb.rounds:
            yield from self._rounds(problem, best)

    def _alone(self, effort: Effort, problem: Problem, best: Best, i: int, among: Tensor | None = None) -> None:
        """Fool member i alone, on the samples `among` (B,) or on all."""
        for attack in effort.members:
            if isinstance(attack, AutoPGD):
                attack = replace(attack, loss=_loss_for(attack.loss, problem.classes))
            standing = (~best.ever_wrong[i] & (True if among is None else among)).nonzero()[:, 0]
            _run(replace(attack, member=i, seed=self.seed + attack.seed), problem, best, standing)

    def _apart(self, effort: Effort, problem: Problem, best: Best) -> Generator[Stage, None, Tensor]:
        """Where a member is a vote: fool each of its voters alone, then as many as lose the vote, then the vote itself.

        Returns (M, B) the votes that are safe as far as this can tell: too few of their voters fell, and no signal says
        that gradients mislead. Searches without gradients leave them alone, up to the challenge.
        """
        safe = torch.zeros_like(best.wrong)
        votes = {i: apart for i in problem.ensemble.order if (apart := problem.apart(i)) is not None}
        climb = replace(effort.climb, seed=self.seed, rounds=VOTE_ROUNDS * max(effort.climb.rounds, 1))
        for i, apart in votes.items():
            standing = (~best.ever_wrong[i]).nonzero()[:, 0]
            if not len(standing):
                continue
            voters, count = apart.take(standing), len(apart.ensemble)
            fooled = Best.clean(voters, witnesses=True)
            for j in range(count):
                withstood = (~fooled.ever_wrong[:j]).sum(0)
                self._alone(effort, voters, fooled, j, 2 * withstood <= count)  # else the vote is safe already
            assert fooled.witnesses is not None
            for x_adv in fooled.witnesses:
                best.consider(problem, x_adv, standing)
            enough = 2 * fooled.ever_wrong.sum(0) >= count
            safe[i, standing] = ~enough & (i not in dict(self.masked or ()))
            index = (enough & ~best.ever_wrong[i, standing]).nonzero()[:, 0]
            if len(index):
                for x_adv in climb.against_vote(voters.take(index), fooled.take(index)):
                    best.consider(problem, x_adv, standing[index])
            whole = AutoPGD(steps=VOTE_STEPS, member=i, seed=self.seed)
            _run(whole, problem, best, (~best.ever_wrong[i]).nonzero()[:, 0])
        if votes:
            yield Stage("members_apart", best.x_adv.clone())
        return safe

    def _rounds(self, problem: Problem, best: Best) -> Iterator[Stage]:
        """What each round of Climb makes of the best points so far, all from the same ones; then the best of all."""
        climb, index = replace(PRESETS[self.preset].climb, seed=self.seed), _above_floor(problem.ensemble, best)
        before, part = best.x_adv.clone(), best.take(index)
        rounds = climb.search_in_rounds(problem.take(index), part, ~part.ever_wrong) if len(index) else []
        for r in range(climb.rounds):
            ended = before
            if rounds:
                ended = before.index_copy(0, index, rounds[r].x_adv)
                best.merge(problem, index, rounds[r])
            yield Stage(f"round_{r + 1}", ended, alone=True)
        yield Stage("restarts", best.x_adv.clone())

    def _climb(self, problem: Problem, best: Best, index: Tensor) -> None:
        """Climb on the samples `index`, towards the members that were fooled alone."""
        if len(index):
            part = best.take(index)
            climb = replace(PRESETS[self.preset].climb, seed=self.seed)
            climb.improve(problem.take(index), part, hopeless=~part.ever_wrong)
            best.put(index, part)

    def _challenge(self, problem: Problem, best: Best) -> Tensor | None:
        """Challenge a random few of the pairs that make the floor; where one falls, climb again. Which: (M, B)."""
        challenge = PRESETS[self.preset].for_ball(problem.ball).challenge
        if challenge is None:
            return None
        if not len(problem):
            return torch.zeros_like(best.wrong, dtype=torch.int8)
        problem = unmasked(problem, self.masked or ())
        share = challenge.most if self.challenge is None else self.challenge
        status = challenge.run(problem, best, share, self.seed)
        fell = ((status == CHALLENGED) & best.ever_wrong).any(0) & (best.v > problem.ensemble.score(~best.ever_wrong))
        self._climb(problem, best, fell.nonzero()[:, 0])
        return status


def _checked(extra: Sequence[Any] | None) -> tuple[Any, ...] | None:
    """A tuple of attacks; None if there are none, as a run without them records it."""
    attacks = (extra,) if callable(extra) or isinstance(extra, str) else tuple(extra or ())
    for attack in attacks:
        if isinstance(attack, type) or not callable(attack):
            raise InputError(f"extra holds {attack!r}; expected attacks, such as Tight(extra=[MyAttack()])")
    return attacks or None


def _stage_names(extra: Sequence[Any]) -> list[str]:
    """extra_MyAttack, and extra_MyAttack_2 for a second one."""
    names = [EXTRA + name_of(attack) for attack in extra]
    return [f"{n}_{names[:k].count(n) + 1}" if n in names[:k] else n for k, n in enumerate(names)]


def _run(attack: Attack, problem: Problem, best: Best, index: Tensor) -> None:
    """Offer what an attack finds on the samples `index`."""
    if len(index):
        best.consider(problem, attack.perturb(problem.take(index)), index)


def _above_floor(ensemble: RandomizedEnsemble, best: Best) -> Tensor:
    return (best.v > ensemble.score(~best.ever_wrong)).nonzero()[:, 0]


def _loss_for(loss: str, classes: int) -> str:
    """The targeted DLR loss needs four classes; with fewer, the margin has no scale to lose."""
    return "margin" if loss == "dlr_targeted" and classes < 4 else loss
