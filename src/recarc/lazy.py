"""Code that is imported when it is needed: public names on first use, and objects that users name."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from recarc.errors import InputError


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package; `homes`: its modules, each with the names that live there.

    Imported on first use, so that `recarc --help` does not wait for torch.

    >>> __getattr__, __dir__, __all__ = attach(__name__, {"geometry": "Ball Norm"})     # doctest: +SKIP
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *home_of}), sorted(home_of)


def imported(kind: str, name: str) -> Any:
    """The object that `package.module:Name` names. Importing runs that module: ask whether it is trusted first."""
    module, _, path = name.partition(":")
    try:
        return operator.attrgetter(path)(import_module(module))
    except ImportError as error:
        raise InputError(
            f"{kind} {name!r} cannot be imported ({error}): install it or put its folder on PYTHONPATH"
        ) from None
    except AttributeError:
        raise InputError(f"{kind} {name!r}: module {module!r} has no {path!r}") from None
