"""Figures that README and the guides quote: the demo as shipped, and trained anew with several seeds."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from paper import results
from paper.recipe import measured_item
from paper.results import Figure, RowResult, hardware_of
from paper.setup import Setup
from recarc.data import load

SHIPPED, SEEDS = None, (0, 1, 2, 3)


@measured_item(
    "demo",
    "`recarc demo`, shipped and trained anew with four seeds: AdaptivePGD against the tight attack and its floor",
    cost="5 min on two CPU cores",
)
def demo(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    for seed in (SHIPPED, *SEEDS) if setup.scale.name == "full" else (SHIPPED,):
        yield _row(seed, _summary(seed))


def _summary(seed: int | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = [*_command(seed), "--quiet", "--out", folder]
        done = subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.PIPE)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _command(seed: int | None) -> list[str]:
    return ["recarc", "demo", "--json", *(() if seed is None else ("--seed", str(seed)))]


def _row(seed: int | None, summary: dict[str, Any]) -> RowResult:
    return RowResult(
        "shipped" if seed is None else f"seed {seed}",
        tuple(Figure(column, round(100 * value, 4)) for column, value in summary["attacks"].items()),
        images=len(load("digits", "test")),
        data="digits",
        split="test",
        alpha=tuple(member["alpha"] for member in summary["members"]),
        ensemble="zoo:bat-cnn-digits" if seed is None else "two small networks that the demo trains",
        seconds=round(summary["seconds"], 1),
        command=" ".join(_command(seed)),
        commit=results.commit(),
        hardware=hardware_of(torch.device("cpu")),
        date=results.now(),
    )
