"""Code that is imported when it is needed: public names on first use, and objects that users name."""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recarc.errors import InputError


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package: what its `__init__.py` imports under `if TYPE_CHECKING:`.

    Those names are imported on first use, so that `recarc --help` does not wait for torch; so are its modules.

    >>> if TYPE_CHECKING:                                               # doctest: +SKIP
    ...     from recarc.geometry import Ball, Norm
    >>> __getattr__, __dir__, __all__ = attach(__name__)                # doctest: +SKIP
    """
    home_of = _imports_for_type_checkers(Path(sys.modules[package].__file__ or ""))

    def get(name: str) -> Any:
        if (
            name not in home_of
            and not name.startswith("_")
            and name.isidentifier()
            and find_spec(f"{package}.{name}") is not None
        ):
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *home_of}), sorted(home_of)


def _imports_for_type_checkers(file: Path) -> dict[str, str]:
    """Each name imported under `if TYPE_CHECKING:` in a source file, and the module it comes from."""
    blocks = (node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = (line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom))
    return {name.name: str(line.module) for line in imports for name in line.names}


def import_object(kind: str, name: str) -> Any:
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
