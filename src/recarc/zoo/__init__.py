"""Trained ensembles that come with the package: `zoo:NAME` works wherever an ensemble folder is expected.

`index.json` holds the SHA-256 of every file and how each ensemble was made; a file that differs is refused. It also
lists the commands that train the ensembles of the paper, most of which are too large to ship.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
