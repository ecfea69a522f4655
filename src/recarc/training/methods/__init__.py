"""Training methods by name. Each is one file here, of the same name as its class; nothing else lists them."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from recarc.errors import InputError, unknown
from recarc.lazy import import_object

if TYPE_CHECKING:
    from recarc.training.method import Method


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def method_named(name: str, trust_code: bool = False) -> Method:
    """The method of this name, or with `trust_code` the class that `package.module:Class` names."""
    if ":" in name:
        return _imported(name, trust_code)
    if name not in names():
        raise unknown("training method", name, names(), own="Class")
    home = importlib.import_module(f"{__name__}.{name}")
    return next(value for value in vars(home).values() if getattr(value, "name", None) == name)()


def _imported(name: str, trust_code: bool) -> Method:
    from recarc.training.method import Method

    if not trust_code:
        raise InputError(
            f"training method {name!r} runs its own code: if you trust it, add --trust-code (trust_code=True)"
        )
    method = import_object("training method", name)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise InputError(f"training method {name!r} is no subclass of recarc.training.Method")
    return method()
