"""The verdict: the robust accuracy, the floor that attacks on each member alone leave, and whether the two meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from recarc.errors import InputError
from recarc.evaluation.floor_error import Challenged
from recarc.evaluation.intervals import mean_interval
from recarc.evaluation.masking import Signal
from recarc.evaluation.result import Estimate, Evaluation, html_table
from recarc.evaluation.saturation import Saturation

if TYPE_CHECKING:
    from recarc.exact import Floor

CONCLUSIVE = 0.005  # how far the robust accuracy may yet fall on these samples: half a point
CARRIED = 2 * CONCLUSIVE  # and on other samples of the same kind; both at 95 % confidence
ROUNDING = 1e-9


@dataclass(frozen=True)
class Verdict:
    """What an evaluation with a floor amounts to.

    `floor` is the mean of sum_i alpha_i over the members that withstood every attack on them alone; no attack gets
    below it unless a stronger attack on a single member is found. A certified floor holds against every attack and
    raises it where it is higher. `gap` = robust - floor. `challenge` is what a much stronger attack on a random few of
    the pairs that make the floor found; `may_fall` = gap + what that leaves room for.
    """

    robust: Estimate
    clean: Estimate
    floor: float
    gap: float
    above_floor: int  # samples that may still fall
    stages: dict[str, Estimate]  # clean, AdaptivePGD and ARC by themselves, then the best so far
    decided_by: dict[str, int]
    best_member: float  # the best robust accuracy of a member attacked alone; those of alpha 0 are not attacked
    certified_floor: float | None = None
    saturation: Saturation | None = None  # what another round of the search would bring; None without rounds
    preset: str = "standard"  # effort of the attack that made the floor
    blind: tuple[int, ...] = ()  # members whose gradients vanish: their floor may be too high
    signals: tuple[Signal, ...] = ()  # that attacks may have missed how weak a member is
    gap_limit: float = 0.0  # upper 95 % confidence limit of the gap on other samples of the same kind
    challenge: Challenged | None = None
    samples: int = 0
    complete: bool = True
    sentence: str = field(default="", compare=False)

    @classmethod
    def of(cls, evaluation: Evaluation, certified_floor: Floor | float | None = None) -> Verdict:
        """The verdict on a `Tight` evaluation.

        `certified_floor`: that of the same samples, or its mean, such as `recarc.exact.certified_floor` gives it; by
        default what `recarc certify` wrote beside the run.
        """
        certified_floor = evaluation.certified_floor if certified_floor is None else certified_floor
        floors = evaluation.floor_scores
        if floors is None or evaluation.alone is None:
            raise InputError("this run attacked no member alone, so it has no floor; evaluate with --attack tight")
        certified = _checked_mean(certified_floor, evaluation)
        if certified_floor is not None and not isinstance(certified_floor, (int, float)):
            floors = np.maximum(floors, certified_floor.per_sample.cpu().numpy())
        floor = max(float(floors.mean()), certified or 0.0)
        verdict = cls(
            robust=evaluation.robust,
            clean=evaluation.clean,
            floor=floor,
            gap=max(0.0, evaluation.robust.value - floor),  # below 0 only by rounding
            above_floor=int((evaluation.robust_scores > floors).sum()),
            stages=evaluation.stage_accuracies,
            decided_by={name: n for name, n in evaluation.to_json()["decided_by"].items() if n},
            best_member=float(evaluation.alone[evaluation.alpha > 0].mean(1).max()),
            certified_floor=certified,
            saturation=Saturation.of(evaluation),
            preset=evaluation.preset or "standard",
            blind=tuple(i for i in evaluation.blind_members if evaluation.alpha[i] > 0),
            signals=tuple(signal for signal in evaluation.signals if evaluation.alpha[signal.member] > 0),
            gap_limit=_upper_limit(np.maximum(evaluation.robust_scores - floors, 0.0)),
            challenge=evaluation.challenge,
            samples=len(evaluation),
            complete=evaluation.complete,
        )
        return replace(verdict, sentence=_sentence(verdict))

    @property
    def meets_floor(self) -> bool:
        """Whether robust accuracy and floor are at most half a point apart."""
        return self.gap <= CONCLUSIVE + 1e-12

    @property
    def may_fall(self) -> float:
        """How far the robust accuracy may yet fall: the gap, and what the challenge leaves room for below the floor.

        Without a challenge nothing is known below the floor. A certified floor needs none.
        """
        below = self.floor - max(self.certified_floor or 0.0, 0.0)
        return self.gap + min(below, self.challenge.limit if self.challenge is not None else below)

    @property
    def certified(self) -> bool:
        """Whether the robust accuracy meets the certified floor, which holds against every attack."""
        return self.certified_floor is not None and self.robust.value - self.certified_floor <= CONCLUSIVE + 1e-12

    @property
    def conclusive(self) -> bool:
        """Whether they meet at a floor that can be relied on: a certified one, or one without `doubts`."""
        return self.complete and (self.certified or (self.meets_floor and not self.doubts))

    @property
    def level(self) -> str:
        """How much the verdict claims: certified, conclusive, not conclusive or open."""
        if self.certified and self.complete:
            return "certified"
        if self.conclusive:
            return "conclusive"
        return "not conclusive" if self.meets_floor else "open"

    def __str__(self) -> str:
        return self.sentence

    @property
    def basis(self) -> str:
        """What the floor rests on."""
        losses = "one loss" if self.preset == "quick" else "two losses, without gradients"
        attacked = f"every member attacked alone ({losses}, and wherever another stage fooled it)"
        return f"{attacked}; {self.challenge or 'nothing challenged it'}"

    @property
    def doubts(self) -> list[str]:
        """Why the floor cannot be relied on even where the robust accuracy meets it.

        Nothing is below 0, so there the search itself needs no belief.
        """
        guessing = [signal for signal in self.signals if signal.name == "chance_level"]
        masked = [signal for signal in self.signals if signal.name != "chance_level"]
        doubts = []
        if not self.complete:
            doubts.append("the run is not finished: rerun its command to resume")
        broken = self.challenge is not None and self.challenge.fell > 0
        if (self.meets_floor or broken) and self.preset != "quick" and self.may_fall > CONCLUSIVE + 1e-12:
            doubts.append(self._why_it_may_fall())
        elif self.meets_floor and self.robust.value > 0 and self._lowered > CONCLUSIVE + 1e-12:
            doubts.append(self._why_the_stages_were_weak())
        unchallenged = 0.0 if self.preset == "quick" else self.may_fall - self.gap  # quick has a doubt of its own
        elsewhere = min(self.gap_limit + unchallenged, self.robust.value)
        if self.meets_floor and elsewhere > CARRIED:
            doubts.append(
                f"{self.samples} samples are too few: on others the robust accuracy may be up to {_percent(elsewhere)} "
                f"points lower, more than {100 * CARRIED:g}"
            )
        if guessing:
            be = "is" if len({signal.member for signal in guessing}) == 1 else "are"
            doubts.append(f"on clean inputs {_members(guessing)} {be} no better than chance")
        if masked and self.robust.value > 0:
            doubts.append(f"the floor may be too high, because gradients mislead: {_listed(masked)}; see the warnings")
        if self.meets_floor and self.preset == "quick" and self.robust.value > 0:
            doubts.append("quick attacks the members with one loss only; --preset standard decides")
        return doubts

    def _why_it_may_fall(self) -> str:
        """In one line, with what would settle it."""
        challenge, may_fall = self.challenge, f"{_percent(self.may_fall)} points, more than {100 * CONCLUSIVE:g}"
        if challenge is None:
            return "nothing challenged the floor in this run; evaluate again with --attack tight"
        found = f"{challenge.fell} of the {challenge.drawn} pairs that were challenged fell"
        if challenge.fell:
            return f"the floor is too high: {found}, and the robust accuracy may be lower by {may_fall}"
        if challenge.pairs == challenge.drawn:  # none spared, so what may fall was never attacked
            return (
                "some samples were never attacked, because a member gave NaN there or answered differently in the "
                f"search than for the judge, so the robust accuracy may be lower by {may_fall}; see the warnings"
            )
        more = (
            "challenge them all (--knob challenge=1, in Python Tight(challenge=1)) or take more samples"
            if challenge.share < 1
            else "look at the gap"
        )
        return (
            f"the challenge was too small: {found}, but with {challenge.pairs - challenge.drawn} spared the robust "
            f"accuracy may be lower by {may_fall}; {more}"
        )

    @property
    def _lowered(self) -> float:
        """What the challenge took from the floor: attacks that missed so much may well have missed more."""
        return 0.0 if self.challenge is None else self.challenge.lowered

    def _why_the_stages_were_weak(self) -> str:
        found = "" if self.challenge is None else f"{self.challenge.fell} of the {self.challenge.drawn} pairs"
        return (
            f"the attacks on the members were too weak: {found} that were challenged fell and took "
            f"{_percent(self._lowered)} points, more than {100 * CONCLUSIVE:g}, so a stronger challenge may find more"
        )

    def _repr_html_(self) -> str:
        """For notebooks: whether it is conclusive, the figures, and why."""
        head = "conclusive" if self.conclusive else "not conclusive"
        facts = [["robust accuracy", self.robust._repr_html_()], ["floor", f"{_percent(self.floor)} %"]]
        facts += [["AdaptivePGD alone", f"{e}"] for name, e in self.stages.items() if name == "adaptive_pgd"]
        return f"<b>{head}</b>{html_table(facts)}<p>{escape(self.sentence)}</p>"

    def to_json(self) -> dict[str, Any]:
        return {
            "robust_accuracy": self.robust.value,
            "robust_interval": [self.robust.low, self.robust.high],
            "clean_accuracy": self.clean.value,
            "floor": self.floor,
            "gap": self.gap,
            "conclusive": self.conclusive,
            "level": self.level,
            "preset": self.preset,
            "blind_members": list(self.blind),
            "signals": [signal.to_json() for signal in self.signals],
            "gap_limit": self.gap_limit,
            "challenge": None if self.challenge is None else self.challenge.to_json(),
            "may_fall": self.may_fall,
            "basis": self.basis,
            "samples": self.samples,
            "complete": self.complete,
            "doubts": self.doubts,
            "samples_above_floor": self.above_floor,
            "stages": {name: e.value for name, e in self.stages.items()},
            "decided_by": self.decided_by,
            "best_member": self.best_member,
            "certified_floor": self.certified_floor,
            "saturation": None if self.saturation is None else self.saturation.to_json(),
            "sentence": self.sentence,
        }


def _checked_mean(certified: Floor | float | None, evaluation: Evaluation) -> float | None:
    """The mean of a certified floor; refuses one of other samples, and one that an attack has refuted."""
    if certified is None:
        return None
    robust: Any = evaluation.robust_scores
    if isinstance(certified, (int, float)):
        mean, refuted = float(certified), float(certified) > robust.mean() + ROUNDING
    else:
        floors = certified.per_sample.cpu().numpy()
        if len(floors) != len(robust):
            raise InputError(f"the certified floor is of {len(floors)} samples, the run of {len(robust)}")
        mean, refuted = certified.mean, bool((floors > robust + ROUNDING).any())
    if refuted:
        raise InputError(
            f"the certified floor (mean {_percent(mean)} %) exceeds what an attack left ({_percent(robust.mean())} %); "
            "it cannot be right: certify the same members, samples, ball and alpha as this run's"
        )
    return mean


def _upper_limit(gaps: np.ndarray) -> float:
    """One-sided 95 %: the upper end of the two-sided 90 % interval."""
    return mean_interval(gaps, level=0.9)[1]


def _members(signals: Iterable[Signal]) -> str:
    return " and ".join(f"members[{i}]" for i in sorted({signal.member for signal in signals}))


def _listed(signals: Iterable[Signal]) -> str:
    return ", ".join(str(signal) for signal in signals)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def _sentence(verdict: Verdict) -> str:
    robust, floor = _percent(verdict.robust.value), _percent(verdict.floor)
    flattery = "".join(
        f" {title} alone would have reported {_percent(verdict.stages[name].value)} %."
        for name, title in (("adaptive_pgd", "AdaptivePGD"), ("arc", "ARC"))
        if name in verdict.stages and verdict.stages[name].value - verdict.robust.value > CONCLUSIVE
    )
    certified = _percent(verdict.certified_floor or 0.0)
    if verdict.level == "certified":
        return f"Certified: no attack whatever leaves less than {certified} %; this attack leaves {robust} %.{flattery}"
    if verdict.certified_floor is not None:
        flattery = f" No attack at all gets below the certified floor of {certified} %.{flattery}"
    if verdict.conclusive and verdict.robust.value == 0:
        return f"Conclusive: the robust accuracy is {robust} %, and nothing is below it.{flattery}"
    if verdict.conclusive:
        return (
            f"Conclusive: the robust accuracy is {robust} %, with a floor of {floor} % that rests on {verdict.basis}; "
            f"no sign that their gradients mislead was found.{flattery}"
        )
    doubts = "".join(f" {doubt[0].upper()}{doubt[1:]}." for doubt in verdict.doubts)
    if verdict.meets_floor:
        return (
            f"Not conclusive: the robust accuracy is at most {robust} % and meets the floor of {floor} %"
            f"{' as far as quick can tell' if verdict.preset == 'quick' else ''}.{doubts}{flattery}"
        )
    stronger = {"quick": "--preset standard", "standard": "--preset thorough"}.get(verdict.preset)
    advice = f"try {stronger}" if stronger else "try more seeds, or report it as an upper bound"
    search = "" if verdict.saturation is None else f"{verdict.saturation}; "
    return (
        f"Open: the robust accuracy is between {floor} and {robust} %, with {verdict.above_floor} samples above their "
        f"floor; {search}{advice}.{doubts}{flattery}"
    )
