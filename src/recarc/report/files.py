"""The files of a report: their names, and writing them completely or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from recarc.atomic import write_all
from recarc.errors import InputError


def file_names(kind: str, parts: Sequence[str]) -> list[str]:
    """A file name for each part of a kind; parts that would share one are numbered."""
    names = [f"{kind}_{part}" if part else kind for part in parts]
    return [name if names.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(names, 1)]


def write_files(files: Mapping[Path, bytes]) -> list[Path]:
    try:
        write_all(files)
    except OSError as error:
        place = next(iter(files))
        raise InputError(f"cannot write {place}: {error.strerror or error}; choose another place") from None
    return list(files)
