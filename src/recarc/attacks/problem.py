"""What an attack is given, and the best that it has found: shared by every attack and by the judge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from recarc.combined import Divisible, Member
from recarc.ensemble import RandomizedEnsemble, as_ensemble, frozen, predictions_of
from recarc.errors import InputError
from recarc.geometry import Ball
from recarc.inputs import check_finite, check_labels, check_x, check_y
from recarc.runtime import out_of_memory


@dataclass(frozen=True, eq=False)
class Problem:
    """Fool the members of an ensemble on inputs x (B, ...) with labels y (B,), within a ball around each input.

    The clean logits are computed on first use, once, and follow into every part that is taken.
    """

    ensemble: RandomizedEnsemble
    x: Tensor
    y: Tensor
    ball: Ball

    @classmethod
    def checked(cls, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Problem:
        """Refuse bad data with one clear line, before any attack starts."""
        check_x(x)
        check_y(y, x)
        device = ensemble.device_of_members()
        if device is not None and (x.device != device or y.device != device):
            raise InputError(f"x is on {x.device}, y on {y.device}, the members on {device}; move them to one device")
        check_ball(ball)
        check_finite(x)
        ball.check(x)
        problem = cls(ensemble, x, y.long(), ball)
        if len(x):
            problem.check_clean_logits()
            check_labels(y, problem.classes)
        return problem

    def check_clean_logits(self) -> None:
        """Refuse members that may be drawn and give NaN at x."""
        drawn = self.ensemble.alpha.to(self.x.device) > 0
        bad = self.clean_logits.isnan().any(-1) & drawn[:, None]
        if bool(bad.any()):
            i = int(bad.any(1).nonzero()[0])
            raise InputError(f"member {i} gives NaN logits on {int(bad[i].sum())} of {len(self)} clean samples")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor) -> Problem:
        """The problem of these samples only."""
        logits = self._known_logits
        part = Problem(self.ensemble, self.x[index], self.y[index], self.ball.take(index))
        return part.with_clean_logits(None if logits is None else logits[:, index])

    def on_member(self, i: int) -> Problem:
        """The problem of fooling member i alone."""
        logits = self._known_logits
        part = Problem(RandomizedEnsemble([self.ensemble.members[i]]), self.x, self.y, self.ball)
        return part.with_clean_logits(None if logits is None else logits[i : i + 1])

    def apart(self, i: int) -> Problem | None:
        """The problem of fooling those whose votes member i counts, one of them drawn; None if it is no vote."""
        member = self.ensemble.members[i]
        members = member.voters() if isinstance(member, Divisible) else ()
        return Problem(RandomizedEnsemble(members), self.x, self.y, self.ball) if members else None

    @cached_property
    def clean_logits(self) -> Tensor:
        """(M, B, C) logits at x."""
        with torch.no_grad():
            return _first_logits(self.ensemble, self.x)

    @property
    def _known_logits(self) -> Tensor | None:
        return vars(self).get("clean_logits")

    def with_clean_logits(self, clean_logits: Tensor | None) -> Problem:
        """This problem, told its clean logits if they are known, so that it need not compute them."""
        if clean_logits is not None:
            vars(self)["clean_logits"] = clean_logits
        return self

    @property
    def classes(self) -> int:
        return self.clean_logits.shape[-1]

    def rivals(self, count: int) -> Tensor:
        """(B, count) the likeliest wrong classes by the expected logits at x, best first; fewer if there are fewer."""
        alpha, clean = self.ensemble.alpha.tolist(), self.clean_logits
        expected = sum((alpha[i] * clean[i] for i in self.ensemble.order), clean.new_zeros(()))
        others = expected.scatter(1, self.y[:, None], -torch.inf)
        return others.topk(min(count, self.classes - 1)).indices

    @property
    def clean_predictions(self) -> Tensor:
        """(M, B) labels that the members give to x."""
        return predictions_of(self.clean_logits)

    def clean_accuracy(self) -> Tensor:
        """The expected accuracy at x, (B,) float64."""
        return self.ensemble.score(self.clean_predictions == self.y)

    def expected_accuracy(self, x_adv: Tensor) -> Tensor:
        """L of Eq. (1) at x_adv, (B,) float64."""
        return self.ensemble.expected_accuracy(x_adv, self.y)


def check_ball(ball: object) -> None:
    if not isinstance(ball, Ball):
        raise InputError(f"ball is a {type(ball).__name__}; expected recarc.Ball(norm, eps)")


@contextmanager
def frozen_problem(ensemble: RandomizedEnsemble | Member, x: Tensor, y: Tensor, ball: Ball) -> Iterator[Problem]:
    """The problem, checked; meanwhile the members are frozen and no gradients are recorded."""
    ensemble = as_ensemble(ensemble)
    with frozen(ensemble), torch.no_grad():
        yield Problem.checked(ensemble, x, y, ball)


def _first_logits(ensemble: RandomizedEnsemble, x: Tensor) -> Tensor:
    """(M, B, C); an input of another precision than the weights is refused as such, other errors stay as they are."""
    try:
        return ensemble.logits(x)
    except RuntimeError as error:
        kinds = {str(p.dtype).removeprefix("torch.") for p in ensemble.parameters() if p.is_floating_point()}
        own = str(x.dtype).removeprefix("torch.")
        if not kinds - {own} or "type" not in str(error) or out_of_memory(error):
            raise
        weights = " and ".join(sorted(kinds))
        raise InputError(f"x is {own}, the members' weights are {weights}; convert one to the other") from error


@dataclass
class Best:
    """The best point of each sample so far and whom it fools; improved in place."""

    x_adv: Tensor
    wrong: Tensor  # (M, B) members fooled at x_adv
    v: Tensor  # (B,) expected accuracy at x_adv
    ever_wrong: Tensor  # (M, B) members fooled at some point: foolable alone
    witnesses: Tensor | None = None  # (M, B, ...) a point at which member i is fooled; x where none was found

    @classmethod
    def clean(cls, problem: Problem, witnesses: bool = False) -> Best:
        """Where every search starts: at x. `witnesses`: also keep a point for every member that is fooled."""
        wrong = problem.clean_predictions != problem.y
        copies = problem.x.expand(len(wrong), *problem.x.shape).clone() if witnesses else None
        return cls(problem.x.clone(), wrong, problem.clean_accuracy(), wrong.clone(), copies)

    def offer(self, index: Tensor, x_adv: Tensor, wrong: Tensor, v: Tensor) -> Tensor:
        """Keep those points (n, ...) of the samples `index` that lower the expected accuracy; returns for whom."""
        known, better = self.ever_wrong[:, index], v < self.v[index]
        if not bool(better.any() | (wrong & ~known).any()):  # one question for the GPU, and most often the answer
            return index[:0]
        if self.witnesses is not None:
            member, row = (wrong & ~known).nonzero(as_tuple=True)
            self.witnesses[member, index[row]] = x_adv[row]
        self.ever_wrong[:, index] = known | wrong
        improved = index[better]
        self.x_adv[improved], self.v[improved], self.wrong[:, improved] = x_adv[better], v[better], wrong[:, better]
        return improved

    def consider(self, problem: Problem, x_adv: Tensor, index: Tensor | None = None) -> None:
        """Offer the points that an attack returned for all samples, or for the samples `index`."""
        if index is None:
            index = torch.arange(len(problem), device=problem.x.device)
        wrong = ~problem.ensemble.correct(x_adv, problem.y[index])
        self.offer(index, x_adv, wrong, problem.ensemble.score(~wrong))

    def keep_witnesses(self, problem: Problem, index: Tensor, witnesses: Tensor) -> None:
        """Another search's witnesses (M, n, ...) of the samples `index`, against members without one so far."""
        assert self.witnesses is not None
        moved = (witnesses != problem.x[index]).flatten(2).any(2)
        member, row = (moved & ~self.ever_wrong[:, index]).nonzero(as_tuple=True)
        self.witnesses[member, index[row]] = witnesses[member, row].to(self.witnesses.dtype)
        self.ever_wrong[member, index[row]] = True

    def take(self, index: Tensor) -> Best:
        """A copy for these samples only."""
        witnesses = None if self.witnesses is None else self.witnesses[:, index]
        return Best(self.x_adv[index], self.wrong[:, index], self.v[index], self.ever_wrong[:, index], witnesses)

    def merge(self, problem: Problem, index: Tensor, part: Best) -> None:
        """What another search found on the samples `index`, where it is better."""
        if self.witnesses is not None and part.witnesses is not None:
            self.keep_witnesses(problem, index, part.witnesses)
        self.ever_wrong[:, index] |= part.ever_wrong
        self.offer(index, part.x_adv, part.wrong, part.v)

    def put(self, index: Tensor, part: Best) -> None:
        """The inverse of `take`, once the part was improved."""
        self.x_adv[index], self.v[index] = part.x_adv, part.v
        self.wrong[:, index], self.ever_wrong[:, index] = part.wrong, part.ever_wrong
        if self.witnesses is not None and part.witnesses is not None:
            self.witnesses[:, index] = part.witnesses
