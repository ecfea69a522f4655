"""What ensembles are called on a board, so that those trained alike meet under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SPELLED = {"mrboost": "MRBoost", "jointibp": "JointIBP"}
WORDS = ("natural", "free", "tournament", "cover")
SHORT = ("at", "bat", "iat", "ibp", "jat", "adp", "gal", "dverge", "trs", "barre")
LABELS = SPELLED | {word: word.capitalize() for word in WORDS} | {word: word.upper() for word in SHORT}
DIVERSE = ("jat", "tournament", "cover")  # methods whose `diversity` belongs to their name: recarc's own
CHAINED = ("mrboost", "barre")  # each member starts from the one before it
OURS = tuple(LABELS[method] for method in DIVERSE)


def method_name(given: str) -> str:
    """A method as the board spells it: iat is IAT; what follows a comma, and names of others, stay as they are."""
    first, comma, rest = given.strip().partition(",")
    return LABELS.get(first.strip().lower(), first.strip()) + comma + rest


def trained_name(made_by: Mapping[str, Any], otherwise: str) -> str:
    """What an ensemble is called by default: its method, `diversity` and options of the architecture."""
    method = str(made_by.get("method") or otherwise)
    recipe, options = (
        value if isinstance(value, dict) else {} for value in map(made_by.get, ("recipe", "arch_options"))
    )
    diversity = recipe.get("diversity", 1.0)
    shown = "diversity" in recipe and (diversity != 1 or method in DIVERSE)
    parts = [f"{diversity:g}"] * shown + [f"{name} {value}" for name, value in options.items()]
    return ", ".join([method_name(method), *parts])


def kind_name(method: str, norm: str, members: int, alpha: Sequence[float]) -> str:
    """What rows have in common that differ in the seed alone."""
    return f"{method}, {norm}, M = {members}, alpha {alpha_name(alpha)}"


def alpha_name(alpha: Sequence[float]) -> str:
    """uniform, or the probabilities in three digits."""
    return "uniform" if np.ptp(alpha) < 1e-6 else ", ".join(f"{a:.3g}" for a in alpha)


def row_name(kind: str, seed: Any) -> str:
    return f"{kind}, seed {seed}"
