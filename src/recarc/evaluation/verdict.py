"""The verdict: the figure, the floor that attacks on each member alone leave, and whether the two meet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from recarc.errors import InputError
from recarc.evaluation.result import Estimate, Evaluation

CONCLUSIVE = 0.005  # a gap of half a point


@dataclass(frozen=True)
class Verdict:
    """What an evaluation with floors comes to.

    `floor` is the mean of sum_i alpha_i over the members that withstood every attack on them alone; it bounds every
    attack from below as long as no stronger single-model attack is found. `gap` = robust - floor.
    """

    robust: Estimate
    clean: Estimate
    floor: float
    gap: float
    above_floor: int  # samples that may still fall
    stages: dict[str, Estimate]  # clean, AdaptivePGD and ARC by themselves, then the best so far
    decided_by: dict[str, int]
    best_member: float  # the most that a member attacked alone keeps; those of alpha 0 are not attacked
    certified_floor: float | None = None
    preset: str = "standard"  # effort of the attack that made the floor
    blind: tuple[int, ...] = ()  # members whose gradients vanish: their floor may be too high
    sentence: str = field(default="", compare=False)

    @classmethod
    def of(cls, evaluation: Evaluation, certified_floor: float | None = None) -> Verdict:
        """The verdict on a `Tight` evaluation; `certified_floor` comes from `recarc.exact.certified_floor`."""
        floors = evaluation.floor_scores
        if floors is None or evaluation.alone is None:
            raise InputError("this run attacked no member alone, so it has no floor; evaluate with --attack tight")
        summary = evaluation.to_json()
        found = cls(
            robust=evaluation.robust,
            clean=evaluation.clean,
            floor=float(floors.mean()),
            gap=max(0.0, evaluation.robust.value - float(floors.mean())),  # below 0 by rounding only: see `alone`
            above_floor=int((evaluation.robust_scores > floors).sum()),
            stages=evaluation.stage_accuracies,
            decided_by={name: n for name, n in summary["decided_by"].items() if n},
            best_member=float(evaluation.alone[evaluation.alpha > 0].mean(1).max()),
            certified_floor=certified_floor,
            preset=((evaluation.configuration.get("attack") or {}).get("preset")) or "standard",
            blind=tuple(i for i in evaluation.blind_members if evaluation.alpha[i] > 0),
        )
        return replace(found, sentence=_sentence(found))

    @property
    def meets_floor(self) -> bool:
        """Whether figure and floor are at most half a point apart."""
        return self.gap <= CONCLUSIVE + 1e-12

    @property
    def conclusive(self) -> bool:
        """Whether they meet at a floor that can be relied on.

        That of `quick`, from one loss, may fall under `standard`; one of members without gradients under anything.
        """
        return self.meets_floor and self.preset != "quick" and not self.blind

    def to_json(self) -> dict[str, Any]:
        return {
            "robust_accuracy": self.robust.value,
            "robust_interval": [self.robust.low, self.robust.high],
            "clean_accuracy": self.clean.value,
            "floor": self.floor,
            "gap": self.gap,
            "conclusive": self.conclusive,
            "preset": self.preset,
            "blind_members": list(self.blind),
            "samples_above_floor": self.above_floor,
            "stages": {name: e.value for name, e in self.stages.items()},
            "decided_by": self.decided_by,
            "best_member": self.best_member,
            "certified_floor": self.certified_floor,
            "sentence": self.sentence,
        }


def _points(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def _sentence(found: Verdict) -> str:
    figure, floor = _points(found.robust.value), _points(found.floor)
    flattery = "".join(
        f" {title} alone would have said {_points(found.stages[name].value)} %."
        for name, title in (("adaptive_pgd", "AdaptivePGD"), ("arc", "ARC"))
        if name in found.stages and found.stages[name].value - found.robust.value > CONCLUSIVE
    )
    if found.conclusive:
        return (
            f"Conclusive: the robust accuracy is {figure} %, and no attack can push it below the floor of {floor} %, "
            f"as long as the members themselves are as robust as the strongest attack on each found them.{flattery}"
        )
    names = " and ".join(f"members[{i}]" for i in found.blind)
    unseen = f" The gradient of {names} vanishes, so the floor may be too high: see the warnings." if names else ""
    if found.meets_floor:
        how = " as far as quick can tell, but quick attacks the members with one loss only; --preset standard decides"
        return (
            f"Not conclusive: the robust accuracy is at most {figure} % and meets the floor of {floor} %"
            f"{how if found.preset == 'quick' else ''}.{unseen}{flattery}"
        )
    stronger = {"quick": "--preset standard", "standard": "--preset thorough"}.get(found.preset)
    advice = f"try {stronger}" if stronger else "try more seeds, or read the figure as an upper bound"
    return (
        f"Not conclusive: the robust accuracy is at most {figure} %, but {found.above_floor} samples are above their "
        f"floor and it may yet fall to {floor} % ({_points(found.gap)} points); {advice}.{unseen}{flattery}"
    )
