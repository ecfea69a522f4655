"""Nothing half-written: files and folders are made beside their place and renamed into it."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A new name to write a file or a folder under, of the same suffix. It takes the place of `path` at the end of the
    block; after an error `path` is as it was."""
    part = _sibling(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        _move(part, path)
    finally:
        _remove(part)


def write_bytes(path: Path, data: bytes) -> None:
    """The file with this content, on the disk when this returns, or as it was before."""
    with beside(path) as part:
        write_through(part, data)


def write_through(path: Path, data: bytes) -> None:
    """Not back before the data is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sibling(path: Path) -> Path:
    """A name beside `path` that nothing has yet."""
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex[:12]}.part{path.suffix}")


def _move(part: Path, path: Path) -> None:
    """Renames into place; a folder that is there steps aside first and comes back if that fails."""
    if not path.is_dir():
        part.replace(path)
        return
    old = _sibling(path)
    path.rename(old)
    try:
        part.rename(path)
    except OSError:
        old.rename(path)
        raise
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
