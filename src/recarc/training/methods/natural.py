"""Plain training: the baseline, and the starting point of DVERGE."""

from __future__ import annotations

from recarc.training.method import Method


class Natural(Method):
    summary = "plain training on clean images"
    needs_ball = False
