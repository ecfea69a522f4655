"""One training process a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from recarc.errors import InputError
from recarc.locks import hold

LOCK = ".lock"


class FolderLock:
    """Held from its making until `release`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        try:
            self._handle = hold(self.path)
        except BlockingIOError:
            raise InputError(
                f"another process is training in {folder}; wait for it, or choose another out folder"
            ) from None
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None

    def in_place(self) -> bool:
        """Whether the folder is the one that was locked: not deleted, moved, or made anew by somebody else."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._handle.fileno()))
        except OSError:
            return False

    def release(self) -> None:
        self._handle.close()
