"""Run by a test: evaluate in child processes, kill -9 them at random moments, finish, print what the folders hold.

The parent imports everything once and forks, so that a kill costs milliseconds and falls inside the evaluation.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)

from runs import BALL, problem  # noqa: E402

from recarc import ARC  # noqa: E402
from recarc.errors import RunError  # noqa: E402
from recarc.evaluation import evaluate  # noqa: E402
from recarc.evaluation import records as _records  # noqa: E402, F401

FAILED, STOPPED = 1, 3  # with a traceback; with a line that says why


@dataclass(frozen=True)
class Work:
    """Something to kill: how it writes to a place, what it leaves there, and whether it was stopped halfway."""

    begin: Callable[[Path], object]
    result: Callable[[Path], list[Path]]
    halfway: Callable[[Path], bool]


def attack(run: Path) -> None:
    ensemble, data = problem(96)
    evaluate(ensemble, ARC(steps=4), data, BALL, out=run, shard_size=4, tile=8, save_inputs=True)


EVALUATE = Work(
    attack,
    lambda run: [*run.glob("*.parquet"), *run.glob("*.safetensors"), run / "run.json"],
    lambda run: len(list(run.glob("*.parquet"))) not in (0, 24),
)


def child(work: Work, run: Path) -> int:
    pid = os.fork()
    if pid == 0:
        status = FAILED
        try:
            work.begin(run)
            status = 0
        except RunError:
            status = STOPPED
        finally:
            os._exit(status)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def finished(pid: int) -> bool:
    return os.waitpid(pid, 0)[1] == 0


def digest(work: Work, run: Path) -> str:
    return hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in sorted(work.result(run)))).hexdigest()


def campaign(work: Work, root: Path, wanted: int, fault: Callable[[int], None] = kill) -> dict[str, Any]:
    """Kill it this many times; then finish every run and compare it with one that was left alone."""
    start = time.monotonic()
    assert finished(child(work, root / "whole"))
    whole = time.monotonic() - start
    kills, halfway, runs, failed = 0, 0, [root / "run-0"], []
    while kills < wanted:
        pid = child(work, runs[-1])
        time.sleep(random.uniform(0, whole / 2))  # beyond the preparation, which takes a third of it
        fault(pid)
        status = os.waitpid(pid, 0)[1]
        if status == 0:  # it was done before the fault came
            runs.append(root / f"run-{len(runs)}")
            continue
        if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) != STOPPED:
            failed.append(runs[-1].name)
        kills += 1
        halfway += work.halfway(runs[-1])
    if not finished(child(work, runs[-1])):  # the others ended before their fault came
        failed.append(runs[-1].name)
    leftovers = [f.name for f in root.rglob("*") if ".part" in f.name]
    counts = {"kills": kills, "inside": halfway, "runs": len(runs), "failed": failed, "leftovers": leftovers}
    return {**counts, "whole": digest(work, root / "whole"), "digests": [digest(work, run) for run in runs]}


if __name__ == "__main__":
    random.seed(0)
    print(json.dumps(campaign(EVALUATE, Path(sys.argv[1]), int(sys.argv[2]))))
