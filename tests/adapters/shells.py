"""Empty shells of packages, so that a peer can be imported which only needs their names."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

NAMES = ("torchvision", "gdown", "geotorch", "torchdiffeq", "pkg_resources")


class AnyName(type):
    """A class on which every attribute is another such class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyName(name, (cls,), {})


class Shell(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyName(name, (), {"__init__": lambda self, *a, **k: None})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.split(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Shell(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


sys.meta_path.append(Finder())  # after the real ones: a package that is there is used
