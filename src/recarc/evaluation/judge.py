"""One batch: run the attack, then believe nothing it says."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.attacks.base import Outcome
from recarc.attacks.polish import settled
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import AttackViolation, InputError
from recarc.evaluation.records import Records
from recarc.geometry import Ball


@dataclass(frozen=True)
class Judge:
    """`members` decide what is right; `attacked` is the same ensemble as the attack may call it."""

    members: RandomizedEnsemble
    attacked: RandomizedEnsemble
    attack: Any
    dtype: torch.dtype
    coarse: bool = False  # whether `attacked` rounds more than `members`

    @property
    def name(self) -> str:
        return getattr(self.attack, "__name__", type(self.attack).__name__)

    def batch(self, x: Tensor, y: Tensor, ball: Ball, index: np.ndarray) -> tuple[Records, list[Tensor]]:
        """Records of these samples, and the adversarial inputs (J of (B, ...), float32).

        Samples on which a member's clean logits are NaN are not handed to the attack: they keep their clean input,
        where the NaN member counts as wrong.
        """
        x = x.float()
        clean = self.members.predictions(x)
        healthy = (clean >= 0).all(0).nonzero()[:, 0]
        part_ball = ball.take(healthy)
        outcome = self._outcome(x[healthy], y[healthy], part_ball)
        self._check_outcome(outcome, len(healthy), index[healthy.cpu().numpy()])
        inputs, predictions, norms = [], [], []
        for _, returned in outcome.mixture:
            self._check_input(x[healthy], returned, part_ball, index[healthy.cpu().numpy()])
            x_adv = x.clone()
            x_adv[healthy] = returned.detach().float()
            if self.coarse:
                moved = settled(self.members, self.attacked, x[healthy], y[healthy], part_ball, x_adv[healthy])
                self._check_input(x[healthy], moved, part_ball, index[healthy.cpu().numpy()])
                x_adv[healthy] = moved
            inputs.append(x_adv)
            predictions.append(self.members.predictions(x_adv))
            norms.append(ball.norm.norm(_wide(x_adv) - _wide(x)))
        return self._records(outcome, index, y, clean, healthy, predictions, norms), inputs

    def _outcome(self, x: Tensor, y: Tensor, ball: Ball) -> Outcome:
        x = x.to(self.dtype)
        if hasattr(self.attack, "outcome"):
            return self.attack.outcome(self.attacked, x, y, ball)
        return Outcome([(1.0, self.attack(self.attacked, x, y, ball))])

    def _check_outcome(self, outcome: Outcome, count: int, index: np.ndarray) -> None:
        weights = [float(p) for p, _ in outcome.mixture]
        if not weights or min(weights) < 0 or abs(sum(weights) - 1) > 1e-9:
            raise AttackViolation(f"{self.name} returned a mixture with probabilities {weights}; they must sum to 1")
        shape = (len(self.members), count)
        told = {**{f"stage {k!r}": v for k, v in outcome.stages.items()}, "alone": outcome.alone}
        for name, value in told.items():
            if value is not None and tuple(value.shape) != shape:
                raise AttackViolation(f"{self.name} returned {name} of shape {tuple(value.shape)}; expected {shape}")
        if outcome.decided_by is not None and tuple(outcome.decided_by.shape) != (count,):
            raise AttackViolation(
                f"{self.name} returned decided_by of shape {tuple(outcome.decided_by.shape)}; expected {(count,)}"
            )

    def _check_input(self, x: Tensor, returned: Any, ball: Ball, index: np.ndarray) -> None:
        """Shape, finite, inside ball and box: in float64, on the float32 values that are judged."""
        if not isinstance(returned, Tensor) or returned.shape != x.shape or not returned.is_floating_point():
            kind = f"{tuple(returned.shape)}, {returned.dtype}" if isinstance(returned, Tensor) else type(returned)
            raise AttackViolation(f"{self.name} returned {kind} for inputs {tuple(x.shape)}; expected the same shape")
        if not len(x):
            return
        x_adv = returned.detach().float()
        broken = ~torch.isfinite(x_adv.flatten(1)).all(1)
        if bool(broken.any()):
            raise AttackViolation(f"{self.name} returned NaN or infinity on sample {index[int(broken.nonzero()[0])]}")
        before, after = _wide(x), _wide(x_adv)
        excess = ball.violation(before, after) - tolerance(before, ball)
        worst = int(excess.argmax())
        if float(excess[worst]) <= 0:
            return
        size = float(ball.norm.norm(after - before)[worst])
        low, high = float(after[worst].min()), float(after[worst].max())
        raise AttackViolation(
            f"{self.name} left the allowed set on sample {index[worst]} ({int((excess > 0).sum())} of {len(x)} in this "
            f"batch): {ball.norm} distance {size:.6g} with eps {float(ball.radius(before)[worst]):.6g}, "
            f"values in [{low:.6g}, {high:.6g}] with box {ball.box}"
        )

    def _records(
        self,
        outcome: Outcome,
        index: np.ndarray,
        y: Tensor,
        clean: Tensor,
        healthy: Tensor,
        predictions: list[Tensor],
        norms: list[Tensor],
    ) -> Records:
        def filled(default: Tensor, value: Tensor) -> np.ndarray:
            """`value` on the samples that were attacked, `default` on the others."""
            whole = default.clone()
            whole[..., healthy] = value.to(device=whole.device, dtype=whole.dtype)
            return whole.cpu().numpy()

        undecided, right = torch.full_like(y, -1), torch.stack([clean, *predictions]) == y
        decided, alone = outcome.decided_by, outcome.alone
        return Records(
            index=index,
            labels=_int16(y.cpu().numpy()),
            clean=_int16(clean.cpu().numpy()),
            adversarial=_int16(torch.stack(predictions).cpu().numpy()),
            norms=torch.stack(norms).cpu().numpy().astype(np.float32),
            weights=np.array([p for p, _ in outcome.mixture], dtype=np.float64),
            stages={name: _int16(filled(clean, value)) for name, value in outcome.stages.items()},
            alone=None if alone is None else filled(clean == y, alone).astype(bool) & right.all(0).cpu().numpy(),
            decided_by=None if decided is None else _int16(filled(undecided, decided)),
        )


def tolerance(x: Tensor, ball: Ball) -> Tensor:
    """How far float32 rounding can carry a correct attack outside, (B,): an ulp a coordinate, measured in the norm."""
    flat = x.flatten(1)
    scale = flat.abs().amax(1).clamp(min=1e-3) + ball.radius(x)
    spread = 1.0 if math.isinf(ball.norm.p) else flat.shape[1] ** (1 / ball.norm.p)
    allowed = 1e-6 * ball.radius(x) + 2.0**-23 * scale * spread
    if ball.box is not None:  # an input outside the box by float noise is moved back into it
        allowed = allowed + torch.maximum(flat.amax(1) - ball.box[1], ball.box[0] - flat.amin(1)).clamp(min=0)
    return allowed


def _wide(x: Tensor) -> Tensor:
    """float64, on the host where the device has none."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def _int16(labels: np.ndarray) -> np.ndarray:
    if labels.size and labels.max() > np.iinfo(np.int16).max:
        raise InputError(f"label {labels.max()} does not fit into the records; at most 32767 classes")
    return labels.astype(np.int16)
