"""Attacks on randomized ensembles, one per file; imported on first use."""

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.attacks.adaptive_pgd import AdaptivePGD
    from recarc.attacks.arc import ARC
    from recarc.attacks.autopgd import AutoPGD
    from recarc.attacks.base import Attack, Outcome, Stage, input_gradient
    from recarc.attacks.carlini_wagner import CarliniWagner
    from recarc.attacks.climb import Climb
    from recarc.attacks.combine import RandomAttacker, Restarts, WorstOf
    from recarc.attacks.lattice_climber import LatticeClimber
    from recarc.attacks.linear_arc import LinearARC
    from recarc.attacks.mora import MORA
    from recarc.attacks.pgd import PGD
    from recarc.attacks.problem import Best, Problem
    from recarc.attacks.square import Square
    from recarc.attacks.tight import Tight

__getattr__, __dir__, __all__ = attach(__name__)
