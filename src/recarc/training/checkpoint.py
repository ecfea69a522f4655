"""Checkpoints: an unfinished run in one file, replaced atomically and read without executing code.

A file ends with a checksum, and the one before is kept: a damaged checkpoint costs the minutes between the two.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recarc import atomic
from recarc.errors import InputError, RunError, first_line
from recarc.runtime import Ranks

CONFIG, STATE, PREVIOUS = "training.json", "checkpoint.pt", "checkpoint.previous.pt"
SEAL = b"recarc sha256 "  # then 32 bytes: the end of a checkpoint, which torch.load ignores


class TrainingError(RunError):
    """Training stopped; the message says where, why, and what to do."""


class CheckpointFolder:
    """`OUT.part` beside the ensemble folder OUT: what an unfinished run needs to resume. `out` None: nothing is saved.

    Of several processes the first one reads and writes it. It holds the folder from `open` to `release`, so that no
    other run touches it.
    """

    def __init__(self, out: Path | None, config: dict[str, Any], minutes: float, ranks: Ranks | None = None) -> None:
        self.out, self.config, self.ranks = out, json.loads(json.dumps(config)), ranks or Ranks()
        self.folder = None if out is None else out.with_name(out.name + ".part")
        self.seconds = 60 * minutes
        self.saved_at = time.monotonic()
        self.last_step: int | None = None
        self.note = ""  # about the checkpoint that was read
        self._lock: atomic.Lock | None = None

    def open(self) -> dict[str, Any] | None:
        """Refuse a folder in use; return the saved state, on every process, if this very run was started before."""
        state = self.ranks.agree(self._claim)
        self.last_step = None if state is None else state["step"]
        return state

    def _claim(self) -> dict[str, Any] | None:
        if self.out is None or self.folder is None:
            return None
        self._check(self.out, self.folder)
        self._lock = atomic.lock_folder(self.folder)
        started = self._check(self.out, self.folder)  # again: the run that held the lock may have finished meanwhile
        atomic.sweep(self.folder)
        if not started:
            self._write(self.folder / CONFIG, json.dumps(self.config, indent=2).encode())
        return self._read(self.folder / STATE, self.folder / PREVIOUS)

    def _read(self, newest: Path, previous: Path) -> dict[str, Any] | None:
        """The newest checkpoint that is whole; None if there is none at all."""
        damaged = ""
        for path in (path for path in (newest, previous) if path.exists()):
            try:
                state = _unsealed(path)
            except ValueError as error:
                damaged = damaged or f"{path} is damaged ({error})"
                continue
            if damaged:
                self.note = f"{damaged}; resuming from the one before, of step {state['step']}"
                path.replace(newest)
            return state
        if damaged:
            raise InputError(f"{damaged}, and there is no whole one before it: delete {newest.parent} to start over")
        return None

    def _check(self, out: Path, folder: Path) -> bool:
        """Whether this run was started before; refuses what belongs to another run or is something else."""
        if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} already exists and is not empty: choose another out folder")
        if not folder.exists() or {path.name for path in folder.iterdir()} <= {atomic.LOCK}:
            return False
        try:
            saved = json.loads(atomic.read_plain(folder / CONFIG))
        except (OSError, ValueError, RecursionError):
            saved = None
        if not isinstance(saved, dict):
            raise InputError(f"{folder} is not an unfinished run of `recarc train`: move it or choose another out")
        from recarc.evaluation.fingerprint import differences

        for difference in differences(saved, self.config, ("in that run", "now")):
            raise InputError(
                f"{folder} holds another unfinished run ({difference}): rerun its command to resume, delete it, or "
                "choose another out folder"
            )
        return True

    def due(self) -> bool:
        return self.folder is not None and time.monotonic() - self.saved_at >= self.seconds

    def save(self, state: dict[str, Any], step: int) -> None:
        """Write a checkpoint; the one before stays beside it."""
        self.saved_at = time.monotonic()
        if self.folder is None:
            return
        if self.ranks.first:
            if self._lock is not None and not self._lock.in_place():
                raise TrainingError(
                    f"{self.folder} was deleted or moved during training, so no checkpoint can be written: put it back "
                    "and rerun the command to resume, or rerun it without to start over"
                )
            self._write(self.folder / STATE, sealed(state), self.folder / PREVIOUS)
        self.last_step = step

    def status(self) -> str:
        """What of the run is on disk, in words."""
        if self.folder is None:
            return "nothing was saved, as no out folder was given"
        if self.last_step is None:
            return f"no checkpoint was written yet; the run's settings are in {self.folder}"
        return f"the checkpoint of step {self.last_step} is in {self.folder}; rerun the command to resume"

    def close(self) -> None:
        """Remove the folder: the run is finished."""
        owned = self._lock is not None and self._lock.in_place()
        self.release()
        if self.folder is not None and owned:
            shutil.rmtree(self.folder, ignore_errors=True)

    def release(self) -> None:
        """Let other processes use the folder."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _write(self, path: Path, data: Any, previous: Path | None = None) -> None:
        try:
            atomic.write_bytes(path, data, previous)
        except OSError as error:
            raise TrainingError(disk_message(error, path, self.status())) from None


def sealed(state: dict[str, Any]) -> memoryview:
    """The contents of a checkpoint file."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    digest = hashlib.sha256(buffer.getbuffer()).digest()
    buffer.seek(0, io.SEEK_END)
    buffer.write(SEAL + digest)
    return buffer.getbuffer()


def _unsealed(path: Path) -> dict[str, Any]:
    """The state in a checkpoint; ValueError if its checksum differs or it is something else."""
    data = atomic.read_plain(path)
    body, seal = data[: -len(SEAL) - 32], data[-len(SEAL) - 32 :]
    if seal != SEAL + hashlib.sha256(body).digest():
        raise ValueError("its checksum differs")
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
        assert isinstance(state, dict) and {"stages", "step"} <= state.keys()
    except Exception as error:  # torch.load raises whatever a strange file provokes
        raise ValueError(first_line(error)) from None
    return state


def disk_message(error: OSError, path: object, saved: str) -> str:
    """A failed write in one line; `saved` says what is still on disk."""
    reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else (error.strerror or str(error))
    return f"cannot write {path}: {reason}; {saved}"


def random_state() -> dict[str, Any]:
    """Every global random state, for models that draw random numbers (dropout) and for user code."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(words), gauss],
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys).astype(np.int64)),
            int(position),
            int(has_gauss),
            cached,
        ],
    }


def set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
