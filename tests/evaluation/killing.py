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
from pathlib import Path

import torch

torch.set_num_threads(1)

from runs import BALL, problem  # noqa: E402

from recarc import ARC  # noqa: E402
from recarc.evaluation import evaluate  # noqa: E402
from recarc.evaluation import records as _records  # noqa: E402, F401


def child(run: Path) -> int:
    pid = os.fork()
    if pid == 0:
        ensemble, data = problem(96)
        evaluate(ensemble, ARC(steps=4), data, BALL, out=run, shard_size=4, tile=8, save_inputs=True)
        os._exit(0)
    return pid


def digest(run: Path) -> str:
    files = sorted([*run.glob("*.parquet"), *run.glob("*.safetensors"), run / "run.json"])
    return hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in files)).hexdigest()


def main(root: Path, wanted: int) -> None:
    random.seed(0)
    start = time.monotonic()
    assert os.waitpid(child(root / "whole"), 0)[1] == 0
    whole = time.monotonic() - start
    kills, unfinished, runs = 0, 0, [root / "run-0"]
    while kills < wanted:
        pid = child(runs[-1])
        time.sleep(random.uniform(0, whole / 3))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if not os.WIFSIGNALED(status):  # it was done before the signal came
            assert status == 0
            runs.append(root / f"run-{len(runs)}")
            continue
        kills += 1
        unfinished += len(list(runs[-1].glob("*.parquet"))) not in (0, 24)
    for run in runs:
        assert os.waitpid(child(run), 0)[1] == 0
    leftovers = [f.name for run in runs for f in run.iterdir() if ".part" in f.name]
    counts = {"kills": kills, "inside": unfinished, "runs": len(runs), "leftovers": leftovers}
    print(json.dumps({**counts, "whole": digest(root / "whole"), "digests": [digest(run) for run in runs]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
