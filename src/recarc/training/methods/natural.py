"""Plain training: the baseline, and where DVERGE starts."""

from __future__ import annotations

from recarc.training.method import Method


class Natural(Method):
    name = "natural"
    summary = "plain training on clean images"
    needs_ball = False
