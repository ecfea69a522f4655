"""Plain training: the baseline, and the starting point of DVERGE."""

from __future__ import annotations

from dataclasses import replace

from recarc.training.method import Method
from recarc.training.recipes import Recipe


class Natural(Method):
    summary = "plain training on clean images"
    needs_ball = False

    def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
        if name == "paper" or data == "digits":
            return base
        return replace(base, epochs=min(base.epochs, 30), weight_decay=5e-4)
