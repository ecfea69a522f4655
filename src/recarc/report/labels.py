"""What the report calls each attack, how it orders them, and which colour it gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
BEST_MEMBER = "Best member alone"
# Stages of Tight that say what one attack alone reports; the other stages are the best so far.
ATTACK_OF_STAGE = {"adaptive_pgd": "AdaptivePGD", "arc": "ARC"}
STAGE_LABELS = {
    "clean": "no attack needed",
    "adaptive_pgd": "AdaptivePGD",
    "arc": "ARC",
    "members": "AutoPGD on a member",
    "square": "Square on a member",
    "corrected_arc": "ARC, corrected",
    "climb": "Climb",
    **{f"round_{r}": f"Climb, round {r}" for r in range(1, 10)},
    "restarts": "Climb, all rounds",
    "challenge": "the challenge",
    "none": "no attack succeeded",
}
# The roles are the colours of the page (templates/page.css) and of the figures (figures.COLOURS).
ROLES = {
    "Clean": "clean",
    "PGD": "pgd",
    "AdaptivePGD": "adaptive",
    "ARC": "arc",
    "Tight": "tight",
    "Floor": "floor",
    BEST_MEMBER: "best",
}
FIRST, LAST = ("Clean", "PGD", "AdaptivePGD", "ARC"), ("Tight", "Floor", BEST_MEMBER)  # all others in between


def role(label: str) -> str:
    return ROLES.get(label, "other")


def position(label: str) -> int:
    """Sorts from the clean accuracy over ever stronger attacks to the floor."""
    if label in FIRST:
        return FIRST.index(label)
    return len(FIRST) + 1 + LAST.index(label) if label in LAST else len(FIRST)


def numbered(labelled: Iterable[tuple[str, T]]) -> dict[str, T]:
    """As a dictionary, in which a label that comes again gets a number: ARC, ARC (2), ARC (3)."""
    unique: dict[str, T] = {}
    for label, value in labelled:
        name, number = label, 2
        while name in unique:
            name, number = f"{label} ({number})", number + 1
        unique[name] = value
    return unique
