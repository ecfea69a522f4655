"""Models: architectures by name, ensemble folders, other people's checkpoints. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recarc.lazy import attach

if TYPE_CHECKING:
    from recarc.models.hub import push_to_hub
    from recarc.models.importers import FORMATS
    from recarc.models.importers.matching import Imported, import_checkpoint
    from recarc.models.registry import FactorySpec, ModelSpec, build, from_factory, names, register, with_factory
    from recarc.models.store import Manifest, MemberFile, load_ensemble, read_manifest, save_ensemble

__getattr__, __dir__, __all__ = attach(__name__)
