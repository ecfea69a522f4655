"""Learning rate and averaging rate as functions of how much of the run is done."""

from __future__ import annotations

from recarc.training.recipes import Recipe


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The rate of step `step` (from 0) of `steps`."""
    done = step / steps
    if recipe.schedule == "step":
        return recipe.lr * 0.1 ** sum(done >= drop for drop in recipe.drops)
    if recipe.schedule == "one-cycle":  # linear up to the peak, linear down to zero
        middle = (step + 0.5) / steps
        return recipe.lr * min(middle / recipe.warmup, (1 - middle) / (1 - recipe.warmup))
    return recipe.lr


def average_decay(recipe: Recipe, step: int) -> float:
    """The weight average's decay; small at first, so that the initial weights are soon forgotten."""
    return min(recipe.ema, (1 + step) / (10 + step))
