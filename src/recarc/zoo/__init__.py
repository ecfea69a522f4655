"""Trained ensembles that come with the package: `zoo:NAME` wherever an ensemble folder is asked for.

`index.json` holds the SHA-256 of every file and how each ensemble was made; a file that differs is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recarc.atomic import write_bytes
from recarc.errors import InputError, unknown

HOME = Path(__file__).parent
INDEX = "index.json"
PREFIX = "zoo:"


@dataclass(frozen=True)
class Entry:
    """One ensemble of the zoo. `made` and `recipe` name the recipe that makes it again."""

    name: str
    title: str
    made: str
    recipe: str
    files: Mapping[str, str]  # name in the folder -> SHA-256
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "files": dict(self.files), "provenance": dict(self.provenance)}


def entries(home: Path | None = None) -> list[Entry]:
    """What is in the zoo, in alphabetical order."""
    path = (home or HOME) / INDEX
    try:
        told = json.loads(path.read_text(encoding="utf-8"))["ensembles"]
        return sorted((Entry(**entry) for entry in told), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); install recarc again") from None


def folder(name: str, home: Path | None = None) -> Path:
    """The ensemble folder of this name, after every file was compared with the index."""
    known = {entry.name: entry for entry in entries(home)}
    if name not in known:
        raise unknown("ensemble of the zoo", name, known)
    path = (home or HOME) / name
    for file, expected in known[name].files.items():
        try:
            found = hashlib.sha256((path / file).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{PREFIX}{name} lacks {file} ({error.strerror}); install recarc again") from None
        if found != expected:
            raise InputError(
                f"{PREFIX}{name}: {file} is corrupt, its SHA-256 is {found[:12]}... and the index says "
                f"{expected[:12]}...; install recarc again"
            )
    return path


def resolved(path: str | os.PathLike[str]) -> Path:
    """A path as it is; `zoo:NAME` as the folder of that ensemble."""
    text = os.fspath(path)
    return folder(text[len(PREFIX) :]) if text.startswith(PREFIX) else Path(path)


def add(source: Path, name: str, title: str, made: str, recipe: str, home: Path | None = None) -> Entry:
    """Copies an ensemble folder into the zoo and writes its hashes and provenance into the index."""
    where = home or HOME
    told = json.loads((source / "ensemble.json").read_text(encoding="utf-8"))
    names = ["ensemble.json", *(member["weights"] for member in told["members"])]
    for plain in (name, *names):
        if plain in ("", ".", "..") or set(plain) & set("/\\:\0"):
            raise InputError(f"{plain!r} would lie outside the zoo; expected a plain name")
    contents = {file: (source / file).read_bytes() for file in names}
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    entry = Entry(name, title, made, recipe, hashes, summary(told.get("made_by", {})))
    others = [other for other in entries(where) if other.name != name]
    document = {"format": 1, "ensembles": [e.to_json() for e in sorted([*others, entry], key=lambda e: e.name)]}
    (where / name).mkdir(parents=True, exist_ok=True)
    for file, data in contents.items():
        (where / name / file).write_bytes(data)
    write_bytes(where / INDEX, (json.dumps(document, indent=2) + "\n").encode())
    return entry


def summary(made_by: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an ensemble's own provenance that a list can show; the rest stays in its ensemble.json."""
    wanted = ("command", "method", "data", "arch", "norm", "eps", "members", "seed", "commit", "seconds", "torch")
    found = {key: made_by[key] for key in wanted if key in made_by}
    recipe, machine = made_by.get("recipe"), made_by.get("machine")
    if isinstance(recipe, Mapping):
        found |= {key: recipe[key] for key in ("epochs", "batch", "lr", "schedule") if key in recipe}
    if isinstance(machine, Mapping):
        found["device"] = machine.get("device")
    return found
