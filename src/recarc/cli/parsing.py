"""Values as people type them: 8/255, 0.9,0.1, auto, lr=0.1."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from recarc.errors import InputError


def number(name: str, text: str) -> float:
    """A number or a fraction such as 8/255."""
    above, slash, below = text.partition("/")
    try:
        value = float(above) / float(below) if slash else float(above)
    except (ValueError, ZeroDivisionError):
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name} is {text!r}; expected a number or a fraction such as 8/255")
    return value


def numbers(name: str, text: str) -> list[float]:
    """Numbers or fractions, separated by commas."""
    return [number(name, part.strip()) for part in text.split(",")]


def assignments(name: str, form: str, texts: Sequence[str]) -> dict[str, Any]:
    """lr=0.1, drops=[0.5,0.75], batch_norm=true, stem=imagenet: values as JSON where they are, else as words."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InputError(f"{name} takes {form}, got {text!r}")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def size(name: str, text: str) -> int | str:
    """A whole number, or "auto"."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{name} is {text!r}; expected auto or a whole number") from None


def box(text: str) -> tuple[float, float] | None:
    """low,high; or none."""
    if text == "none":
        return None
    values = numbers("box", text)
    if len(values) != 2:
        raise InputError(f"box is {text!r}; expected low,high such as 0,1, or none")
    return values[0], values[1]
