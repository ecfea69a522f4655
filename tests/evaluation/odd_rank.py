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


def run(what: str, out: Path) -> None:
    """Evaluate, with something else on rank 1; an error is kept in a file."""
    ensemble, data = given(what if rank else "the same")
    try:
        evaluate(ensemble, QUICK, data, BALL, out=out, shard_size=8, progress=False)  # type: ignore[arg-type]
    except InputError as error:
        out.with_name(f"{out.name} rank{rank}.txt").write_text(str(error))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0


if __name__ == "__main__":
    rank, out = int(os.environ["RANK"]), Path(sys.argv[1])
    for k in range(3):
        run("the same", out / f"meeting {k}")
    dist.init_process_group("gloo")
    counts = []
    for k in range(4):
        run("the same", out / f"group {k}")
        counts.append(open_files())
    (out / f"files{rank}.txt").write_text(" ".join(map(str, counts)))
    for what in ("model", "data", "shape"):
        run(what, out / what)
    dist.barrier()
    dist.destroy_process_group()
