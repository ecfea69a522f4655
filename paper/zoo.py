"""`python -m paper.zoo FOLDER NAME TITLE MADE RECIPE`: add a trained ensemble to the zoo of the package."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from paper.items import command_for, ensembles
from recarc import zoo
from recarc.errors import InputError


def add(source: Path, name: str, title: str, made: str, recipe: str, home: Path = zoo.HOME) -> zoo.Entry:
    """Copy an ensemble folder into the zoo; write its hashes, its provenance and all training commands to the index."""
    description = json.loads((source / zoo.DESCRIPTION).read_text(encoding="utf-8"))
    names = [zoo.DESCRIPTION, *(member["weights"] for member in description["members"])]
    for plain in (name, *names):
        if plain in ("", ".", "..") or set(plain) & set("/\\:\0"):
            raise InputError(f"{plain!r} would lie outside the zoo; expected a plain name")
    contents = {file: (source / file).read_bytes() for file in names}
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    entry = zoo.Entry(name, title, made, recipe, hashes, zoo.summary(description.get("made_by", {})))
    zoo.keep(entry, contents, home, training_commands())
    return entry


def training_commands() -> dict[str, str]:
    """The command that trains each ensemble of the paper; the index repeats them, as the package has no `paper`."""
    return {made.name: command_for(made) for made in ensembles() if not (made.package or made.variant)}


if __name__ == "__main__":
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    folder, name, title, made, recipe = sys.argv[1:]
    print(add(Path(folder), name, title, made, recipe))
