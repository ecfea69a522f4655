"""Ensemble folders: `ensemble.json` and one weights file a member, written as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from recarc.atomic import replacing, write_through
from recarc.errors import InputError
from recarc.models.factories import make_member, spec_of, unwrapped
from recarc.models.manifest import FILE, Manifest, MemberFile, read_manifest
from recarc.models.registry import build_spec
from recarc.models.spec import FactorySpec, ModelSpec, Spec
from recarc.models.weights import check_fit, dump_state, load_state, parse_state, read_bytes
from recarc.runtime import device_named
from recarc.zoo import resolved

if TYPE_CHECKING:
    from recarc.ensemble import RandomizedEnsemble


def save_ensemble(
    ensemble: RandomizedEnsemble,
    path: str | Path,
    *,
    made_by: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes an ensemble folder and returns its path.

    The folder is written under a temporary name beside `path` and renamed, so that a crash or a full disk
    leaves nothing half-written. A folder that has anything in it is refused; with `overwrite=True` an
    older ensemble folder (and nothing else) is replaced.
    """
    target = Path(path)
    check_target(target, overwrite)
    specs = [spec_of(member, i) for i, member in enumerate(ensemble.members)]
    check_classes(specs)
    modules = [unwrapped(member) for member in ensemble.members if isinstance(member, nn.Module)]
    for i, (module, spec) in enumerate(zip(modules, specs)):
        check_fit(_expected(spec), module.state_dict(), f"member {i}", f"its own description ({_name(spec)})")
    files, members = {}, []
    for i, (module, spec) in enumerate(zip(modules, specs)):
        name = f"member_{i}.safetensors"
        files[name], sha256 = dump_state(module)
        members.append(MemberFile(spec, name, sha256))
    alpha = tuple(float(a) for a in ensemble.alpha)
    files[FILE] = Manifest(tuple(members), alpha, dict(made_by or {})).dumps().encode()
    _write_folder(target, files)
    return target


def load_ensemble(
    path: str | Path, device: str | torch.device = "cpu", *, allow_factories: bool = False
) -> RandomizedEnsemble:
    """The ensemble in a folder (or `zoo:NAME`), in evaluation mode on `device`. Every file is checked first.

    A folder can name a factory (`module:function`) for a member. Loading such a member imports and runs
    that code, so it happens only with `allow_factories=True`; weights files never run code.
    """
    from recarc.ensemble import RandomizedEnsemble

    folder, where = resolved(path), device_named(device)
    manifest = read_manifest(folder)
    check_classes([member.spec for member in manifest.members])
    if not allow_factories:
        _refuse_factories(folder, manifest)
    members = [_load_member(folder, i, entry).to(where).eval() for i, entry in enumerate(manifest.members)]
    try:
        return RandomizedEnsemble(members, list(manifest.alpha))
    except InputError as error:
        raise InputError(f"{folder / FILE}: {error}") from None


def check_target(target: Path, overwrite: bool) -> None:
    """Refuses a target that would cost somebody their files."""
    if not target.name:
        raise InputError(f"{str(target)!r} cannot be an ensemble folder: give it a name")
    if not os.path.lexists(target):
        return
    if not target.is_dir() or target.is_symlink():
        raise InputError(f"{target} exists and is not a folder: choose another path")
    inside = sorted(entry.name for entry in target.iterdir())
    if not inside:
        return
    if not overwrite:
        raise InputError(f"{target} is not empty: choose another path or pass overwrite=True")
    try:
        own = {FILE, *(member.weights for member in read_manifest(target).members)}
    except InputError as error:
        raise InputError(f"{target} is not overwritten, because it may hold something else: {error}") from None
    foreign = [name for name in inside if name not in own]
    if foreign:
        raise InputError(f"{target} also holds {foreign[0]!r}, so it is not overwritten: choose another path")


def check_classes(specs: Sequence[Spec]) -> None:
    counts = [spec.classes for spec in specs]
    if len({count for count in counts if count is not None}) > 1:
        raise InputError(f"members have different numbers of classes: {counts}")


def _expected(spec: Spec) -> dict[str, torch.Tensor]:
    """The names and shapes of the weights of the model that `spec` builds."""
    if isinstance(spec, FactorySpec):
        return make_member(spec).state_dict()
    with torch.device("meta"):  # takes no memory, whatever sizes the description asks for
        return build_spec(spec).state_dict()


def _name(spec: Spec) -> str:
    return spec.architecture if isinstance(spec, ModelSpec) else spec.factory


def _refuse_factories(folder: Path, manifest: Manifest) -> None:
    for i, member in enumerate(manifest.members):
        if isinstance(member.spec, FactorySpec):
            raise InputError(
                f"member {i} of {folder} is made by the code {member.spec.factory!r}, and loading it would import and "
                "run that code: where you trust it, load with allow_factories=True (--trust-code on the command line)"
            )


def _load_member(folder: Path, index: int, entry: MemberFile) -> nn.Module:
    path = folder / entry.weights
    data, sha256 = read_bytes(path)
    if sha256 != entry.sha256:
        raise InputError(
            f"{path} is corrupt or was replaced: its SHA-256 is {sha256[:12]}..., {FILE} says {entry.sha256[:12]}..."
        )
    state = parse_state(data, path)
    try:
        if isinstance(entry.spec, ModelSpec):
            check_fit(_expected(entry.spec), state, entry.weights, entry.spec.architecture)
        model = make_member(entry.spec)
        load_state(model, state, entry.weights, _name(entry.spec))
    except InputError as error:
        raise InputError(f"member {index} of {folder}: {error}") from None
    return model


def _write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    try:
        with replacing(target) as part:
            part.mkdir()
            for name, data in files.items():
                write_through(part / name, data)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}; nothing was saved") from None
