"""recarc: how robust is a randomized ensemble of classifiers, really?"""

from recarc.attacks import (
    ARC,
    PGD,
    AdaptivePGD,
    Attack,
    CarliniWagner,
    LinearARC,
    RandomAttacker,
    Restarts,
    WorstOf,
)
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.geometry import Ball, Norm

__version__ = "0.1.0"

__all__ = [
    "ARC",
    "PGD",
    "AdaptivePGD",
    "Attack",
    "Ball",
    "CarliniWagner",
    "InputError",
    "LinearARC",
    "Norm",
    "RandomAttacker",
    "RandomizedEnsemble",
    "Restarts",
    "WorstOf",
]
