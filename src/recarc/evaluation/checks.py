"""Warnings that an evaluation may mislead, each with what to do about it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from recarc.ensemble import Member, RandomizedEnsemble
from recarc.geometry import Ball, odd_scale
from recarc.losses import cross_entropy

if TYPE_CHECKING:
    from recarc.evaluation.result import Evaluation

PROBE = 64  # samples checked before a run
VANISHED = 0.1  # share of samples without a gradient that is worth a warning
FLATTERY = 0.05  # how far AdaptivePGD may exceed the strongest attack
LEAST_SAMPLES = 30  # with fewer, a low accuracy may be chance


class RecarcWarning(UserWarning):
    """The evaluation continues, but its result may mislead."""


_collected: ContextVar[list[str] | None] = ContextVar("collected_warnings", default=None)


def warn(text: str) -> None:
    texts = _collected.get()
    if texts is not None:
        texts.append(text)
    warnings.warn(text, RecarcWarning, stacklevel=3)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """The texts of all warnings given within the block, whether or not Python shows them.

    A block within another starts with the outer one's.
    """
    texts = list(_collected.get() or [])
    before = _collected.set(texts)
    try:
        yield texts
    finally:
        _collected.reset(before)


def check_modes(ensemble: RandomizedEnsemble) -> None:
    """Before anything else, while the flags are still as the user left them."""
    for i, member in enumerate(ensemble.members):
        if isinstance(member, nn.Module) and any(getattr(m, "training", False) for m in member.modules()):
            warn(
                f"members[{i}] is in train mode; it is evaluated in eval mode, so call .eval() to see what is measured"
            )


@torch.no_grad()
def check_members(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> list[int]:
    """Check outputs and gradients on the first samples; returns the members that gradients do not see through."""
    blind = []
    for i, member in enumerate(ensemble.members):
        logits, again = member(x), member(x)
        if _differ(logits, again):
            warn(
                f"members[{i}] gives different outputs on the same inputs, so the result depends on chance; average a "
                "random member over its draws, or make each draw a member of its own"
            )
        elif _differ(logits[-1:], member(x[-1:])):
            warn(
                f"members[{i}] answers a sample differently alone than in a batch (a hidden BatchNorm in train mode?), "
                "so results depend on which samples share a batch: pass the model itself, in eval mode"
            )
        if look_like_probabilities(logits):
            warn(
                f"the outputs of members[{i}] look like probabilities; attacks expect logits and are weaker without: "
                "take the softmax out of the model"
            )
        elif not _has_gradients(i, member, x, y):
            blind.append(i)
    why = odd_scale(ball, x.shape[1:]) if ball.box == (0, 1) and x.dim() == 4 else None
    if why is not None:
        warn(f"eps {ball.eps:g} in {ball.norm} {why}, as inputs are in [0, 1]: did you mean {ball.eps:g}/255?")
    if ball.box is None and float(x.min()) >= 0 and float(x.max()) <= 1:
        warn("the inputs lie in [0, 1] but the ball has no box: for images pass box=(0, 1), or attacks will leave it")
    return blind


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def look_like_probabilities(logits: Tensor) -> bool:
    """Rows in [0, 1] that sum to one."""
    inside = bool(((logits >= 0) & (logits <= 1)).all())
    return inside and bool(((logits.sum(1) - 1).abs() < 1e-3).all())


def _has_gradients(i: int, member: Member, x: Tensor, y: Tensor) -> bool:
    """Whether attacks that follow gradients can see through this member; warns if they cannot."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        logits = member(leaf)
        if not logits.requires_grad:
            warn(f"members[{i}] has no gradient in its input, so gradient attacks are blind to it; look for a detach()")
            return False
        of_loss = _vanishing(cross_entropy(logits, y), leaf, logits)
        logits = member(leaf)  # a new pass, because a compiled member allows only one gradient per pass
        mixed = logits @ torch.arange(1, 1 + logits.shape[1], device=x.device, dtype=logits.dtype).cos()
        of_logits = _vanishing(mixed, leaf, logits)
    if of_logits > VANISHED * len(x):
        warn(
            f"the gradient of members[{i}] vanishes on {of_logits} of {len(x)} samples, even that of its logits: it is "
            "masked (by rounding, steps or saturation), and gradient attacks are blind to it; attack a smooth copy of "
            "it, or add an attack without gradients through WorstOf"
        )
    elif of_loss > VANISHED * len(x):
        warn(
            f"the gradient of members[{i}] vanishes on {of_loss} of {len(x)} samples, but only that of the "
            "cross-entropy: its logits are too large for float32; try loss='margin' or --precision float64"
        )
    return max(of_logits, of_loss) <= VANISHED * len(x)


def _vanishing(objective: Tensor, leaf: Tensor, logits: Tensor) -> int:
    """How many samples without NaN logits have an objective whose gradient is exactly zero."""
    (gradient,) = torch.autograd.grad(objective.sum(), leaf)
    return int((~logits.isnan().any(1) & (gradient.flatten(1).abs().amax(1) == 0)).sum())


def check_result(result: Evaluation, classes: int) -> None:
    """Warn of results that point to a mistake in the set-up."""
    chance = 1 / classes
    best = float(result.member_clean.max())
    if len(result) >= LEAST_SAMPLES and best <= 1.5 * chance:
        warn(
            f"clean accuracy is at chance level ({100 * best:.1f} % for {classes} classes); check that weights, "
            "normalisation and class order match the data"
        )
    if len(result.nan_samples):
        warn(
            f"{len(result.nan_samples)} samples gave NaN logits (first: {result.nan_samples[:5].tolist()}); they count "
            "as wrong, and those with NaN on the clean input were not attacked"
        )
    adaptive = result.stage_accuracies.get("adaptive_pgd")
    if adaptive is not None and adaptive.value - result.robust_accuracy > FLATTERY:
        warn(
            f"AdaptivePGD alone would report {100 * adaptive.value:.1f} % where the strongest attack finds "
            f"{100 * result.robust_accuracy:.1f} %; publish the latter"
        )
