"""Run by torchrun in a test: an evaluation in which one rank may be made to die."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from runs import BALL, QUICK, problem
from torch import Tensor

from recarc import Ball, RandomizedEnsemble, evaluate

torch.set_num_threads(1)


def attack(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    dying = os.environ.get("DYING_RANK")
    if dying is not None and dying == os.environ.get("RANK") and len(list(Path(sys.argv[1]).glob("*.parquet"))) >= 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return QUICK(ensemble, x, y, ball)


def main(out: Path) -> None:
    ensemble, data = problem(64)
    evaluate(ensemble, attack, data, BALL, out=out, shard_size=4)


if __name__ == "__main__":
    import dying_rank  # by its name, so that a run records the same attack as in the test that resumes it

    dying_rank.main(Path(sys.argv[1]))
