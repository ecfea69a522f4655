"""The whole of `recarc evaluate`, tight standard with defaults, from the shell to the figure, in a process of its own.

The first process finds empty caches: it reads the data set from its files and compiles our Triton kernels. The second
one, and all later ones on the machine, find what the first has kept, also the bytecode of torch and of all other
sources, as pip keeps it (rows of commit 4e751fc559 were measured without it). It is run three times; its row has the
median, with the fastest and the slowest. A row without a range was a single process. "Attack" is what the run itself
reports: the search and its judging; the rest is start-up, data, preparing and measuring the members.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paper.bench.common import measured_row, timing
from paper.recipe import measured_item
from paper.results import Figure, RowResult
from paper.settings import LINF
from paper.setup import Setup
from recarc.errors import InputError

ZOO = "bat-resnet20-linf"
REPEATS = 3  # of the second process


@measured_item(
    "bench-command", "The whole command", parts=(ZOO, "resnet18"), page="performance", note=__doc__, cost="2 min"
)
def command(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    toy = setup.scale.name == "toy"
    for part in parts[:1] if toy else parts:
        ensemble = setup.given.get(part) or (f"zoo:{part}" if part == ZOO else None)
        if ensemble is None:
            setup.say(f"{part} is left out: give a folder with --ensemble {part}=DIR")
            continue
        words = ["evaluate", ensemble, "--data", "cifar10", "--eps", LINF, "--device", setup.device.type, "--json"]
        words += ["--limit", str(setup.limit)] if setup.limit else []
        if toy:
            words = ["evaluate", "zoo:bat-cnn-digits", "--data", "digits", "--eps", "0.1"]
            words += ["--preset", "quick", "--limit", "4", "--json"]
        with tempfile.TemporaryDirectory() as caches:
            for which, repeats in [("first", 1)] if toy else [("first", 1), ("second", REPEATS)]:
                runs = [_run(words, Path(caches)) for _ in range(repeats)]
                yield _row(setup, part, which, words, runs)


def _run(words: list[str], caches: Path) -> tuple[float, dict[str, Any]]:
    """Seconds of the whole process, and what it printed."""
    places = {"RECARC_CACHE": "recarc", "TRITON_CACHE_DIR": "triton", "PYTHONPYCACHEPREFIX": "bytecode"}
    env = {**os.environ, **{name: str(caches / place) for name, place in places.items()}}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    ran = subprocess.run([sys.executable, "-m", "recarc", *words], env=env, capture_output=True, text=True)
    took = time.perf_counter() - start
    if ran.returncode:
        raise InputError(f"recarc {' '.join(words)} failed: {ran.stderr.strip().splitlines()[-1:]}")
    return took, json.loads(ran.stdout)


def _row(setup: Setup, part: str, which: str, words: list[str], runs: list[tuple[float, dict[str, Any]]]) -> RowResult:
    found = runs[-1][1]
    took, attack = timing("seconds", [t for t, _ in runs]), timing("attack", [f["seconds"] for _, f in runs])
    low, high = (100 * value for value in found["robust_interval"])
    figures = [
        took,
        attack,
        Figure("robust", 100 * found["robust_accuracy"], (low, high)),
        Figure("forward", found["forward_passes"], unit="passes"),
        Figure("backward", found["backward_passes"], unit="passes"),
    ]
    setup.say(f"{part}: {which} process {took.measured:.3g} s, of which attack {attack.measured:.3g} s")
    known: dict[str, Any] = {"data": "cifar10", "split": "test", "norm": "linf", "eps": LINF, "ensemble": part}
    note = f"`recarc {' '.join([words[0], Path(words[1]).name, *words[2:]])}`"  # wherever the folder was
    return measured_row(
        setup, "bench-command", part, f"{part}: {which} process", figures, images=found["samples"], note=note, **known
    )
