"""recarc: how robust is a randomized ensemble of classifiers, really?"""

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.attacks import (
        ARC,
        MORA,
        PGD,
        AdaptivePGD,
        Attack,
        AutoPGD,
        CarliniWagner,
        Climb,
        LatticeClimber,
        LinearARC,
        RandomAttacker,
        Restarts,
        Square,
        Tight,
        WorstOf,
    )
    from recarc.ensemble import RandomizedEnsemble
    from recarc.errors import InputError
    from recarc.evaluation import Evaluation, Verdict, evaluate
    from recarc.evaluation.certification import certify
    from recarc.fast import accelerate
    from recarc.geometry import Ball, Norm
    from recarc.models import load_ensemble, save_ensemble

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach(__name__)
