"""`python -m paper.zoo FOLDER NAME TITLE MADE RECIPE [half]`: add a trained ensemble to the zoo of the package.

With `half` the weights of layers are rounded to float16, which halves the files; its members compute in float32.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import safetensors.torch

from paper.items import command_for, ensembles
from recarc import zoo
from recarc.errors import InputError


def add(
    source: Path, name: str, title: str, made: str, recipe: str, home: Path = zoo.HOME, half: bool = False
) -> zoo.Entry:
    """Copy an ensemble folder into the zoo; write its hashes, its provenance and all training commands to the index."""
    description = json.loads((source / zoo.DESCRIPTION).read_text(encoding="utf-8"))
    names = [zoo.DESCRIPTION, *(member["weights"] for member in description["members"])]
    for plain in (name, *names):
        if plain in ("", ".", "..") or set(plain) & set("/\\:\0"):
            raise InputError(f"{plain!r} would lie outside the zoo; expected a plain name")
    contents = {file: (source / file).read_bytes() for file in names}
    if half:
        contents = _halved(description, contents)
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    entry = zoo.Entry(name, title, made, recipe, hashes, zoo.summary(description.get("made_by", {})))
    zoo.keep(entry, contents, home, training_commands())
    return entry


def _halved(description: dict[str, Any], contents: dict[str, bytes]) -> dict[str, bytes]:
    """The same files with weights in float16. Biases and all of batch norm, which are small, keep their digits."""
    halved, members = {}, []
    for member in description["members"]:
        state = safetensors.torch.load(contents[member["weights"]])
        data = safetensors.torch.save({key: v.half() if v.ndim > 1 else v for key, v in state.items()})
        halved[member["weights"]] = data
        members.append({**member, "sha256": hashlib.sha256(data).hexdigest(), "precision": "float32"})
    halved[zoo.DESCRIPTION] = (json.dumps({**description, "members": members}, indent=2) + "\n").encode()
    return halved


def training_commands() -> dict[str, str]:
    """The command that trains each ensemble of the paper; the index repeats them, as the package has no `paper`."""
    return {made.name: command_for(made) for made in ensembles() if not (made.package or made.variant)}


if __name__ == "__main__":
    if len(sys.argv) not in (6, 7) or sys.argv[6:] not in ([], ["half"]):
        sys.exit(__doc__)
    folder, name, title, made, recipe = sys.argv[1:6]
    print(add(Path(folder), name, title, made, recipe, half=len(sys.argv) == 7))
