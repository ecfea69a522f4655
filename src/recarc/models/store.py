"""Ensemble folders: `ensemble.json` and one weights file per member, saved completely or not at all.

People edit `ensemble.json`, so every field is checked. Each weights file is read and hashed once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from recarc import __version__
from recarc.atomic import read_plain, replacing, write_through
from recarc.errors import InputError
from recarc.models.registry import (
    FactorySpec,
    ModelSpec,
    Spec,
    build_member,
    build_spec,
    own_architecture,
    spec_of,
)
from recarc.models.weights import SUFFIXES, check_fit, dump_state, load_state, parse_state, read_bytes, unwrapped
from recarc.runtime import device_named

if TYPE_CHECKING:
    from recarc.ensemble import RandomizedEnsemble

FILE = "ensemble.json"
FORMAT = "recarc-ensemble"
VERSION = 1
_SHA = re.compile(r"[0-9a-f]{64}")
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class MemberFile:
    """One member: how to rebuild it, the name of its weights file in the folder, and that file's SHA-256.

    `precision`: what the member computes in, where its file holds weights in fewer digits; empty: as in the file.
    """

    spec: Spec
    weights: str
    sha256: str
    precision: str = ""

    def to_json(self) -> dict[str, Any]:
        precision = {"precision": self.precision} if self.precision else {}
        return {**vars(self.spec), "weights": self.weights, "sha256": self.sha256, **precision}


@dataclass(frozen=True)
class Manifest:
    """The contents of `ensemble.json`. `made_by` is free-form provenance: commands, seeds, sources."""

    members: tuple[MemberFile, ...]
    alpha: tuple[float, ...]
    made_by: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """As JSON. Floats are written with the fewest decimals that read back as exactly the same number."""
        document = {
            "format": FORMAT,
            "format_version": VERSION,
            "recarc_version": __version__,
            "alpha": list(self.alpha),
            "members": [member.to_json() for member in self.members],
            "made_by": dict(self.made_by),
        }
        try:
            return json.dumps(document, indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise InputError(f"made_by, options and kwargs must be plain JSON values: {error}") from None


def save_ensemble(
    ensemble: RandomizedEnsemble,
    path: str | Path,
    *,
    made_by: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write an ensemble folder and return its path.

    The folder is written under a temporary name and renamed, so a crash or a full disk leaves nothing half-written.
    A folder that is not empty is refused; with `overwrite=True` an older ensemble folder (and nothing else) is
    replaced.
    """
    from recarc.ensemble import as_ensemble

    target, ensemble = Path(path), as_ensemble(ensemble)
    check_target(target, overwrite)
    specs = [check_member(member, f"member {i}") for i, member in enumerate(ensemble.members)]
    check_classes(specs)
    files, members = {}, []
    for i, (member, spec) in enumerate(zip(ensemble.members, specs)):
        name = f"member_{i}.safetensors"
        files[name], sha256 = dump_state(unwrapped(member))
        members.append(MemberFile(spec, name, sha256))
    alpha = tuple(float(a) for a in ensemble.alpha)
    files[FILE] = Manifest(tuple(members), alpha, dict(made_by or {})).dumps().encode()
    try:
        with replacing(target) as part:
            part.mkdir()
            for name, data in files.items():
                write_through(part / name, data)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}; nothing was saved") from None
    return target


def load_ensemble(
    path: str | Path,
    device: str | torch.device = "cpu",
    *,
    trust_code: bool = False,
    allow_factories: bool = False,
) -> RandomizedEnsemble:
    """Load the ensemble in a folder (or `zoo:NAME`, `hf:user/name@REVISION`) in evaluation mode on `device`.

    Every file is checked first.

    A folder can name code (`module:function`) that makes a member. Loading such a member imports and runs that code,
    which requires `trust_code=True` (`allow_factories` is its older name); weights files never run code.
    """
    from recarc.ensemble import RandomizedEnsemble

    folder, where = ensemble_folder(path), device_named(device)
    manifest = read_manifest(folder)
    check_classes([member.spec for member in manifest.members])
    for i, member in enumerate(manifest.members):
        if ":" not in member.spec.label:
            continue
        if not (trust_code or allow_factories):
            raise InputError(
                f"member {i} of {folder} is made by the code {member.spec.label!r}, and loading it would import and "
                "run that code: if you trust it, load with trust_code=True (--trust-code on the command line)"
            )
        if isinstance(member.spec, ModelSpec):
            own_architecture(member.spec.architecture, trust_code=True)
    members = [_load_member(folder, i, entry).to(where).eval() for i, entry in enumerate(manifest.members)]
    try:
        return RandomizedEnsemble(members, list(manifest.alpha), made_by=manifest.made_by)
    except InputError as error:
        raise InputError(f"{folder / FILE}: {error}") from None


def ensemble_folder(path: str | Path) -> Path:
    """The path itself; for `zoo:NAME` the folder of that ensemble, for `hf:user/name@REVISION` its local copy."""
    if str(path).startswith("hf:"):
        from recarc.models.hub import snapshot

        return snapshot(str(path))
    if not str(path).startswith("zoo:"):
        return Path(path)
    from recarc import zoo

    return zoo.folder(str(path).removeprefix(zoo.PREFIX))


def check_member(member: object, name: str) -> Spec:
    """The description of a member, after checking that the described model has the weights of this one."""
    spec = spec_of(member, name)
    check_fit(_expected(spec), unwrapped(member).state_dict(), name, f"its own description ({spec.label})")
    return spec


def check_target(target: Path, overwrite: bool) -> None:
    """Refuse a target that would cost somebody their files."""
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
        return build_member(spec).state_dict()
    with torch.device("meta"):  # takes no memory, whatever sizes the description asks for
        return build_spec(spec).state_dict()


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
            check_fit(_expected(entry.spec), state, entry.weights, entry.spec.label)
        model = build_member(entry.spec)
        load_state(model, state, entry.weights, entry.spec.label)
    except InputError as error:
        raise InputError(f"member {index} of {folder}: {error}") from None
    return model.to(PRECISIONS[entry.precision]) if entry.precision else model


# Reading ensemble.json ------------------------------------------------------------------------------------


def read_manifest(folder: str | Path) -> Manifest:
    """The description of an ensemble folder (or `zoo:NAME`), without its weights."""
    folder = ensemble_folder(folder)
    path = folder / FILE
    if not folder.is_dir():
        raise InputError(f"{folder} is not an ensemble folder: expected a folder that contains {FILE}")
    try:
        document = json.loads(read_plain(path).decode(), parse_constant=_no_constant)
    except FileNotFoundError:
        raise InputError(f"{folder} is not an ensemble folder: it has no {FILE}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    try:
        return _manifest(document)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _manifest(document: Any) -> Manifest:
    document = _expect(document, "the document", dict, "a JSON object")
    if document.get("format") != FORMAT:
        raise InputError(f"format is {document.get('format')!r}, expected {FORMAT!r}")
    version = document.get("format_version")
    if isinstance(version, int) and version > VERSION:
        raise InputError(f"format_version {version} is newer than this recarc reads ({VERSION}): upgrade recarc")
    if version != VERSION or isinstance(version, bool):
        raise InputError(f"format_version is {version!r}, expected {VERSION}")
    _check_keys(document, {"format", "format_version", "recarc_version", "alpha", "members", "made_by"}, "the document")
    entries = _expect(document.get("members"), "members", list, "a list")
    if not entries:
        raise InputError("members is empty: an ensemble needs at least one")
    members = []
    for index, entry in enumerate(entries):
        try:
            members.append(_member(_expect(entry, "it", dict, "a JSON object")))
        except InputError as error:
            raise InputError(f"member {index}: {error}") from None
    return Manifest(
        members=tuple(members),
        alpha=_alpha(document.get("alpha"), len(members)),
        made_by=_expect(document.get("made_by", {}), "made_by", dict, "a JSON object"),
    )


def _member(entry: dict[str, Any]) -> MemberFile:
    if ("architecture" in entry) == ("factory" in entry):
        raise InputError("it needs exactly one of 'architecture' and 'factory'")
    kind = FactorySpec if "factory" in entry else ModelSpec
    known = {part.name for part in fields(kind)}
    _check_keys(entry, known | {"weights", "sha256", "precision"}, "it")
    weights, sha256 = entry.get("weights"), entry.get("sha256")
    precision = "" if entry.get("precision") is None else entry["precision"]
    if not isinstance(weights, str) or weights in ("", ".", "..") or set(weights) & set("/\\:\0"):
        raise InputError(f"weights must name a file inside the folder, got {weights!r}")
    if not weights.endswith(SUFFIXES):
        raise InputError(f"weights {weights!r} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if not isinstance(sha256, str) or not _SHA.fullmatch(sha256):
        raise InputError(f"sha256 must be the 64 hexadecimal digits that `sha256sum {weights}` prints, got {sha256!r}")
    if precision not in ("", *PRECISIONS):
        raise InputError(f"precision is {precision!r}, expected {' or '.join(PRECISIONS)}, or nothing (as in the file)")
    given = {key: entry[key] for key in known if entry.get(key) is not None}  # null stands for the default
    if kind is ModelSpec:
        _expect(given.get("architecture"), "architecture", str, "a name")
        _expect(given.get("options", {}), "options", dict, "a JSON object")
        if "classes" not in given:
            raise InputError("classes is missing")
    return MemberFile(kind(**given), weights, sha256, precision)


def _alpha(value: Any, count: int) -> tuple[float, ...]:
    numbers = _expect(value, "alpha", list, "a list of probabilities")
    if not all(isinstance(a, int | float) and not isinstance(a, bool) and abs(a) < 1e9 for a in numbers):
        raise InputError(f"alpha must be a list of numbers, got {numbers}")
    if len(numbers) != count:
        raise InputError(f"alpha has {len(numbers)} values for {count} members")
    return tuple(float(a) for a in numbers)


def _expect(value: Any, name: str, kind: type, words: str) -> Any:
    if not isinstance(value, kind):
        raise InputError(f"{name} must be {words}, got {value!r:.80}")
    return value


def _check_keys(entry: dict[str, Any], known: set[str], name: str) -> None:
    for key in entry:
        if key not in known:
            raise InputError(f"{name} has the unknown key {key!r}; known: {', '.join(sorted(known))}")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
