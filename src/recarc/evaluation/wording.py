"""A run's configuration in words, for tables and pages."""

from __future__ import annotations

from typing import Any


def eps_text(eps: Any) -> str:
    """8/255 where that is what it is."""
    if not isinstance(eps, (int, float)):
        return "of each sample"
    pixels = eps * 255
    if len(f"{eps:g}") > 5 and abs(pixels - round(pixels)) < 1e-6 and eps < 1:
        return f"{round(pixels)}/255"
    return f"{eps:g}"


def attack_text(attack: Any) -> str:
    """ARC(steps=20, planes=4): the knobs that are set."""
    if isinstance(attack, list):
        return "[" + ", ".join(attack_text(a) for a in attack) + "]"
    if not isinstance(attack, dict) or "class" not in attack:
        return str(attack)
    knobs = (f"{k}={attack_text(v)}" for k, v in attack.items() if k != "class" and v is not None)
    return f"{attack['class']}({', '.join(knobs)})"
