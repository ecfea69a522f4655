"""A run on disk: `run.json`, shards of records, and nothing half-written at any moment."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recarc import atomic
from recarc.atomic import PART, Lock
from recarc.errors import InputError, RunError
from recarc.evaluation.fingerprint import Json, differences, fingerprint
from recarc.evaluation.records import Records, from_parquet, to_parquet

Answers = list[list[str] | None]  # logits of each member on the first samples, a line each; None: it is random

FORMAT = 1
RUN, SUMMARY, LOCK = "run.json", "summary.json", ".lock"


class RunFolder:
    """The folder of a run: shard k holds the records of samples k * shard_size ... (k + 1) * shard_size - 1."""

    def __init__(self, path: str | Path, run: Json) -> None:
        self.path = Path(path)
        self.run = run
        self.configuration: Json = run["configuration"]
        self.shard_size = int(self.configuration["shard_size"])
        self.samples = int(self.configuration["data"]["samples"])
        self.first_logits: Answers = run.get("first_logits", [])  # older runs have none

    @property
    def shards(self) -> int:
        return math.ceil(self.samples / self.shard_size)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """An existing run; one clear line where run.json is missing, edited or damaged."""
        file = Path(path) / RUN
        try:
            run = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"{path} is not a run folder: it has no {RUN}") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(f"{file} cannot be read ({error}); restore it, or start again in another folder") from None
        if not isinstance(run, dict) or run.get("format") != FORMAT:
            told = run.get("format") if isinstance(run, dict) else None
            raise InputError(f"{file} has format {told!r}; this version reads format {FORMAT}")
        if run.get("checksum") != _checksum(run):
            raise InputError(f"{file} was edited or damaged (its checksum differs); restore it, or use another folder")
        return cls(path, run)

    @classmethod
    def create_or_join(
        cls, path: str | Path, configuration: Json, environment: Json, resume: bool, first_logits: Answers
    ) -> RunFolder:
        """The run of this configuration: a new one, or the one that is there and goes on. Within `locked`."""
        folder = Path(path)
        if (folder / RUN).exists():
            if not resume:
                raise InputError(
                    f"{path} holds a run already; choose another folder, or leave out --no-resume (resume=True)"
                )
            run = cls.open(path)
            run.check_same(configuration)
            return run
        told = {"format": FORMAT, "configuration": configuration, "environment": environment}
        told |= {"first_logits": first_logits, "fingerprint": fingerprint(configuration)}
        told["checksum"] = _checksum(told)
        write_all({folder / RUN: json.dumps(told, indent=2).encode()})
        return cls(path, told)

    def check_same(self, configuration: Json) -> None:
        found = differences(self.configuration, configuration)
        if found:
            more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
            raise InputError(
                f"{self.path} belongs to another configuration: {'; '.join(found[:3])}{more}; choose another folder"
            )

    def summary(self) -> Json:
        """The summary of a finished run; of another one what was warned of, if anything."""
        try:
            told = json.loads((self.path / SUMMARY).read_bytes())
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    def keep_said(self, warned: Sequence[str], blind: Sequence[int]) -> None:
        """Puts warnings down before the first attack, so that a run which stops early has them too."""
        said = self.summary()
        texts = list(dict.fromkeys([*said.get("warnings", []), *warned]))
        members = sorted({*said.get("blind_members", []), *blind})
        if (texts, members) != (said.get("warnings", []), said.get("blind_members", [])):
            said |= {"complete": False, "warnings": texts, "blind_members": members}
            write_all({self.path / SUMMARY: json.dumps(said, indent=2).encode()})

    def rows_of(self, k: int) -> range:
        return range(k * self.shard_size, min(self.samples, (k + 1) * self.shard_size))

    def file(self, k: int, suffix: str = "parquet") -> Path:
        return self.path / f"shard-{k:05d}.{suffix}"

    def commit(self, k: int, records: Records, cost: Json, inputs: bytes | None) -> None:
        """Put a finished shard in place: all files are written first, then renamed, the records last."""
        data = to_parquet(records)
        side = {**cost, "rows": len(records), "sha256": hashlib.sha256(data).hexdigest()}
        files: dict[Path, bytes] = {}
        if inputs is not None:
            side["inputs_sha256"] = hashlib.sha256(inputs).hexdigest()
            files[self.file(k, "inputs.safetensors")] = inputs
        files[self.file(k, "json")] = json.dumps(side).encode()
        files[self.file(k)] = data
        write_all(files)

    def read(self, k: int, inputs: bool = False) -> tuple[Records, Json]:
        """A shard and its cost; raises ValueError where it is missing, torn or not what its checksum says."""
        try:
            side = json.loads(self.file(k, "json").read_bytes())
            data = self.file(k).read_bytes()
            if hashlib.sha256(data).hexdigest() != side["sha256"]:
                raise ValueError("its checksum differs")
            records = from_parquet(data)
            rows = self.rows_of(k)
            if not np.array_equal(records.index, np.arange(rows.start, rows.stop)):
                raise ValueError(f"it does not hold samples {rows.start}..{rows.stop - 1}")
            if inputs:
                saved = self.file(k, "inputs.safetensors").read_bytes()
                if hashlib.sha256(saved).hexdigest() != side["inputs_sha256"]:
                    raise ValueError("the checksum of its inputs differs")
            return records, side
        except (OSError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None

    def pending(self) -> tuple[list[int], list[int]]:
        """Shards still to be computed; and those among them that are there but damaged."""
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

    def sweep(self) -> None:
        """Remove what killed processes left under temporary names."""
        atomic.sweep(self.path)


@contextlib.contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """One writer at a time, from before there is a run; the system frees the lock of a killed process."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {file.name for file in folder.iterdir()}
    except OSError as error:
        raise InputError(f"cannot make the run folder {path}: {error.strerror or error}") from None
    others = sorted(name for name in names if name != LOCK and PART not in name)
    if others and not (folder / RUN).exists():
        raise InputError(f"{path} holds other files ({others[0]}) and no {RUN}; choose another folder")
    with _lock(folder / LOCK):
        yield


def write_all(files: Mapping[Path, bytes]) -> None:
    """All of the files or none; a full disk is said in one line."""
    try:
        atomic.write_all(files)
    except OSError as error:
        raise RunError(
            f"cannot write {next(iter(files))}: {error.strerror or error}; what was finished is kept, "
            "so make room and run the same command again"
        ) from None


def _lock(path: Path) -> Lock:
    try:
        return Lock(path)
    except BlockingIOError:
        raise InputError(
            f"another process is writing to {path.parent}; wait for it, or choose another folder"
        ) from None
    except OSError as error:
        raise RunError(f"cannot write to {path.parent}: {error.strerror or error}") from None


def _checksum(run: Mapping[str, Any]) -> str:
    return fingerprint({key: value for key, value in run.items() if key != "checksum"})
