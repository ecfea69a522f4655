"""Trained ensembles that come with the package: `zoo:NAME` works wherever an ensemble folder is expected.

`index.json` holds the SHA-256 of every file and how each ensemble was made; a file that differs is refused. It also
lists the commands that train the ensembles of the paper, most of which are too large to ship.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recarc.atomic import replacing, write_bytes
from recarc.errors import InputError, unknown

HOME = Path(__file__).parent
INDEX = "index.json"
DESCRIPTION = "ensemble.json"
PREFIX = "zoo:"


@dataclass(frozen=True)
class Entry:
    """One ensemble of the zoo. `made` and `recipe` name the recipe that reproduces it."""

    name: str
    title: str
    made: str
    recipe: str
    files: Mapping[str, str]  # name in the folder -> SHA-256
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "files": dict(self.files), "provenance": dict(self.provenance)}


def entries(home: Path | None = None) -> list[Entry]:
    """The ensembles of the zoo, in alphabetical order."""
    return _index(home or HOME)[0]


def recipes() -> dict[str, str]:
    """The command that trains each ensemble of the paper, in a checkout of the repository."""
    return _index(HOME)[1]


def folder(name: str) -> Path:
    """The folder of an ensemble, after comparing its description with the index.

    The description holds the hashes of the weights, which `load_ensemble` compares when it reads them.
    """
    return _compared(name, [DESCRIPTION])


def verify(name: str) -> None:
    """Compare every file of an ensemble with the index."""
    _compared(name, None)


def resolved(path: str | os.PathLike[str]) -> Path:
    """The path itself; for `zoo:NAME` the folder of that ensemble."""
    text = os.fspath(path)
    return folder(text[len(PREFIX) :]) if text.startswith(PREFIX) else Path(path)


def add(source: Path, name: str, title: str, made: str, recipe: str, home: Path | None = None) -> Entry:
    """Copy an ensemble folder into the zoo, with its hashes and provenance in the index."""
    where = home or HOME
    description = json.loads((source / DESCRIPTION).read_text(encoding="utf-8"))
    names = [DESCRIPTION, *(member["weights"] for member in description["members"])]
    for plain in (name, *names):
        if plain in ("", ".", "..") or set(plain) & set("/\\:\0"):
            raise InputError(f"{plain!r} would lie outside the zoo; expected a plain name")
    contents = {file: (source / file).read_bytes() for file in names}
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    entry = Entry(name, title, made, recipe, hashes, _summary(description.get("made_by", {})))
    before, commands = _index(where)
    ensembles = sorted([entry, *(other for other in before if other.name != name)], key=lambda e: e.name)
    document = {"format": 1, "ensembles": [e.to_json() for e in ensembles], "recipes": commands}
    with replacing(where / name) as part:
        part.mkdir()
        for file, data in contents.items():
            (part / file).write_bytes(data)
    write_bytes(where / INDEX, (json.dumps(document, indent=2) + "\n").encode())
    return entry


def _index(home: Path) -> tuple[list[Entry], dict[str, str]]:
    path = home / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        return sorted((Entry(**entry) for entry in index["ensembles"]), key=lambda e: e.name), dict(index["recipes"])
    except FileNotFoundError:
        return [], {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); reinstall recarc") from None


def _compared(name: str, files: Iterable[str] | None) -> Path:
    known = {entry.name: entry for entry in entries()}
    if name not in known:
        raise unknown("ensemble of the zoo", name, known)
    expected = known[name].files
    for file in expected if files is None else files:
        try:
            found = hashlib.sha256((HOME / name / file).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{PREFIX}{name} lacks {file} ({error.strerror}); reinstall recarc") from None
        if found != expected[file]:
            raise InputError(
                f"{PREFIX}{name}: {file} is corrupt, its SHA-256 is {found[:12]}... but the index says "
                f"{expected[file][:12]}...; reinstall recarc"
            )
    return HOME / name


def _summary(made_by: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an ensemble's provenance that a list can show; all of it is in its ensemble.json."""
    wanted = ("command", "method", "data", "arch", "norm", "eps", "members", "seed", "commit", "seconds", "torch")
    shown = {key: made_by[key] for key in wanted if key in made_by}
    recipe, machine = made_by.get("recipe"), made_by.get("machine")
    if isinstance(recipe, Mapping):
        shown |= {key: recipe[key] for key in ("epochs", "batch", "lr", "schedule") if key in recipe}
    if isinstance(machine, Mapping):
        shown["device"] = machine.get("device")
    return shown
