"""Training of randomized ensembles: one loop, one file a method. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.training.faults import Interrupted, TrainingError
    from recarc.training.methods import method_named, names
    from recarc.training.recipes import Recipe, recipe_for
    from recarc.training.run import train
    from recarc.training.speed_options import Switches

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "faults": "Interrupted TrainingError",
        "speed_options": "Switches",
        "methods": "method_named names",
        "recipes": "Recipe recipe_for",
        "run": "train",
    },
)
