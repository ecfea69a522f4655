"""May a run be resumed, or shared between ranks? Only with the same configuration and members that answer as before.

The hash of a member does not cover the code of its `forward`; its logits on the first samples do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recarc import atomic
from recarc.attacks.unmasking import Masked
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.checks import warn
from recarc.evaluation.fingerprint import EDITED, Json, differences, knob_of, undescribed
from recarc.evaluation.run_folder import RUN, RunFolder, SavedLogits
from recarc.evaluation.tiling import dtype_of
from recarc.provenance import short
from recarc.runtime import local_rank

SAVED_SAMPLES = 4
TOLERANCE, HALF_TOLERANCE = 1e-3, 3e-2  # of the largest logit: more than another machine's rounding


@dataclass(frozen=True)
class FirstLogits:
    """The members' logits on the first samples, as run.json holds them, and how far rounding may move each member's."""

    lines: SavedLogits
    tolerances: list[float]

    @classmethod
    def of(cls, ensemble: RandomizedEnsemble, logits: Tensor, repeated: Tensor) -> FirstLogits:
        """From (M, B, C) logits and those of a second call, which differ where a member is random."""
        halves = (torch.float16, torch.bfloat16)
        tolerances = [HALF_TOLERANCE if dtype_of(m) in halves else TOLERANCE for m in ensemble.members]
        pairs = zip(logits.cpu().double().numpy(), repeated.cpu().double().numpy(), tolerances)
        return cls([None if _distance(a, b) > tolerance else _lines(a) for a, b, tolerance in pairs], tolerances)

    def changes_from(self, saved: SavedLogits) -> list[str]:
        """One phrase per member that answers differently."""
        phrases = []
        for i, (before, now, tolerance) in enumerate(zip(saved, self.lines, self.tolerances)):
            distance = 0.0 if before is None or now is None else _distance(_numbers(before), _numbers(now))
            if distance > tolerance:
                phrases.append(f"members[{i}] by {100 * distance:.3g} % of its largest logit")
        return phrases


def _lines(logits: np.ndarray) -> list[str]:
    return [" ".join(f"{value:.6g}" for value in row) for row in logits[:SAVED_SAMPLES]]


def _numbers(lines: list[str]) -> np.ndarray:
    return np.array([[float(word) for word in line.split()] for line in lines])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference in units of the largest finite logit; infinite where NaN or infinity moved."""
    finite = np.isfinite(a)
    if a.shape != b.shape or not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return float("inf")
    scale = max(np.abs(a[finite]).max(initial=0.0), np.abs(b[finite]).max(initial=0.0))
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / scale) if scale else 0.0


def saved_configuration(path: Path) -> Json:
    """The configuration of the run in this folder; empty if there is no run yet."""
    return RunFolder.open(path).configuration if (path / RUN).exists() else {}


def masked_in(configuration: Json) -> Masked:
    """The signals to which the attack of a run reacts."""
    return [(int(i), str(name)) for i, name in knob_of(configuration.get("attack"), "masked") or ()]


def create_or_resume(path: Path, config: Json, first_logits: FirstLogits, environment: Json, resume: bool) -> RunFolder:
    """A new run in this folder, or the existing one if it is the same. Call it within `locked`."""
    if not (path / RUN).exists():
        return RunFolder.create(path, config, environment, first_logits.lines)
    if not resume:
        raise InputError(f"{path} already holds a run; choose another folder, or leave out --no-resume (resume=True)")
    folder = RunFolder.open(path)
    different = differences(folder.configuration, config)
    if different:
        more = f" (and {len(different) - 3} more)" if len(different) > 3 else ""
        edited = any(phrase.startswith(EDITED) for phrase in different)
        advice = "it was edited since, so the records are not its own: choose another folder (a new --out)"
        raise InputError(
            f"{path} belongs to another configuration: {'; '.join(different[:3])}{more}; "
            f"{advice if edited else 'choose another folder'}"
        )
    unknown = undescribed(config["attack"])
    if unknown:
        raise InputError(
            f"{path} cannot be resumed: the attack holds a {unknown[0]} whose state cannot be compared, so it may be "
            "another attack; choose another folder, or make the attack a dataclass of plain fields"
        )
    changed = first_logits.changes_from(folder.first_logits)
    if changed:
        raise InputError(
            f"the members of {path} answered the first samples differently ({'; '.join(changed)}): their "
            "code or something they compute with has changed; choose another folder"
        )
    return folder


def check_rank(folder: RunFolder, rank: int, config: Json, first_logits: FirstLogits) -> None:
    """Refuse a rank that was given something else than rank 0: the records of all go into one run."""
    different = differences(folder.configuration, config, ("on rank 0", f"on rank {rank}"))
    different += [f"first logits differ, of {phrase}" for phrase in first_logits.changes_from(folder.first_logits)]
    if different:
        raise InputError(
            f"the ranks evaluate different things: {different[0]}; "
            "give every rank the same ensemble, attack, data and options"
        )
    if rank and local_rank() == 0 and not atomic.lock_excludes(folder.path):  # rank 0, on another machine, holds it
        warn(atomic.WITHOUT_EFFECT.format(folder=folder.path))


def shards_to_do(folder: RunFolder, environment: Json) -> list[int]:
    """The shards that are missing or damaged; clears away what killed processes left."""
    atomic.sweep(folder.path)
    todo, damaged = folder.pending()
    for k in set(range(folder.shards)) - set(todo):
        folder.forget_begun(k)
    if todo:
        _compare_versions(folder, environment)
    for k in damaged:
        warn(f"{folder.file(k)} is damaged or another run's and will be computed again")
    return todo


def _compare_versions(folder: RunFolder, environment: Json) -> None:
    """Warn if the run will be finished by other code than began it."""
    saved = folder.environment
    if saved["torch"] != environment["torch"]:
        warn(
            f"{folder.path} was begun with torch {saved['torch']} and is resumed with {environment['torch']}; "
            "last bits may differ"
        )
    if any(saved[key] != environment[key] for key in ("recarc", "commit") if saved[key] and environment[key]):
        warn(
            f"{folder.path} was begun with recarc {_version(saved)} and is resumed with {_version(environment)}; its "
            "attacks may have changed, so start again in another folder unless you know that they did not"
        )


def _version(environment: Json) -> str:
    commit = environment["commit"]
    return f"{environment['recarc']}{f' (commit {short(commit)})' if commit else ''}"
