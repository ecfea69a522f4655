"""Training of randomized ensembles: one loop, one file a method. Importing this imports no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recarc.training.faults import Interrupted, TrainingError
    from recarc.training.machine import Switches
    from recarc.training.methods import method_named, names
    from recarc.training.recipes import Recipe, recipe_for
    from recarc.training.run import train

__all__ = ["Interrupted", "Recipe", "Switches", "TrainingError", "method_named", "names", "recipe_for", "train"]

_HOMES = {
    "faults": ("Interrupted", "TrainingError"),
    "machine": ("Switches",),
    "methods": ("method_named", "names"),
    "recipes": ("Recipe", "recipe_for"),
    "run": ("train",),
}


def __getattr__(name: str) -> Any:
    for home, exported in _HOMES.items():
        if name in exported:
            return getattr(importlib.import_module(f"recarc.training.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
