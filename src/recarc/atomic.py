"""Nothing half-written: files and folders are written under a temporary name and renamed. Locks between processes."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
import stat
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

from recarc.errors import InputError, RecarcWarning

LOCK = ".lock"
WITHOUT_EFFECT = "locks have no effect on the file system of {folder}: make sure that no two jobs write to it at once"
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

    A folder in the place of a file is found before anything is renamed.

    `previous` are names for what some of them held before.
    """
    parts = {path: _temporary(path) for path in files}
    try:
        for path, part in parts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
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
    """Write a new file in place and return only once it is on the disk; never into one that exists."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def cache_home() -> Path:
    """`RECARC_CACHE`, or `~/.cache/recarc`: where files that belong to no project are kept."""
    given = os.environ.get("RECARC_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "recarc"
    return base.expanduser()


def read_plain(path: Path) -> bytes:
    """The contents of a plain file; a pipe or a device, which may never end, is an OSError."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a plain file", str(path))
        return file.read()


def sweep(folder: Path, older_than: float = 0.0) -> None:
    """Remove the temporary files that killed processes left behind, if untouched for `older_than` seconds."""
    for leftover in folder.glob(f".*{PART}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime >= older_than:
                _remove(leftover)


def sweep_beside(path: Path) -> None:
    """Remove what processes that were killed while they wrote `path` left; call it only as the one that may write."""
    ours = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{16}}{re.escape(PART + path.suffix)}")
    for leftover in path.parent.glob(f".*{PART}*"):
        if ours.fullmatch(leftover.name):
            _remove(leftover)


class Lock:
    """A lock file, held until `release` or the end of a `with` block; the system releases it if the process dies.

    Raises BlockingIOError if another process holds it, unless `wait` is set. The file is opened as it is: no link is
    followed and nothing in it is changed, as somebody else may have put it there.
    """

    def __init__(self, path: Path, wait: bool = False) -> None:
        self.path = path
        while True:
            self._file = _open_plain(path)
            try:
                _flock(self._file.fileno(), wait)
            except BlockingIOError:
                self._file.close()
                raise BlockingIOError(f"another process holds {path}") from None
            except BaseException:
                self._file.close()
                raise
            self._held = os.fstat(self._file.fileno())
            if self.in_place():
                return
            self._file.close()  # removed while this process waited: lock the new one

    def in_place(self) -> bool:
        """Whether the lock file is still the one that was locked: not deleted, moved or recreated."""
        try:
            return os.path.samestat(os.lstat(self.path), self._held)
        except OSError:
            return False

    def release(self) -> None:
        self._file.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _open_plain(path: Path) -> io.FileIO:
    """A plain file, made if it is missing; anything else (a link, pipe or device) is refused."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = io.FileIO(os.open(path, flags, 0o666), "r+")
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"the lock file {path} is a symbolic link; remove it", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, f"the lock file {path} is not a plain file; remove it", str(path))
    return file


def _flock(handle: int, wait: bool) -> None:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None
        return
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def lock_folder(folder: Path) -> Lock:
    """The lock of a folder that a run writes to; one clear line where another process holds it.

    Warns where locks are granted and mean nothing, as on some network file systems.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder / LOCK)
    except BlockingIOError:
        raise InputError(f"another process is writing to {folder}; wait for it, or choose another folder") from None
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            reason = f"its file system has no locks ({error.strerror})"
            raise InputError(f"cannot write safely to {folder}: {reason}; choose a folder on another one") from None
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
    if not lock_excludes(folder):
        warnings.warn(WITHOUT_EFFECT.format(folder=folder), RecarcWarning, stacklevel=2)
    return lock


def lock_excludes(folder: Path) -> bool:
    """Whether the lock that another process (or this one) holds keeps others out, as seen from this machine."""
    try:
        Lock(folder / LOCK).release()
    except OSError:
        return True
    return False


def _temporary(path: Path) -> Path:
    """A name beside `path` that nobody can foresee."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(8)}{PART}{path.suffix}")


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
