"""Ensemble folders as archives: one is taken into the user's own zoo after everything in it has been checked."""

from __future__ import annotations

import hashlib
import re
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from recarc import zoo
from recarc.atomic import LOCK, Lock
from recarc.data.formats import unpacked
from recarc.errors import InputError, first_line
from recarc.models.store import FILE, Manifest, load_ensemble, read_manifest

HOW = "expected a tar archive of an ensemble folder, such as `tar czf NAME.tgz NAME` makes"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def add_archive(path: str | Path, name: str | None = None) -> zoo.Entry:
    """Take the ensemble in a tar archive into the user's zoo as `zoo:NAME`; by default the name of its folder.

    Links, devices, paths that lead elsewhere and files that the ensemble does not name are refused, as are weights that
    differ from their SHA-256 or do not fit. No code is run, and nothing is kept of an archive that is refused.
    """
    path = Path(path)
    folder, contents = _contents(path)
    name = name or folder or path.name.partition(".")[0]
    if _NAME.fullmatch(name) is None:
        raise InputError(f"{name!r} cannot name an ensemble of the zoo: use letters, digits, '.', '_' and '-' (--name)")
    manifest = _checked(path, contents)
    labels = sorted({member.spec.label for member in manifest.members})
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
    provenance = {**zoo.summary(manifest.made_by), "archive": path.name, "archive_sha256": _sha256(path)}
    entry = zoo.Entry(name, f"{len(manifest.members)} x {', '.join(labels)}", "", "", hashes, provenance)
    home = zoo.added_home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with Lock(home / LOCK, wait=True):
            if name in {known.name for known in (*zoo.entries(), *zoo.added())}:
                raise InputError(f"zoo:{name} exists: choose another name with --name")
            zoo.keep(entry, contents, home, {})
    except OSError as error:
        raise InputError(f"cannot write to {home}: {error.strerror or error}; nothing was added") from None
    return entry


def _checked(path: Path, contents: Mapping[str, bytes]) -> Manifest:
    """The description of the ensemble, after loading it from a copy that is deleted."""
    with tempfile.TemporaryDirectory() as place:
        unpacked = Path(place)
        try:
            (unpacked / FILE).write_bytes(contents[FILE])
            manifest = read_manifest(unpacked)
            wanted = {FILE, *(member.weights for member in manifest.members)}
            for file in sorted(wanted ^ set(contents)):
                raise InputError(f"{file} is {'missing' if file in wanted else 'not named by ' + FILE}")
            for file in wanted - {FILE}:
                (unpacked / file).write_bytes(contents[file])
            load_ensemble(unpacked)
        except InputError as error:
            raise InputError(f"{path}: {str(error).replace(f'{place}/', '').replace(place, 'it')}") from None
    return manifest


def _contents(path: Path) -> tuple[str, dict[str, bytes]]:
    """The name of the folder in an archive ("" for none), and its files by name. Nothing is written."""
    found: dict[str, bytes] = {}
    folders = set()
    try:
        with tarfile.open(fileobj=unpacked(path), mode="r:") as archive:
            for entry in archive:
                place = PurePosixPath(entry.name)
                outside = place.is_absolute() or ".." in place.parts or "\\" in entry.name
                if outside or len(place.parts) > 1 + (not entry.isdir()):
                    raise InputError(f"{path} holds {entry.name!r}, which is not a file of one folder; {HOW}")
                if entry.isdir():
                    continue
                if not entry.isreg() or entry.issparse() or place.name in found:
                    raise InputError(f"{path} holds {entry.name!r} as a link, a device, with holes or twice; {HOW}")
                opened = archive.extractfile(entry)
                found[place.name] = opened.read() if opened is not None else b""
                folders.add(str(place.parent) if len(place.parts) > 1 else "")
    except InputError:  # a ValueError, as some of those that a damaged archive raises
        raise
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"cannot read {path}: {first_line(error)}; {HOW}") from None
    if len(folders) != 1 or FILE not in found:
        raise InputError(f"{path} holds no {FILE} or more than one folder; {HOW}")
    return folders.pop(), found


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
