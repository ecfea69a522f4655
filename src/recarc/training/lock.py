"""One training process a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from recarc.errors import InputError

LOCK = ".lock"


class FolderLock:
    """Held from its making until `release`; the system frees that of a killed process.

    A system or file system without such locks lets everybody in.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        try:
            self._handle = self.path.open("wb")
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None
        try:
            import fcntl

            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise InputError(
                f"another process is training in {folder}; wait for it, or choose another out folder"
            ) from None
        except (ImportError, OSError):
            pass

    def in_place(self) -> bool:
        """Whether the folder is the one that was locked: not deleted, moved, or made anew by somebody else."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._handle.fileno()))
        except OSError:
            return False

    def release(self) -> None:
        self._handle.close()
