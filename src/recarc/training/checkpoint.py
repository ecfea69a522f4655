"""Checkpoints: a whole unfinished run in one file, replaced in one move, read without executing anything."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recarc import atomic
from recarc.atomic import Lock
from recarc.errors import InputError, first_line
from recarc.training.faults import TrainingError, disk_message
from recarc.training.stage_trainer import Lane

CONFIG, STATE, LOCK = "training.json", "checkpoint.pt", ".lock"


class RunFolder:
    """`OUT.part` beside the ensemble folder OUT: what an unfinished run needs to go on. `out` None: nothing is kept.

    The writer (one rank of a run) holds it from `open` to `release`, so that no other run touches it.
    """

    def __init__(self, out: Path | None, config: dict[str, Any], minutes: float, writer: bool) -> None:
        self.out, self.config, self.writer = out, json.loads(json.dumps(config)), writer
        self.folder = None if out is None else out.with_name(out.name + ".part")
        self.seconds = 60 * minutes
        self.saved_at = time.monotonic()
        self.last_step: int | None = None
        self._lock: Lock | None = None

    def open(self) -> dict[str, Any] | None:
        """Refuses a folder in use; returns the state of this very run if it was begun before."""
        if self.out is None or self.folder is None:
            return None
        self._check_out(self.out)
        if not self.folder.exists():
            if not self.writer:
                return None
            self._make(self.folder)
        self._check_same()
        if self.writer:
            self._lock = _hold(self.folder)
            self._check_out(self.out)  # again: the run that held the lock may have ended meanwhile
            self._check_same()
            atomic.sweep(self.folder)
        path = self.folder / STATE
        if not path.exists():
            return None
        state = self._read(path)
        self.last_step = state["step"]
        return state

    def _check_out(self, out: Path) -> None:
        if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} already exists and is not empty: choose another out folder")

    def _make(self, folder: Path) -> None:
        """Made aside with its configuration in it: another process never sees the folder half made."""
        aside = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            aside.mkdir(parents=True, exist_ok=True)
            self._write(aside / CONFIG, json.dumps(self.config, indent=2).encode())
            aside.rename(folder)
        except OSError as error:
            if not folder.exists():  # else another process was faster; the lock and the configuration decide
                raise TrainingError(disk_message(error, folder, "nothing was begun")) from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _check_same(self) -> None:
        assert self.folder is not None
        try:
            found = json.loads((self.folder / CONFIG).read_text())
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise InputError(
                f"{self.folder} is no unfinished run of `recarc train`: move it away or choose another out"
            )
        for key in sorted({*found, *self.config}):
            if found.get(key) != self.config.get(key):
                raise InputError(
                    f"{self.folder} holds another unfinished run ({_difference(key, found, self.config)}): repeat its "
                    "command to go on, delete it, or choose another out folder"
                )

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            assert isinstance(state, dict) and {"lanes", "step"} <= state.keys()
        except Exception as error:  # torch.load raises whatever a broken file provokes
            raise InputError(
                f"{path} cannot be read ({first_line(error)}): delete {path.parent} to begin again"
            ) from None
        return state

    def due(self) -> bool:
        return self.folder is not None and time.monotonic() - self.saved_at >= self.seconds

    def save(self, state: dict[str, Any], step: int) -> None:
        """Replaces the checkpoint; the old one stays until the new one is safe on the disk."""
        self.saved_at = time.monotonic()
        if self.folder is None or not self.writer:
            return
        if self._lock is not None and not self._lock.in_place():
            raise TrainingError(
                f"{self.folder} was deleted or moved during training, so no checkpoint can be written: put it back "
                "and repeat the command to go on, or repeat it without to begin again"
            )
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._write(self.folder / STATE, buffer.getbuffer())
        self.last_step = step

    def kept(self) -> str:
        """What of the run is on the disk, in words."""
        if self.folder is None:
            return "nothing was kept, as no out folder was given"
        if self.last_step is None:
            return f"no checkpoint was written yet; run settings are in {self.folder}"
        return f"the checkpoint of step {self.last_step} is in {self.folder}; the same command goes on from there"

    def close(self) -> None:
        """The run is finished: nothing of it is needed any more."""
        ours = self._lock is not None and self._lock.in_place()
        self.release()
        if self.folder is not None and ours:
            shutil.rmtree(self.folder, ignore_errors=True)

    def release(self) -> None:
        """Lets other processes have the folder."""
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def _write(self, path: Path, data: Any) -> None:
        try:
            atomic.write_bytes(path, data)
        except OSError as error:
            raise TrainingError(disk_message(error, path, self.kept())) from None


def _hold(folder: Path) -> Lock:
    try:
        return Lock(folder / LOCK)
    except BlockingIOError:
        raise InputError(
            f"another process is training in {folder}; wait for it, or choose another out folder"
        ) from None
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror or error}") from None


def _difference(key: str, found: dict[str, Any], wanted: dict[str, Any]) -> str:
    a, b = found.get(key), wanted.get(key)
    if isinstance(a, dict) and isinstance(b, dict):
        inner = next(k for k in sorted({*a, *b}) if a.get(k) != b.get(k))
        return f"{key} {inner} {a.get(inner)!r}, not {b.get(inner)!r}"
    return f"{key} {a!r}, not {b!r}"


def lanes_state(lanes: Sequence[Lane], step: int) -> dict[str, dict[str, Any]]:
    """By the name of its stage, what each lane needs to go on from this step."""
    return {
        lane.stage.name: {
            "step": step,
            "tensors": lane.whole_tensors(),
            "device": lane.generator.device.type,
            "generator": lane.generator.get_state(),
            "host": lane.host.get_state(),
            "parts": lane.part_names,
            "best": lane.best,
            "history": lane.history,
        }
        for lane in lanes
    }


def load_lane(lane: Lane, state: dict[str, Any]) -> None:
    lane.load_tensors(state["tensors"])
    if state["device"] == lane.generator.device.type:
        lane.generator.set_state(state["generator"])
    else:  # generators of a CPU and a GPU know nothing of each other: new numbers that depend on the step alone
        lane.generator.manual_seed((lane.seed * 1_000_003 + state["step"]) % 2**63)
    lane.host.set_state(state["host"])
    lane.part_names, lane.best, lane.history = state["parts"], state["best"], state["history"]


def random_state() -> dict[str, Any]:
    """Every global random state, for models that draw (dropout) and user code."""
    version, words, gauss = random.getstate()
    kind, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(words), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), int(place), int(has_gauss), cached],
    }


def set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, place, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), place, has_gauss, cached))
