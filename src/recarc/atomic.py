"""Nothing half-written: files and folders are written under a temporary name and renamed. Locks between processes."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from recarc.errors import InputError

LOCK = ".lock"
PART = ".part"  # part of every temporary name, so that the leftovers of killed processes can be recognised


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`, with the same suffix, for a file or a folder.

    At the end of the block it replaces `path`; after an error `path` is unchanged.
    """
    part = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        _move(part, path)
    finally:
        _remove(part)


def write_bytes(path: Path, data: bytes, previous: Path | None = None) -> None:
    """Write a file so that it is on the disk when this returns; after an error it is unchanged.

    With `previous`, what the file held before stays under that name.
    """
    write_all({path: data}, {} if previous is None else {path: previous})


def write_all(files: Mapping[Path, bytes], previous: Mapping[Path, Path] | None = None) -> None:
    """Write every file under a temporary name, then rename them in order: all of them or, on a full disk, none.

    `previous` are names for what some of them held before.
    """
    parts = {path: _temporary(path) for path in files}
    try:
        for path, part in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_through(part, files[path])
        for path, kept in (previous or {}).items():
            _keep(path, kept)
        for path, part in parts.items():
            part.replace(path)
        for folder in {path.parent for path in files}:
            _sync(folder)
    finally:
        for part in parts.values():
            _remove(part)


def write_through(path: Path, data: bytes) -> None:
    """Write a file in place and return only once it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sweep(folder: Path, older_than: float = 0.0) -> None:
    """Remove the temporary files that killed processes left behind, if untouched for `older_than` seconds."""
    for leftover in folder.glob(f".*{PART}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime >= older_than:
                _remove(leftover)


class Lock:
    """A lock file, held until `release` or the end of a `with` block; the system releases it if the process dies.

    Raises BlockingIOError if another process holds it, unless `wait` is set. A symbolic link is never followed:
    opening a lock file empties it, and a link could point at anything.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        from filelock import FileLock, Timeout

        if path.is_symlink():
            raise OSError(errno.ELOOP, f"the lock file {path} is a symbolic link; remove it", str(path))
        self.path = path
        self._lock = FileLock(path, timeout=-1 if wait else 0)
        try:
            self._lock.acquire()
        except Timeout:
            raise BlockingIOError(f"another process holds {path}") from None
        self._held = path.stat()

    def in_place(self) -> bool:
        """Whether the lock file is still the one that was locked: not deleted, moved or recreated."""
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


def lock_folder(folder: Path) -> Lock:
    """The lock of a folder that a run writes to; one clear line where another process holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Lock(folder / LOCK)
    except BlockingIOError:
        raise InputError(f"another process is writing to {folder}; wait for it, or choose another folder") from None
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None


def _temporary(path: Path) -> Path:
    """An unused name beside `path`."""
    return path.with_name(f".{path.stem}.{uuid.uuid4().hex[:12]}{PART}{path.suffix}")


def _move(part: Path, path: Path) -> None:
    """Rename `part` to `path`; an existing folder is moved aside first and restored if the rename fails."""
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


def _keep(path: Path, kept: Path) -> None:
    """Give a file a second name, in place of what has that name; there is no moment without a file under either."""
    if not path.exists():
        return
    part = _temporary(kept)
    try:
        os.link(path, part)
    except OSError:  # a file system without links
        shutil.copyfile(path, part)
    part.replace(kept)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make renames in a folder durable, where the system supports it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
