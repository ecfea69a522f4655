"""Models: architectures by name, ensemble folders, other people's checkpoints. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.models.factories import from_factory, with_factory
    from recarc.models.importers import FORMATS, Imported, import_checkpoint
    from recarc.models.manifest import Manifest, MemberFile, read_manifest
    from recarc.models.registry import build, names
    from recarc.models.spec import FactorySpec, ModelSpec
    from recarc.models.store import load_ensemble, save_ensemble

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "factories": "from_factory with_factory",
        "importers": "FORMATS Imported import_checkpoint",
        "manifest": "Manifest MemberFile read_manifest",
        "registry": "build names",
        "spec": "FactorySpec ModelSpec",
        "store": "load_ensemble save_ensemble",
    },
)
