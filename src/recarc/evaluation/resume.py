"""May a run that is on disk be resumed, or shared between ranks? Only by members that answer as before.

The hash of a member cannot see the code of its `forward`; its logits on the first samples can.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.checks import warn
from recarc.evaluation.fingerprint import Json, differences
from recarc.evaluation.run_folder import Answers, RunFolder
from recarc.evaluation.tiling import dtype_of

SHOWN = 4  # samples
FAR, FAR_IN_HALF = 1e-3, 3e-2  # of the largest logit: more than another machine's rounding


def answers_of(ensemble: RandomizedEnsemble, logits: Tensor, again: Tensor) -> Answers:
    """The first of the (M, B, C) logits; `again` are those of a second call."""
    return [
        None if _apart(a, b) > _allowed(ensemble, i) else _lines(a)
        for i, (a, b) in enumerate(zip(logits.cpu().double().numpy(), again.cpu().double().numpy()))
    ]


def changed_answers(ensemble: RandomizedEnsemble, there: Answers, here: Answers) -> list[str]:
    """One phrase for each member that answers differently."""
    found = []
    for i, (before, now) in enumerate(zip(there, here)):
        if before is None or now is None:
            continue
        apart = _apart(_numbers(before), _numbers(now))
        if apart > _allowed(ensemble, i):
            found.append(f"members[{i}] by {100 * apart:.3g} % of its largest logit")
    return found


def _lines(logits: np.ndarray) -> list[str]:
    return [" ".join(f"{value:.6g}" for value in row) for row in logits[:SHOWN]]


def _numbers(lines: list[str]) -> np.ndarray:
    return np.array([[float(word) for word in line.split()] for line in lines])


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference in units of the largest finite logit; infinite where NaN or infinity moved."""
    finite = np.isfinite(a)
    if a.shape != b.shape or not np.array_equal(np.where(finite, 0, a), np.where(np.isfinite(b), 0, b), equal_nan=True):
        return float("inf")
    scale = max(np.abs(a[finite]).max(initial=0.0), np.abs(b[finite]).max(initial=0.0))
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0) / scale) if scale else 0.0


def _allowed(ensemble: RandomizedEnsemble, i: int) -> float:
    return FAR_IN_HALF if dtype_of(ensemble.members[i]) in (torch.float16, torch.bfloat16) else FAR


def check_answers(folder: RunFolder, ensemble: RandomizedEnsemble, answers: Answers) -> None:
    """Refuses members that answer the first samples otherwise than those that began the run."""
    changed = changed_answers(ensemble, folder.first_logits, answers)
    if changed:
        raise InputError(
            f"the members of {folder.path} answered the first samples differently ({'; '.join(changed)}): their "
            "code changed, or something they compute with; choose another folder"
        )


def check_rank(folder: RunFolder, told: Json, ensemble: RandomizedEnsemble, answers: Answers) -> None:
    """What this rank was given against what rank 0 was: the records of all go into one run."""
    found = differences(folder.configuration, told)
    found += [f"other answers of {phrase}" for phrase in changed_answers(ensemble, folder.first_logits, answers)]
    if found:
        raise InputError(
            f"the ranks do not evaluate the same: {found[0]} (there: rank 0); "
            "give every rank the same ensemble, attack, data and options"
        )


def compare_versions(folder: RunFolder, here: Json) -> None:
    """A word where the rest of a run will be made by other code than its beginning."""
    there = folder.run["environment"]
    if there.get("torch") != here["torch"]:
        warn(
            f"{folder.path} was begun with torch {there.get('torch')} and goes on with {here['torch']}; "
            "last bits may differ"
        )
    if any(there.get(key) != here[key] for key in ("recarc", "commit") if there.get(key) and here[key]):
        warn(
            f"{folder.path} was begun with recarc {_version(there)} and goes on with {_version(here)}; its attacks may "
            "have changed, so start again in another folder unless you know that they did not"
        )


def _version(environment: Json) -> str:
    commit = environment.get("commit")
    return f"{environment.get('recarc')}{f' (commit {commit[:9]})' if commit else ''}"
