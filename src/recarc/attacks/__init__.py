"""Attacks on randomized ensembles; one a file."""

from recarc.attacks.adaptive_pgd import AdaptivePGD
from recarc.attacks.arc import ARC
from recarc.attacks.autopgd import AutoPGD
from recarc.attacks.base import Attack, Outcome
from recarc.attacks.carlini_wagner import CarliniWagner
from recarc.attacks.climb import Climb
from recarc.attacks.combine import RandomAttacker, Restarts, WorstOf
from recarc.attacks.linear_arc import LinearARC
from recarc.attacks.pgd import PGD
from recarc.attacks.tight import Tight

__all__ = [
    "ARC",
    "PGD",
    "AdaptivePGD",
    "Attack",
    "AutoPGD",
    "CarliniWagner",
    "Climb",
    "LinearARC",
    "Outcome",
    "RandomAttacker",
    "Restarts",
    "Tight",
    "WorstOf",
]
