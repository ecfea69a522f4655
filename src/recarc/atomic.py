"""Nothing half-written: files and folders are made aside and renamed into place. Locks between processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

PART = ".part"  # in every temporary name, so that leftovers of killed processes can be recognised


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`, of the same suffix, to write a file or a folder to.

    At the end of the block it takes the place of `path`; after an error `path` is as it was.
    """
    part = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        _move(part, path)
    finally:
        _remove(part)


def write_bytes(path: Path, data: bytes) -> None:
    """The file with this content, on the disk when this returns; after an error it is as it was before."""
    write_all({path: data})


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write every file under a temporary name, then rename them in order: all or none on a full disk."""
    parts = {path: _temporary(path) for path in files}
    try:
        for path, part in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_through(part, files[path])
        for path, part in parts.items():
            part.replace(path)
        for folder in {path.parent for path in files}:
            _sync(folder)
    finally:
        for part in parts.values():
            _remove(part)


def write_through(path: Path, data: bytes) -> None:
    """Return only once the data is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sweep(folder: Path, older_than: float = 0.0) -> None:
    """Remove what killed processes left under temporary names, if untouched for `older_than` seconds."""
    for leftover in folder.glob(f".*{PART}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime >= older_than:
                _remove(leftover)


class Lock:
    """A lock file, held until `release` or the end of a `with`; the system frees that of a killed process.

    BlockingIOError where another process holds it, unless told to `wait`.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        from filelock import FileLock, Timeout

        self.path = path
        self._lock = FileLock(path, timeout=-1 if wait else 0)
        try:
            self._lock.acquire()
        except Timeout:
            raise BlockingIOError(f"another process holds {path}") from None
        self._held = path.stat()

    def in_place(self) -> bool:
        """Whether the lock file is still the one that was locked: not deleted, moved, or made anew."""
        try:
            return os.path.samestat(self.path.stat(), self._held)
        except OSError:
            return False

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _temporary(path: Path) -> Path:
    """A name beside `path` that nothing has yet."""
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex[:12]}{PART}{path.suffix}")


def _move(part: Path, path: Path) -> None:
    """Rename into place; a folder that is there steps aside first and comes back if that fails."""
    if not path.is_dir():
        part.replace(path)
        return
    old = _temporary(path)
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


def _sync(folder: Path) -> None:
    """Make renames durable where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
