"""`python -m paper.zoo FOLDER NAME TITLE MADE RECIPE`: add a trained ensemble to the zoo of the package."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper.items import command_for, ensembles
from recarc import zoo
from recarc.atomic import replacing, write_bytes
from recarc.errors import InputError

SHOWN = ("command", "method", "data", "arch", "norm", "eps", "members", "seed", "commit", "seconds", "torch")
SHOWN_OF_RECIPE = ("epochs", "batch", "lr", "schedule")


def add(source: Path, name: str, title: str, made: str, recipe: str, home: Path = zoo.HOME) -> zoo.Entry:
    """Copy an ensemble folder into the zoo; write its hashes, its provenance and all training commands to the index."""
    description = json.loads((source / zoo.DESCRIPTION).read_text(encoding="utf-8"))
    names = [zoo.DESCRIPTION, *(member["weights"] for member in description["members"])]
    for plain in (name, *names):
        if plain in ("", ".", "..") or set(plain) & set("/\\:\0"):
            raise InputError(f"{plain!r} would lie outside the zoo; expected a plain name")
    contents = {file: (source / file).read_bytes() for file in names}
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    entry = zoo.Entry(name, title, made, recipe, hashes, _summary(description.get("made_by", {})))
    entries = sorted([entry, *(e for e in zoo.entries(home) if e.name != name)], key=lambda e: e.name)
    document = {"format": 1, "ensembles": [e.to_json() for e in entries], "recipes": training_commands()}
    with replacing(home / name) as part:
        part.mkdir()
        for file, data in contents.items():
            (part / file).write_bytes(data)
    write_bytes(home / zoo.INDEX, (json.dumps(document, indent=2) + "\n").encode())
    return entry


def training_commands() -> dict[str, str]:
    """The command that trains each ensemble of the paper; the index repeats them, as the package has no `paper`."""
    return {made.name: command_for(made) for made in ensembles() if not (made.package or made.variant)}


def _summary(made_by: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an ensemble's provenance that a list can show; all of it is in its ensemble.json."""
    shown = {key: made_by[key] for key in SHOWN if key in made_by}
    recipe, machine = made_by.get("recipe"), made_by.get("machine")
    if isinstance(recipe, Mapping):
        shown |= {key: recipe[key] for key in SHOWN_OF_RECIPE if key in recipe}
    if isinstance(machine, Mapping):
        shown["device"] = machine.get("device")
    return shown


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    folder, name, title, made, recipe = sys.argv[1:]
    print(add(Path(folder), name, title, made, recipe))
