"""Warnings that an evaluation may mislead, each with what to do about it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recarc.ensemble import Member, RandomizedEnsemble, in_train_mode
from recarc.errors import RecarcWarning
from recarc.evaluation import masking
from recarc.evaluation.intervals import wilson
from recarc.evaluation.masking import Signal
from recarc.geometry import Ball, odd_scale

if TYPE_CHECKING:
    from recarc.evaluation.result import Evaluation

FLATTERY = 0.05  # how far AdaptivePGD may exceed the strongest attack
FAR = 10  # how many times larger or smaller than in training an eps may be
LEAST_SAMPLES = 30  # with fewer, a low accuracy may be chance


_collected: ContextVar[list[str] | None] = ContextVar("collected_warnings", default=None)


def warn(text: str) -> None:
    texts = _collected.get()
    if texts is not None:
        texts.append(text)
    warnings.warn(text, RecarcWarning, stacklevel=_level_of_the_caller())


def _level_of_the_caller() -> int:
    """Of the line outside this package that asked for it: the user's own is what a script or notebook should show."""
    frame, level, inside = sys._getframe(1), 1, ("recarc.", "torch.", "contextlib")
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(inside):
        frame, level = frame.f_back, level + 1
    return level


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
    for i in in_train_mode(ensemble.members):
        warn(f"members[{i}] is in train mode; it is evaluated in eval mode, so call .eval() to see what is measured")


def check_ball(ball: Ball, x: Tensor, made_by: Mapping[str, Any]) -> None:
    """Warn of a ball that somebody may not have meant; `made_by` says for which one the members were trained."""
    eps, why = ball.largest_eps, odd_scale(ball, x.shape[1:])
    if why is not None and ball.box is not None:
        meant = f": did you mean {eps:g}/255?" if eps >= 1 and ball.box == (0, 1) else ""
        warn(f"eps {eps:g} in {ball.norm} {why}, as inputs are in [{ball.box[0]:g}, {ball.box[1]:g}]{meant}")
    if float(x.min()) >= 0 and float(x.max()) <= 1:
        if ball.box is None:
            warn(
                "the inputs lie in [0, 1] but the ball has no box: for images pass box=(0, 1), or attacks will leave it"
            )
        elif ball.box[1] > 1:
            box = f"[{ball.box[0]:g}, {ball.box[1]:g}]"
            warn(f"the inputs lie in [0, 1] but the box is {box}: for images pass box=(0, 1)")
    norm, trained = made_by.get("norm"), made_by.get("eps")
    if isinstance(norm, str) and norm != str(ball.norm):
        warn(f"the members were trained in {norm} and are attacked in {ball.norm}: did you mean {norm}?")
    elif why is None and isinstance(trained, float) and eps > 0 and not eps / FAR <= trained <= eps * FAR:
        warn(f"the members were trained for eps {trained:g} in {norm} and are attacked with {eps:g}: is that intended?")


@torch.no_grad()
def check_members(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> list[Signal]:
    """Check outputs and gradients on a few samples; returns the signals that forbid a conclusive verdict."""
    signals = [signal for i, member in enumerate(ensemble.members) for signal in _output_signals(i, member, x)]
    signals += masking.measured(ensemble, x, y, ball)
    for signal in signals:
        warn(f"{signal.name}: {signal.explanation}")
    return signals


def warn_again(summary: dict[str, Any]) -> None:
    """Of the signals that were measured by the process that began this run."""
    names = {signal["name"] for signal in summary["signals"]}
    for text in summary["warnings"]:
        if text.partition(":")[0] in names:
            warn(text)


@torch.no_grad()
def check_survivor(i: int, member: Member, x: Tensor, y: Tensor, ball: Ball) -> list[Signal]:
    """Measure a member again where it withstood every attack; a mask on few samples is a large share of these."""
    signals = list(masking.member_signals(i, member, x, y, ball, left=True))
    for signal in signals:
        warn(f"{signal.name} where every attack failed: {signal.explanation}")
    return signals


def _output_signals(i: int, member: Member, x: Tensor) -> Iterator[Signal]:
    """Whether a member answers by chance, or by what else is in the batch."""
    logits, again = member(x), member(x)
    if _differ(logits, again):
        text = (
            f"members[{i}] gives different outputs on the same inputs, so the result depends on chance; average a "
            "random member over its draws, or make each draw a member of its own"
        )
        yield Signal(i, "random_outputs", 1.0, text)
    elif _differ(logits[-1:], member(x[-1:])):
        text = (
            f"members[{i}] answers a sample differently alone than in a batch (a hidden BatchNorm in train mode?), "
            "so results depend on which samples share a batch: pass the model itself, in eval mode"
        )
        yield Signal(i, "batch_dependent", 1.0, text)


def _differ(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)


def check_result(result: Evaluation, classes: int) -> list[Signal]:
    """Warn of results that point to a mistake in the set-up; returns the signals of members that only guess."""
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
    if len(result) < LEAST_SAMPLES:
        return []
    accuracies = [(i, float(a)) for i, a in enumerate(result.member_clean) if result.alpha[i] > 0]
    return [Signal(i, "chance_level", a) for i, a in accuracies if wilson(a, len(result))[0] <= chance]
