"""Run by torchrun in a test: evaluations in which rank 1 may be given something else than rank 0."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from runs import BALL, QUICK, problem

from recarc import InputError, evaluate
from tiny import mlp_ensemble

torch.set_num_threads(1)


def given(what: str) -> tuple[object, object]:
    ensemble, (x, y) = problem(64)
    if what == "model":
        ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2], seed=1, dtype=torch.float32)
    if what == "data":
        x = x.flip(0)
    if what == "shape":
        x = x[:, :4]
    return ensemble, (x, y)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    rank, what, out = int(os.environ["RANK"]), sys.argv[1], Path(sys.argv[2])
    if what != "again":
        dist.init_process_group("gloo")
    counts = []
    for k in range({"nothing": 4, "again": 3}.get(what, 1)):
        ensemble, data = given(what if rank else "nothing")
        try:
            evaluate(ensemble, QUICK, data, BALL, out=out / str(k), shard_size=8, progress=False)  # type: ignore[arg-type]
        except InputError as error:
            (out / f"rank{rank}.txt").write_text(str(error))
        counts.append(open_files() if Path("/proc/self/fd").exists() else 0)
    (out / f"files{rank}.txt").write_text(" ".join(map(str, counts)))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
