"""Small problems and run folders for the tests of the evaluation."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recarc import AdaptivePGD, Ball, RandomizedEnsemble
from recarc.attacks.tight import PRESETS
from tiny import labels_of, mlp_ensemble, points

BALL = Ball("linf", 0.1)
QUICK = AdaptivePGD(steps=3)


def problem(count: int = 40, members: int = 3) -> tuple[RandomizedEnsemble, tuple[Tensor, Tensor]]:
    """A small ensemble and samples on which it has something to lose."""
    ensemble = mlp_ensemble(members, [0.5, 0.3, 0.2][:members] if members == 3 else None, dtype=torch.float32)
    x = points(count, 6, dtype=torch.float32)
    return ensemble, (x, labels_of(ensemble, x))


def shorten_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard preset with all of its stages, each of them short."""
    standard = PRESETS["standard"]
    assert standard.challenge is not None
    challenge = replace(standard.challenge, steps=5, queries=20, smooth_steps=2)
    climb = replace(standard.climb, steps=5, round_steps=5, targets=2)
    members = tuple(replace(attack, steps=5) for attack in standard.members)
    short = replace(standard, members=members, climb=climb, lattice_steps=5, challenge=challenge)
    monkeypatch.setitem(PRESETS, "standard", short)


def subprocess_environment(**more: str) -> dict[str, str]:
    """For a process that imports the modules beside the tests, and the same recarc."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def records_of(run: Path) -> dict[str, bytes]:
    """The bytes of every shard of records."""
    return {file.name: file.read_bytes() for file in sorted(run.glob("shard-*.parquet"))}
