"""Judge one batch: believe nothing but the points that the attack returned.

Every point that the attack kept (its answer, where its stages ended, a witness for each member that it claims to have
fooled) is checked against ball and box and predicted in float32 by the judge's own members. All that is recorded
follows from those predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.attacks.base import Outcome, Stage
from recarc.attacks.polish import polish
from recarc.attacks.problem import Best, Problem
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import AttackViolation, InputError
from recarc.evaluation.attack import Attacked
from recarc.evaluation.records import CLEAN, Records
from recarc.geometry import Ball


def judge(problem: Problem, attacked: Attacked, index: np.ndarray) -> tuple[Records, list[Tensor]]:
    """Records of the samples `index` of a problem, and the adversarial inputs (J of (B, ...), float32).

    Samples that were not attacked keep their clean input.
    """
    y, clean, outcome, samples = problem.y, problem.clean_predictions, attacked.outcome, attacked.samples
    judged = _Judged(problem.take(samples), attacked, index[samples.cpu().numpy()])
    if outcome.stages:
        final, stages, decided = judged.best_of(outcome)
    else:
        final, stages, decided = judged.points([x_adv for _, x_adv in outcome.mixture]), {}, None
    alone = None if outcome.witnesses is None else judged.withstood(outcome.witnesses, final)
    decided = None if decided is None else torch.where(judged.preferred, -1, decided)

    challenged = outcome.challenged

    def filled(default: Tensor, value: Tensor) -> Tensor:
        """`value` on the samples that were attacked, `default` on the others."""
        return default.index_copy(-1, samples, value.to(default.dtype))

    inputs = [problem.x.index_copy(0, samples, x_adv) for x_adv, _ in final]
    norms = [problem.ball.norm.norm(_wide(x_adv) - _wide(problem.x)) for x_adv in inputs]
    records = Records(
        index=index,
        labels=_int16(y),
        clean=_int16(clean),
        adversarial=_int16(torch.stack([filled(clean, labels) for _, labels in final])),
        norms=torch.stack(norms).cpu().numpy().astype(np.float32),
        weights=np.array([p for p, _ in outcome.mixture], dtype=np.float64),
        stages={name: _int16(filled(clean, labels)) for name, labels in stages.items()},
        alone=None if alone is None else filled(clean == y, alone).cpu().numpy(),
        decided_by=None if decided is None else _int16(filled(torch.full_like(y, -1), decided)),
        challenged=None
        if challenged is None
        else filled(torch.zeros_like(clean, dtype=torch.int8), challenged).cpu().numpy(),
    )
    return records, inputs


class _Judged:
    """The points of one batch as they count; equal points of a sample are predicted once."""

    def __init__(self, problem: Problem, attacked: Attacked, index: np.ndarray) -> None:
        self.problem, self.attacked, self.index = problem, attacked, index
        self.fooled = problem.clean_predictions != problem.y  # (M, B) at any point so far
        self.preferred = torch.zeros_like(problem.y, dtype=torch.bool)  # samples whose final point is a witness

    def points(self, returned: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
        """Each of the returned points (B, ...) as it counts, with the (M, B) labels that the members give there."""
        given = torch.stack([self.problem.x, *(self._checked(x_adv) for x_adv in returned)])  # entry 0 is x itself
        entries = torch.arange(len(given), device=given.device)
        everyone = torch.arange(given.shape[1], device=given.device)
        first = entries[:, None].repeat(1, given.shape[1])  # the first entry that is the same point
        # A coarse search may take x itself for fooled: then x, returned, is polished like any point, unlike entry 0.
        earliest = 1 if self.attacked.coarse else 0
        for k in range(earliest + 1, len(given)):
            for j in reversed(range(earliest, k)):
                first[k] = torch.where((given[k] == given[j]).flatten(1).all(1), j, first[k])

        x_adv, labels = given.clone(), self.problem.clean_predictions.repeat(len(given), 1, 1)
        new = first == entries[:, None]
        new[0] = False
        entry, row = new.nonzero(as_tuple=True)
        if len(row):
            part, points = self.problem.take(row), given[entry, row]
            x_adv[entry, row], answers = self._predicted(part, self.attacked.problem.ensemble, points, row)
            labels[entry, :, row] = answers.T
        self.fooled |= (labels != self.problem.y).any(0)
        return [(x_adv[same, everyone], labels[same, :, everyone].T) for same in first[1:]]

    def best_of(self, outcome: Outcome) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Tensor], Tensor]:
        """The best point of each sample with its labels; the labels of every stage; which stage decided.

        Stages, after "clean": (M, B) labels at the stage's own points (`Stage.alone`), or else at the best point so
        far, so that its expected accuracy never increases. The deciding one is the first after which the best so far
        is as low as the final one; -1: only the attack's answer itself is.
        """
        y, score = self.problem.y, self.problem.ensemble.score
        best, labels = Best.clean(self.problem), self.problem.clean_predictions
        everyone = torch.arange(len(y), device=y.device)
        stages, values = {CLEAN: labels.clone()}, [best.v.clone()]
        answer = Stage("", outcome.mixture[0][1])
        ends = [*outcome.stages, answer]
        for stage, (x_adv, seen) in zip(ends, self.points([stage.x_adv for stage in ends]), strict=True):
            improved = best.offer(everyone, x_adv, seen != y, score(seen == y))
            labels[:, improved] = seen[:, improved]
            if stage is not answer:
                stages[stage.name] = seen if stage.alone else labels.clone()
                values.append(best.v.clone())
        reached = torch.stack(values) == best.v
        decided = torch.where(reached.any(0), reached.int().argmax(0), -1)
        return [(best.x_adv, labels)], stages, decided.to(y.device)

    def withstood(self, witnesses: Tensor, final: list[tuple[Tensor, Tensor]]) -> Tensor:
        """(M, B): members that no point judged here fools, nor the attack's witness against them.

        A witness takes the place of the `final` point where it leaves less: what a coarse search preferred to it may
        not have fooled as many as it seemed.
        """
        y = self.problem.y
        for i, witness in enumerate(witnesses):
            given = self._checked(witness)
            claimed = (given != self.problem.x).flatten(1).any(1)
            if self.attacked.coarse:
                claimed |= self.attacked.problem.clean_predictions[i] != y
            index = (claimed & ~self.fooled[i]).nonzero()[:, 0]
            if len(index):
                part = self.problem.take(index).on_member(i)
                x_adv, labels = self._predicted(part, self.attacked.problem.on_member(i).ensemble, given[index], index)
                fell = labels[0] != part.y
                self.fooled[i, index] = fell
                if len(final) == 1:
                    self._prefer(index[fell], x_adv[fell], *final[0])
        return ~self.fooled

    def _prefer(self, index: Tensor, x_adv: Tensor, best: Tensor, labels: Tensor) -> None:
        """Put these points of the samples `index` into the place of the final ones where they leave less."""
        if not len(index):
            return
        y, score = self.problem.y[index], self.problem.ensemble.score
        seen = self.problem.ensemble.predictions(x_adv)
        self.fooled[:, index] |= seen != y
        lower = score(seen == y) < score(labels[:, index] == y)
        self.preferred[index[lower]] = True
        best[index[lower]], labels[:, index[lower]] = x_adv[lower], seen[:, lower]

    def _predicted(
        self, part: Problem, searched: RandomizedEnsemble, x_adv: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The points, polished where a coarse search rounded too much, and the labels there."""
        labels = part.ensemble.predictions(x_adv)
        if not self.attacked.coarse:
            return x_adv, labels
        moved = polish(part, searched, x_adv, labels != part.y)
        changed = (moved != x_adv).flatten(1).any(1).nonzero()[:, 0]
        if len(changed):
            self._check(part.x[changed], moved[changed], part.ball.take(changed), index[changed])
            labels[:, changed] = part.ensemble.predictions(moved[changed])
        return moved, labels

    def _checked(self, returned: Any) -> Tensor:
        """The float32 values that are judged: of the right shape, finite, inside ball and box."""
        x = self.problem.x
        if not isinstance(returned, Tensor) or returned.shape != x.shape or not returned.is_floating_point():
            kind = f"{tuple(returned.shape)}, {returned.dtype}" if isinstance(returned, Tensor) else type(returned)
            raise AttackViolation(
                f"{self.attacked.name} returned {kind} for inputs {tuple(x.shape)}; expected the same shape"
            )
        x_adv = returned.detach().float()
        self._check(x, x_adv, self.problem.ball, torch.arange(len(x)))
        return x_adv

    def _check(self, x: Tensor, x_adv: Tensor, ball: Ball, index: Tensor) -> None:
        """Finite, inside ball and box: in float64."""
        if not len(x):
            return
        name, rows = self.attacked.name, self.index[index.cpu().numpy()]
        broken = ~torch.isfinite(x_adv.flatten(1)).all(1)
        if bool(broken.any()):
            raise AttackViolation(f"{name} returned NaN or infinity on sample {rows[int(broken.nonzero()[0])]}")
        before, after = _wide(x), _wide(x_adv)
        excess = ball.violation(before, after) - ball.tolerance(before)
        worst = int(excess.argmax())
        if float(excess[worst]) <= 0:
            return
        size = float(ball.norm.norm(after - before)[worst])
        low, high = float(after[worst].min()), float(after[worst].max())
        raise AttackViolation(
            f"{name} left the allowed set on sample {rows[worst]} ({int((excess > 0).sum())} of {len(x)} in this "
            f"batch): {ball.norm} distance {size:.6g} with eps {float(ball.radius(before)[worst]):.6g}, "
            f"values in [{low:.6g}, {high:.6g}] with box {ball.box}"
        )


def _wide(x: Tensor) -> Tensor:
    """float64, on the host where the device has none."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _int16(labels: Tensor) -> np.ndarray:
    values = labels.cpu().numpy()
    if values.size and values.max() > np.iinfo(np.int16).max:
        raise InputError(f"label {values.max()} does not fit into the records; at most 32767 classes")
    return values.astype(np.int16)
