"""Warnings where an evaluation may mislead, each saying what to do."""

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

PROBE = 64  # samples that are looked at before a run
VANISHED = 0.1  # share of samples without a gradient that is worth a warning
FLATTERY = 0.05  # how far AdaptivePGD may lie above the worst attack
LEAST_SAMPLES = 30  # below this many samples a low accuracy may be chance


class RecarcWarning(UserWarning):
    """The evaluation goes on, but its figure may mislead."""


_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


def warn(text: str) -> None:
    texts = _heard.get()
    if texts is not None:
        texts.append(text)
    warnings.warn(text, RecarcWarning, stacklevel=3)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Every text that is warned of meanwhile, whether or not Python shows it; after those of a `heard` around it."""
    texts = list(_heard.get() or [])
    before = _heard.set(texts)
    try:
        yield texts
    finally:
        _heard.reset(before)


def check_modes(ensemble: RandomizedEnsemble) -> None:
    """Before anything else: flags as the user left them."""
    for i, member in enumerate(ensemble.members):
        if isinstance(member, nn.Module) and any(getattr(m, "training", False) for m in member.modules()):
            warn(
                f"members[{i}] is in train mode; it is evaluated in eval mode, so call .eval() to see what is measured"
            )


@torch.no_grad()
def check_members(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> list[int]:
    """Outputs and gradients on the first samples (in evaluation mode); returns the members without a gradient."""
    blind = []
    for i, member in enumerate(ensemble.members):
        logits, again = member(x), member(x)
        if _differ(logits, again):
            warn(
                f"members[{i}] gives different outputs on the same inputs; a random member needs an average over its "
                "draws (or each draw as a member of its own), otherwise the figure is luck"
            )
        elif _differ(logits[-1:], member(x[-1:])):
            warn(
                f"members[{i}] answers a sample differently alone than in a batch (a BatchNorm in train mode out of "
                "reach?); its figures depend on which samples go together: hand over the model itself, in eval mode"
            )
        if look_like_probabilities(logits):
            warn(
                f"the outputs of members[{i}] look like probabilities; attacks expect logits and are weakened: "
                "take the softmax out of the model"
            )
        elif not _gradients_show(i, member, x, y):
            blind.append(i)
    why = odd_scale(ball, x.shape[1:]) if ball.box == (0, 1) and x.dim() == 4 else None
    if why is not None:
        warn(f"eps {ball.eps:g} in {ball.norm} {why}, as inputs are in [0, 1]: did you mean {ball.eps:g}/255?")
    if ball.box is None and float(x.min()) >= 0 and float(x.max()) <= 1:
        warn("the inputs lie in [0, 1] but the ball has no box: for images pass box=(0, 1), or the attack leaves it")
    return blind


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def look_like_probabilities(logits: Tensor) -> bool:
    """Rows in [0, 1] that sum to one."""
    inside = bool(((logits >= 0) & (logits <= 1)).all())
    return inside and bool(((logits.sum(1) - 1).abs() < 1e-3).all())


def _gradients_show(i: int, member: Member, x: Tensor, y: Tensor) -> bool:
    """Whether attacks that follow gradients can see this member; a word where they cannot."""
    with torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        logits = member(leaf)
        if not logits.requires_grad:
            warn(
                f"members[{i}] has no gradient in its input; gradient attacks cannot see it, so check it for a detach()"
            )
            return False
        lost = _zero(cross_entropy(logits, y), leaf, logits)
        logits = member(leaf)  # again: a compiled member allows one gradient a pass
        mixed = logits @ torch.arange(1, 1 + logits.shape[1], device=x.device, dtype=logits.dtype).cos()
        flat = _zero(mixed, leaf, logits)
    if flat > VANISHED * len(x):
        warn(
            f"the gradient of members[{i}] vanishes on {flat} of {len(x)} samples, even that of its logits: it is "
            "masked (rounding, steps, saturation inside), and gradient attacks cannot see it; attack a smooth copy of "
            "it, or add an attack without gradients through WorstOf"
        )
    elif lost > VANISHED * len(x):
        warn(
            f"the gradient of members[{i}] vanishes on {lost} of {len(x)} samples, that of the cross-entropy only: its "
            "logits are too large for float32; try loss='margin' or --precision float64"
        )
    return max(flat, lost) <= VANISHED * len(x)


def _zero(objective: Tensor, leaf: Tensor, logits: Tensor) -> int:
    """Samples whose logits are numbers and whose objective has a gradient of exactly zero."""
    (gradient,) = torch.autograd.grad(objective.sum(), leaf)
    return int((~logits.isnan().any(1) & (gradient.flatten(1).abs().amax(1) == 0)).sum())


def check_result(result: Evaluation, classes: int) -> None:
    """After a run: figures that point to a mistake in the set-up."""
    chance = 1 / classes
    best = float(result.member_clean.max())
    if len(result) >= LEAST_SAMPLES and best <= 1.5 * chance:
        warn(
            f"clean accuracy is at chance level ({100 * best:.1f} % for {classes} classes); check that weights, "
            "normalisation and the order of the classes belong to these data"
        )
    if len(result.nan_samples):
        warn(
            f"{len(result.nan_samples)} samples gave NaN logits (first: {result.nan_samples[:5].tolist()}); they count "
            "as wrong, and those with NaN on the clean input were not attacked"
        )
    adaptive = result.stage_accuracies.get("adaptive_pgd")
    if adaptive is not None and adaptive.value - result.robust_accuracy > FLATTERY:
        warn(
            f"AdaptivePGD alone would report {100 * adaptive.value:.1f} % where the worst attack finds "
            f"{100 * result.robust_accuracy:.1f} %; publish the worst"
        )
