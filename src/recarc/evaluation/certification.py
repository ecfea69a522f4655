"""`certify`: the accuracy below which no attack whatever gets, per sample, in a folder like that of an evaluation.

The records are those of an attacker who could do all that no certificate excludes: `adversarial` are members' answers
for the heaviest set of members not excluded, `alone` the members that are certified, `excluded` every set.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recarc.attacks.problem import Problem
from recarc.ensemble import Member, RandomizedEnsemble, as_ensemble
from recarc.errors import InputError
from recarc.evaluation.attack import inner
from recarc.evaluation.checks import warn
from recarc.evaluation.fingerprint import Json, configuration, differences
from recarc.evaluation.records import CLEAN, Records
from recarc.evaluation.result import Estimate, Evaluation, estimate
from recarc.evaluation.run_folder import CERTIFICATE, RUN, RunFolder
from recarc.evaluation.samples import as_samples
from recarc.exact.certificate import Certificate
from recarc.exact.floors import Floor
from recarc.exact.joint import Certified, sets_of
from recarc.geometry import Ball

FOUND = "found"  # the stage of the worst point that was seen
SHARD = {"bounds": {"cpu": 64, "cuda": 256}, "exact": {"cpu": 8}}  # samples: a minute's work or so
SHARED = ("ball", "members", "data")  # what a run and its certificate have in common


def certify(
    ensemble: RandomizedEnsemble | Member,
    data: Any,
    ball: Ball,
    certificate: Certificate | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = True,
    progress: bool = True,
    device: str | torch.device | None = None,
    shard_size: int | str = "auto",
) -> Certification:
    """Certify every sample of `data`: which members, and which sets of them, no point of the ball fools.

    With `out`, records go to the folder `certificate` in it, shard by shard, and the same call resumes; if `out` is the
    run folder of an evaluation of the same members, data and ball, its verdict counts them. Under `torchrun` the shards
    are shared out among the ranks.
    """
    from recarc.evaluation.engine import evaluate

    certificate, ensemble = certificate or Certificate(), as_ensemble(ensemble)
    place = ensemble.device_of_members() if device is None else torch.device(device)
    if shard_size == "auto":
        shard_size = SHARD[certificate.method].get(getattr(place, "type", "cpu"), 8)
    folder = None if out is None else Path(out) / CERTIFICATE
    if out is not None and (Path(out) / RUN).exists():
        samples, no_logits = as_samples(data), torch.empty(len(ensemble))
        now = configuration(ensemble, certificate, samples, ball, no_logits)
        _check_same(RunFolder.open(out).configuration, now, f"the run in {out}")
    result = evaluate(
        ensemble,
        certificate,
        data,
        ball,
        out=folder,
        resume=resume,
        progress=progress,
        device=device,
        shard_size=shard_size,
    )
    found = Certification(result)
    if found.vacuous:
        warn(found.sentence)
    return found


def certified_records(certificate: Certificate, problem: Problem, rows: np.ndarray) -> Records:
    """The records of one batch."""
    raw = problem.ensemble.with_members([inner(member) for member in problem.ensemble.members])
    found = certificate(raw, problem.x, problem.y, problem.ball)
    rival = problem.clean_logits.scatter(2, problem.y.expand(len(raw), -1)[..., None], -torch.inf).argmax(2)
    worst = torch.where(found.worst(raw.alpha), rival, problem.y)
    assert found.x_adv is not None
    labels = problem.ensemble.predictions(found.x_adv)
    norms = problem.ball.norm.norm(found.x_adv - problem.x)
    return Records(
        index=rows,
        labels=problem.y.cpu().numpy().astype(np.int16),
        clean=problem.clean_predictions.cpu().numpy().astype(np.int16),
        adversarial=worst[None].cpu().numpy().astype(np.int16),
        norms=norms[None].cpu().numpy().astype(np.float32),
        weights=np.ones(1),
        stages={
            CLEAN: problem.clean_predictions.cpu().numpy().astype(np.int16),
            FOUND: labels.cpu().numpy().astype(np.int16),
        },
        alone=found.alone.cpu().numpy(),
        excluded=found.excluded.cpu().numpy(),
    )


@dataclass(frozen=True)
class Certification:
    """Certificates on N samples, and the floors that follow from them."""

    evaluation: Evaluation

    @classmethod
    def beside(cls, path: Path) -> Certification | None:
        """The certificate in a run folder; None if there is none. InputError if it is unfinished or of another run."""
        if not (path / CERTIFICATE / RUN).exists():
            return None
        found = cls(Evaluation.load(path / CERTIFICATE))
        _check_same(RunFolder.open(path).configuration, found.evaluation.configuration, "this run")
        return found

    @cached_property
    def certified(self) -> Certified:
        records = self.evaluation.records
        assert records.excluded is not None
        labels = records.stages[FOUND] != records.labels
        return Certified(torch.from_numpy(records.excluded), torch.from_numpy(labels))

    def floor(self, alpha: np.ndarray | None = None) -> Floor:
        """Per sample, at the run's alpha or at another."""
        return self.certified.floor(torch.from_numpy(self.evaluation.alpha if alpha is None else alpha))

    @property
    def joint(self) -> Estimate:
        """The certified floor: no attack whatever leaves less."""
        return estimate(self.floor().per_sample.numpy())

    @property
    def member(self) -> Estimate:
        """What certificates of single members alone give: the mean of sum_i alpha_i certified_i."""
        assert self.evaluation.floor_scores is not None
        return estimate(self.evaluation.floor_scores)

    @property
    def found(self) -> Estimate:
        """The accuracy at the worst points seen on the way: at x itself, or with the exact method the worst found."""
        return self.evaluation.stage_accuracies[FOUND]

    @property
    def solved(self) -> float:
        """Share of the samples on which the floor is attained, so that the optimum is known."""
        floor = self.floor()
        return float((floor.per_sample == floor.upper).double().mean())

    def __repr__(self) -> str:
        run = self.evaluation
        return f"Certification({len(run)} samples, {len(run.alpha)} members, certified floor {self.joint})"

    @property
    def vacuous(self) -> bool:
        return not bool(self.certified.excluded.any())

    @property
    def sentence(self) -> str:
        ball = self.evaluation.configuration.get("ball", {})
        if self.vacuous:
            return (
                f"The certificate is vacuous: at eps {ball.get('eps')} no member is certified on any sample, so it "
                "says nothing (not that the floor is 0 %); try a smaller eps, or members trained with the method ibp"
            )
        gain = 100 * (self.joint.value - self.member.value)
        return (
            f"No attack can leave less than {100 * self.joint.value:.2f} %; certificates of single members alone "
            f"say {100 * self.member.value:.2f} %, so looking at sets of members gains {gain:.2f} points."
        )

    def to_json(self) -> Json:
        run, vacuous = self.evaluation, self.vacuous
        shares = self.certified.excluded.double().mean(1).tolist()
        members = zip(run.alpha.tolist(), run.member_clean.tolist(), shares)
        return {
            "certified_floor": None if vacuous else self.joint.value,
            "certified_interval": None if vacuous else [self.joint.low, self.joint.high],
            "certified_member_floor": None if vacuous else self.member.value,
            "vacuous": vacuous,
            "clean_accuracy": run.clean_accuracy,
            "found_accuracy": self.found.value,
            "solved": self.solved,
            "members": [{"alpha": a, "clean_accuracy": c, "certified": s} for a, c, s in members],
            "sets": {"+".join(map(str, s)): share for s, share in zip(sets_of(len(run.alpha)), shares)},
            "samples": len(run),
            "seconds": run.seconds,
            "certificate": run.configuration.get("attack"),
            "ball": run.configuration.get("ball"),
            "data": run.configuration.get("data"),
            "warnings": run.warnings,
            "sentence": self.sentence,
        }


def _check_same(run: Json, certificate: Json, name: str) -> None:
    mine, other = ({key: config.get(key) for key in SHARED} for config in (run, certificate))
    different = differences(mine, other, ("in the run", "in the certificate"))
    if different:
        raise InputError(f"the certificate is not of {name}: {different[0]}")
