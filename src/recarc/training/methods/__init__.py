"""Training methods by name, one a file."""

from __future__ import annotations

import importlib

from recarc.errors import unknown
from recarc.training.method import Method

_CLASSES = {
    "natural": "Natural",
    "at": "AT",
    "bat": "BAT",
    "iat": "IAT",
    "free": "Free",
    "adp": "ADP",
    "gal": "GAL",
    "dverge": "DVERGE",
    "trs": "TRS",
    "mrboost": "MRBoost",
    "barre": "BARRE",
}


def names() -> list[str]:
    return list(_CLASSES)


def method_named(name: str) -> Method:
    """The method of this name, or an error that suggests the nearest."""
    if name not in _CLASSES:
        raise unknown("training method", name, _CLASSES)
    method: Method = getattr(importlib.import_module(f"recarc.training.methods.{name}"), _CLASSES[name])()
    return method
