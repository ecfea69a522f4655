"""`ensemble.json`: the description of an ensemble folder, read with suspicion because people edit it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from recarc.errors import InputError
from recarc.models.spec import FactorySpec, ModelSpec, Spec

FILE = "ensemble.json"
FORMAT = "recarc-ensemble"
VERSION = 1
_SHA = re.compile(r"[0-9a-f]{64}")
_REGISTERED = {"architecture", "options", "classes", "channels", "image_size", "mean", "std", "weights", "sha256"}
_FACTORY = {"factory", "kwargs", "classes", "weights", "sha256"}


@dataclass(frozen=True)
class MemberFile:
    """One member: how to build it, the name of its weights file in the folder, and that file's SHA-256."""

    spec: Spec
    weights: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What `ensemble.json` says. `made_by` is free provenance: commands, seeds, sources."""

    members: tuple[MemberFile, ...]
    alpha: tuple[float, ...]
    made_by: Mapping[str, Any] = field(default_factory=dict)

    def dumps(self) -> str:
        """As JSON. Floats are written in the shortest decimals that read back to exactly the same number."""
        document = {
            "format": FORMAT,
            "format_version": VERSION,
            "recarc_version": _own_version(),
            "alpha": list(self.alpha),
            "members": [{**m.spec.to_json(), "weights": m.weights, "sha256": m.sha256} for m in self.members],
            "made_by": dict(self.made_by),
        }
        try:
            return json.dumps(document, indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise InputError(f"made_by, options and kwargs must be plain JSON values: {error}") from None


def read_manifest(folder: str | Path) -> Manifest:
    """The description of an ensemble folder, without its weights."""
    folder = Path(folder)
    path = folder / FILE
    if not folder.is_dir():
        raise InputError(f"{folder} is not an ensemble folder: expected a folder with {FILE} in it")
    try:
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
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
    make: Callable[[dict[str, Any]], Spec]
    if ("architecture" in entry) == ("factory" in entry):
        raise InputError("needs exactly one of 'architecture' and 'factory'")
    known, make = (_FACTORY, _factory_spec) if "factory" in entry else (_REGISTERED, _model_spec)
    _check_keys(entry, known, "it")
    weights, sha256 = entry.get("weights"), entry.get("sha256")
    if not isinstance(weights, str) or weights in ("", ".", "..") or set(weights) & set("/\\:\0"):
        raise InputError(f"weights must name a file inside the folder, got {weights!r}")
    if not weights.endswith((".safetensors", ".pt", ".pth")):
        raise InputError(f"weights {weights!r} must end in .safetensors, .pt or .pth")
    if not isinstance(sha256, str) or not _SHA.fullmatch(sha256):
        raise InputError(f"sha256 must be the 64 hexadecimal digits that `sha256sum {weights}` prints, got {sha256!r}")
    return MemberFile(make(entry), weights, sha256)


def _model_spec(entry: dict[str, Any]) -> ModelSpec:
    fields = {key: entry[key] for key in ("classes", "channels", "image_size", "mean", "std") if key in entry}
    if "classes" not in fields:
        raise InputError("classes is missing")
    architecture = _expect(entry["architecture"], "architecture", str, "a name")
    return ModelSpec(architecture, **fields, options=_expect(entry.get("options", {}), "options", dict, "an object"))


def _factory_spec(entry: dict[str, Any]) -> FactorySpec:
    return FactorySpec(entry["factory"], entry.get("kwargs", {}), entry.get("classes"))


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


def _own_version() -> str:
    try:
        return metadata.version("recarc")
    except metadata.PackageNotFoundError:
        return "unknown"
