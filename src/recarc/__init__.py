"""recarc: how robust is a randomized ensemble of classifiers, really?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recarc.attacks import (
        ARC,
        PGD,
        AdaptivePGD,
        Attack,
        AutoPGD,
        CarliniWagner,
        Climb,
        LinearARC,
        RandomAttacker,
        Restarts,
        Tight,
        WorstOf,
    )
    from recarc.ensemble import RandomizedEnsemble
    from recarc.errors import InputError
    from recarc.evaluation import Evaluation, Verdict, evaluate
    from recarc.geometry import Ball, Norm
    from recarc.models import load_ensemble, save_ensemble

__version__ = "0.1.0"

# Where each name lives. Imported on first use, so that `recarc --help` does not wait for torch.
_HOMES = {
    "ARC": "attacks",
    "PGD": "attacks",
    "AdaptivePGD": "attacks",
    "Attack": "attacks",
    "AutoPGD": "attacks",
    "Ball": "geometry",
    "CarliniWagner": "attacks",
    "Climb": "attacks",
    "Evaluation": "evaluation",
    "InputError": "errors",
    "LinearARC": "attacks",
    "Norm": "geometry",
    "RandomAttacker": "attacks",
    "RandomizedEnsemble": "ensemble",
    "Restarts": "attacks",
    "Tight": "attacks",
    "Verdict": "evaluation",
    "WorstOf": "attacks",
    "evaluate": "evaluation",
    "load_ensemble": "models",
    "save_ensemble": "models",
}

__all__ = [
    "ARC",
    "PGD",
    "AdaptivePGD",
    "Attack",
    "AutoPGD",
    "Ball",
    "CarliniWagner",
    "Climb",
    "Evaluation",
    "InputError",
    "LinearARC",
    "Norm",
    "RandomAttacker",
    "RandomizedEnsemble",
    "Restarts",
    "Tight",
    "Verdict",
    "WorstOf",
    "evaluate",
    "load_ensemble",
    "save_ensemble",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'recarc' has no attribute {name!r}")
    value = getattr(import_module(f"recarc.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
