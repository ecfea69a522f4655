"""Models: architectures by name, ensemble folders, other people's checkpoints. Importing this imports no torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recarc.models.factories import from_factory, with_factory
    from recarc.models.folding import fold_batch_norm
    from recarc.models.importers import FORMATS, Imported, import_checkpoint
    from recarc.models.manifest import Manifest, MemberFile, read_manifest
    from recarc.models.registry import build, names
    from recarc.models.spec import FactorySpec, ModelSpec
    from recarc.models.store import load_ensemble, save_ensemble

__all__ = [
    "FORMATS",
    "FactorySpec",
    "Imported",
    "Manifest",
    "MemberFile",
    "ModelSpec",
    "build",
    "fold_batch_norm",
    "from_factory",
    "import_checkpoint",
    "load_ensemble",
    "names",
    "read_manifest",
    "save_ensemble",
    "with_factory",
]

_HOMES = {
    "factories": ("from_factory", "with_factory"),
    "folding": ("fold_batch_norm",),
    "importers": ("FORMATS", "Imported", "import_checkpoint"),
    "manifest": ("Manifest", "MemberFile", "read_manifest"),
    "registry": ("build", "names"),
    "spec": ("FactorySpec", "ModelSpec"),
    "store": ("load_ensemble", "save_ensemble"),
}


def __getattr__(name: str) -> Any:
    for home, exported in _HOMES.items():
        if name in exported:
            return getattr(importlib.import_module(f"recarc.models.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
