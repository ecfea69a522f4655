"""A run on disk: `run.json`, shards of records, a summary; at no moment is anything half-written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recarc import atomic
from recarc.atomic import LOCK, PART
from recarc.errors import InputError, RunError, first_line
from recarc.evaluation.fingerprint import Json, fingerprint
from recarc.evaluation.masking import Signal
from recarc.evaluation.records import Records, from_parquet, taken, to_parquet
from recarc.provenance import environment

SavedLogits = list[list[str] | None]  # per member on the first samples, a line each; None: the member is random

FORMAT = 1
MOST_SAMPLES, MOST_SHARDS, MOST_COST = 10**9, 10**6, 10**15
KEPT = "finished shards are kept, so free some space and rerun the command to resume"
RUN, SUMMARY, CERTIFICATE = "run.json", "summary.json", "certificate"  # the last a folder, a run of its own
SHARD, BEGUN, INPUTS = "shard", "begun", "inputs.safetensors"


class RunFolder:
    """The folder of a run: shard k holds the records of samples k * shard_size ... (k + 1) * shard_size - 1.

    Every shard carries the fingerprint of its run. Of several processes the first one holds the lock.
    """

    lock: atomic.Lock | None = None
    temporary = False  # deleted at the end of the evaluation

    def __init__(self, path: str | Path, run: Json) -> None:
        self.path = Path(path)
        self.run = run
        self.fingerprint: str = run["fingerprint"]
        self.configuration: Json = run["configuration"]
        self.environment: Json = run["environment"]
        self.first_logits: SavedLogits = run["first_logits"]
        self.shard_size = int(self.configuration["shard_size"])
        self.samples = int(self.configuration["data"]["samples"])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "lock": None}  # a lock stays with its process

    @property
    def shards(self) -> int:
        return math.ceil(self.samples / self.shard_size)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run; one clear line if run.json is missing, edited or damaged."""
        file = Path(path) / RUN
        try:
            run = json.loads(atomic.read_plain(file).decode())
        except FileNotFoundError:
            raise InputError(f"{path} is not a run folder: it has no {RUN}") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"{file} cannot be read ({first_line(error)}); restore it, or start again in another folder"
            ) from None
        if not isinstance(run, dict) or run.get("format") != FORMAT:
            version = run.get("format") if isinstance(run, dict) else None
            raise InputError(f"{file} has format {version!r}; this version reads format {FORMAT}")
        if run.get("checksum") != _checksum(run):
            raise InputError(f"{file} was edited or damaged (its checksum differs); restore it, or use another folder")
        absurd = _absurd(run)
        if absurd:
            raise InputError(f"{file} cannot be true: {absurd}; restore it, or start again in another folder")
        return cls(path, run)

    @classmethod
    def create(cls, path: str | Path, configuration: Json, environment: Json, first_logits: SavedLogits) -> RunFolder:
        """A new run. Call it within `locked`."""
        run: Json = {"format": FORMAT, "configuration": configuration, "environment": environment}
        identity = {key: value for key, value in configuration.items() if key != "shard_size"}  # records are the same
        run |= {"first_logits": first_logits, "fingerprint": fingerprint(identity)}
        run["checksum"] = _checksum(run)
        write_all({Path(path) / RUN: json.dumps(run, indent=2).encode()})
        return cls(path, run)

    def summary(self) -> Json:
        """The summary of a finished run; of an unfinished one, the warnings so far. A damaged one gives a warning."""
        try:
            summary = json.loads(atomic.read_plain(self.path / SUMMARY))
            if not all(isinstance(text, str) for text in summary.get("warnings", [])):
                raise ValueError
            for signal in summary.get("signals", []):
                Signal.from_json(signal)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return {"warnings": [f"{self.path / SUMMARY} is damaged: what this run was warned of may be missing"]}
        return dict(summary)

    def write_summary(self, summary: Json) -> None:
        self._write({self.path / SUMMARY: json.dumps(summary, indent=2).encode()})

    def _write(self, files: Mapping[Path, bytes]) -> None:
        """Write into this very run, not into a folder of the same name that was made meanwhile."""
        try:
            same = RunFolder.open(self.path).run["checksum"] == self.run["checksum"]
        except InputError:
            same = False
        if not same or (self.lock is not None and not self.lock.in_place()):
            raise RunError(f"{self.path} was deleted or replaced while this run was writing to it; start it again")
        write_all(files, "nothing is kept, as no run folder was given" if self.temporary else KEPT)

    def record_warnings(self, warnings: Sequence[str], signals: Sequence[Signal]) -> None:
        """Record warnings before the first attack, so that a run that stops early has them too."""
        summary = self.summary()
        before = {"warnings": summary.get("warnings", []), "signals": summary.get("signals", [])}
        known = {(signal["member"], signal["name"]) for signal in before["signals"]}
        new = [signal.to_json() for signal in signals if (signal.member, signal.name) not in known]
        after = {"warnings": list(dict.fromkeys([*before["warnings"], *warnings])), "signals": before["signals"] + new}
        if after != before or not summary:
            self.write_summary({**summary, "complete": False, **after})

    def rows_of(self, k: int) -> range:
        return range(k * self.shard_size, min(self.samples, (k + 1) * self.shard_size))

    def file(self, k: int, suffix: str = "parquet", kind: str = SHARD) -> Path:
        return self.path / f"{kind}-{k:05d}.{suffix}"

    def commit(self, k: int, records: Records, cost: Json, inputs: bytes | None) -> None:
        """Put a finished shard, or the first samples of one, in place: the records are renamed last."""
        kind = SHARD if len(records) == len(self.rows_of(k)) else BEGUN
        data = to_parquet(records)
        side = {
            **cost,
            "run": self.run["fingerprint"],
            "rows": len(records),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        files: dict[Path, bytes] = {}
        if inputs is not None:
            side["inputs_sha256"] = hashlib.sha256(inputs).hexdigest()
            files[self.file(k, INPUTS, kind)] = inputs
        files[self.file(k, "json", kind)] = json.dumps(side).encode()
        files[self.file(k, kind=kind)] = data
        self._write(files)
        if kind == SHARD:
            self.forget_begun(k)

    def begun(self, k: int) -> tuple[Records, Json, bytes | None] | None:
        """The first samples of a shard that was interrupted, their cost and their inputs, if it has any."""
        inputs = bool(self.configuration.get("save_inputs"))
        try:
            records, cost = self.read(k, inputs, BEGUN)
            return records, cost, atomic.read_plain(self.file(k, INPUTS, BEGUN)) if inputs else None
        except (ValueError, OSError):
            return None

    def forget_begun(self, k: int) -> None:
        for suffix in ("parquet", "json", INPUTS):
            self.file(k, suffix, BEGUN).unlink(missing_ok=True)

    def read(self, k: int, inputs: bool = False, kind: str = SHARD) -> tuple[Records, Json]:
        """A shard and its cost; ValueError if it is missing, torn, another run's, or differs from its checksum."""
        try:
            side = json.loads(atomic.read_plain(self.file(k, "json", kind)))
            if side.get("run", self.fingerprint) != self.fingerprint:  # early runs did not record it
                raise ValueError("it belongs to another run")
            if not all(0 <= side[cost] < MOST_COST for cost in ("seconds", "forward", "backward")):
                raise ValueError("its cost cannot be true")
            data = atomic.read_plain(self.file(k, kind=kind))
            if hashlib.sha256(data).hexdigest() != side["sha256"]:
                raise ValueError("its checksum differs")
            records = from_parquet(data)
            rows = self.rows_of(k) if kind == SHARD else self.rows_of(k)[: len(records)]
            if not np.array_equal(records.index, np.arange(rows.start, rows.stop)):
                raise ValueError(f"it does not hold samples {rows.start}..{rows.stop - 1}")
            if len(records.clean) != len(self.configuration["alpha"]):
                raise ValueError(f"it is of {len(records.clean)} members")
            if inputs:
                saved = atomic.read_plain(self.file(k, INPUTS, kind))
                if hashlib.sha256(saved).hexdigest() != side["inputs_sha256"]:
                    raise ValueError("the checksum of its inputs differs")
            return records, side
        except (OSError, KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
            raise ValueError(str(error)) from None

    def damaged(self, k: int, error: ValueError) -> str:
        """What is wrong with a shard that could not be read; "" if it was never written."""
        return f"{self.file(k)} is damaged ({error})" if self.file(k).exists() else ""

    def pending(self) -> tuple[list[int], list[int]]:
        """The shards still to be computed, and those among them that exist but are damaged."""
        inputs = bool(self.configuration.get("save_inputs"))
        todo, damaged = [], []
        for k in range(self.shards):
            try:
                self.read(k, inputs)
            except ValueError:
                todo.append(k)
                if self.file(k).exists():
                    damaged.append(k)
        return todo, damaged


def save_run(path: str | Path, configuration: Json, records: Records, summary: Json) -> Path:
    """A run folder of records that exist already; where the members' logits are not known, nothing is compared."""
    configuration = {**configuration, "save_inputs": False}
    with locked(path) as lock:
        if (Path(path) / RUN).exists():
            raise InputError(f"{path} already holds a run; choose another folder")
        made = {**environment(torch.device("cpu")), "hardware": str(configuration.get("device"))}
        folder = RunFolder.create(path, configuration, made, [None] * len(configuration["alpha"]))
        folder.lock = lock
        costs = {"seconds": "seconds", "forward": "forward_passes", "backward": "backward_passes"}
        for k in range(folder.shards):  # only the whole cost is known: the first shard bears it
            cost = {key: 0 if k else summary[name] for key, name in costs.items()}
            folder.commit(k, taken(records, folder.rows_of(k)), cost, None)
        folder.write_summary(summary)
    return Path(path)


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[atomic.Lock]:
    """One writer at a time, even before there is a run; the system frees the lock of a killed process."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {file.name for file in folder.iterdir()}
    except OSError as error:
        raise InputError(f"cannot make the run folder {path}: {error.strerror or error}") from None
    others = sorted(name for name in names if name not in (LOCK, CERTIFICATE) and PART not in name)
    if others and not (folder / RUN).exists():
        raise InputError(f"{path} holds other files ({others[0]}) and no {RUN}; choose another folder")
    with atomic.lock_folder(folder) as lock:
        yield lock


@contextlib.contextmanager
def interruptible(out: str | Path | None) -> Iterator[None]:
    """Ctrl-C says what there is to resume."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {_kept(out)}") from None


def _kept(out: str | Path | None) -> str:
    if out is None:
        return "nothing is kept, as no run folder was given (--out)"
    try:
        folder = RunFolder.open(out)
    except InputError:
        return f"nothing was written to {out} yet"
    done = sum(folder.file(k).exists() for k in range(folder.shards))
    begun = sum(len(found[0]) for k in range(folder.shards) if (found := folder.begun(k)) is not None)
    more = f" and {begun} samples of others" if begun else ""
    return f"{out} holds {done} of {folder.shards} shards{more}; rerun the command to resume"


def write_all(files: Mapping[Path, bytes], advice: str = KEPT) -> None:
    """Write all of the files or none; a full disk is one clear line."""
    try:
        atomic.write_all(files)
    except OSError as error:
        raise RunError(f"cannot write {next(iter(files))}: {error.strerror or error}; {advice}") from None


def _absurd(run: Json) -> str:
    """What in a run.json that is whole cannot have been written by an evaluation; "" if nothing."""
    try:
        config = run["configuration"]
        samples, size, alpha = config["data"]["samples"], config["shard_size"], config["alpha"]
        if not (isinstance(samples, int) and isinstance(size, int) and 0 < samples <= MOST_SAMPLES and size > 0):
            return f"{samples!r:.20} samples in shards of {size!r:.20}"
        if samples / size > MOST_SHARDS:
            return f"{samples // size} shards"
        if not alpha or not all(isinstance(a, (int, float)) and 0 <= a <= 1 for a in alpha):
            return f"the probabilities {alpha!r:.40}"
        dict(run["environment"]), list(run["first_logits"]), str(run["fingerprint"])
    except (KeyError, TypeError, ValueError) as error:
        return f"{type(error).__name__} {error!s:.60}"
    return ""


def _checksum(run: Mapping[str, Any]) -> str:
    return fingerprint({key: value for key, value in run.items() if key != "checksum"})
