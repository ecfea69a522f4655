"""Training of randomized ensembles: one loop, one file per method. Importing this does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.errors import Interrupted
    from recarc.training.checkpoint import TrainingError
    from recarc.training.method import LossTerms, Method, Stage, StepContext
    from recarc.training.methods import method_named, names
    from recarc.training.recipes import Recipe, recipe_for
    from recarc.training.run import train
    from recarc.training.speed_options import SpeedOptions

__getattr__, __dir__, __all__ = attach(__name__)
