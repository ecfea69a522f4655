"""Trained ensembles that come with the package: `zoo:NAME` works wherever an ensemble folder is expected.

`index.json` holds the SHA-256 of every file and how each ensemble was made; a file that differs is refused. It also
lists the commands that train the ensembles of the paper, most of which are too large to ship. What `recarc zoo add`
takes from archives is kept in the same way beside the cache of data sets.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recarc.atomic import cache_home, replacing, write_bytes, write_through
from recarc.errors import InputError, unknown

HOME = Path(__file__).parent
INDEX = "index.json"
DESCRIPTION = "ensemble.json"
PREFIX = "zoo:"
SHOWN = ("command", "method", "data", "arch", "norm", "eps", "members", "seed", "commit", "seconds", "torch")
SHOWN_OF_RECIPE = ("epochs", "batch", "lr", "schedule")


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


def added_home() -> Path:
    """Where the ensembles are that `recarc zoo add` has taken."""
    return cache_home() / "zoo"


def added() -> list[Entry]:
    """The ensembles that `recarc zoo add` has taken, in alphabetical order."""
    return _index(added_home())[0]


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


def keep(entry: Entry, contents: Mapping[str, bytes], home: Path, recipes: Mapping[str, str]) -> None:
    """Write an ensemble's files into the zoo at `home`, in place of one of that name, and then the index."""
    with replacing(home / entry.name) as part:
        part.mkdir()
        for file, data in contents.items():
            write_through(part / file, data)
    others = [e for e in entries(home) if e.name != entry.name]
    listed = [e.to_json() for e in sorted([entry, *others], key=lambda e: e.name)]
    document = {"format": 1, "ensembles": listed, "recipes": dict(recipes)}
    write_bytes(home / INDEX, (json.dumps(document, indent=2) + "\n").encode())


def summary(made_by: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an ensemble's provenance that a list can show; all of it is in its ensemble.json."""
    shown = {key: made_by[key] for key in SHOWN if key in made_by}
    recipe, machine = made_by.get("recipe"), made_by.get("machine")
    if isinstance(recipe, Mapping):
        shown |= {key: recipe[key] for key in SHOWN_OF_RECIPE if key in recipe}
    if isinstance(machine, Mapping):
        shown["device"] = machine.get("device")
    return shown


def _index(home: Path) -> tuple[list[Entry], dict[str, str]]:
    path = home / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        return sorted((Entry(**entry) for entry in index["ensembles"]), key=lambda e: e.name), dict(index["recipes"])
    except FileNotFoundError:
        return [], {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "reinstall recarc" if home == HOME else "move the folder away and add its ensembles again"
        raise InputError(f"{path} is damaged ({error}); {remedy}") from None


def _compared(name: str, files: Iterable[str] | None) -> Path:
    homes = {entry.name: home for home in (added_home(), HOME) for entry in entries(home)}  # ours come before theirs
    if name not in homes:
        raise unknown("ensemble of the zoo", name, homes)
    home = homes[name]
    expected = {entry.name: entry.files for entry in entries(home)}[name]
    remedy = "reinstall recarc" if home == HOME else f"delete {home / name} and add it again"
    for file in expected if files is None else files:
        try:
            found = hashlib.sha256((home / name / file).read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(f"{PREFIX}{name} lacks {file} ({error.strerror}); {remedy}") from None
        if found != expected[file]:
            raise InputError(
                f"{PREFIX}{name}: {file} is corrupt, its SHA-256 is {found[:12]}... but the index says "
                f"{expected[file][:12]}...; {remedy}"
            )
    return home / name
