"""End to end on real data: the three public DVERGE members on the first CIFAR-10 test images."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from interpreter import run_python

ROOT = Path(__file__).resolve().parents[2]
NAME = "3_ResNet20_eps_0.07_seed_0.pth"
PLACES = [os.environ.get("RECARC_DVERGE", ""), str(ROOT.parent / "shared" / "data" / "dverge" / NAME)]
CHECKPOINT = next((p for p in PLACES if p and Path(p).is_file()), None)
DATA = os.environ.get("RECARC_DATA", "")

pytestmark = [
    pytest.mark.skipif(CHECKPOINT is None, reason=f"needs the DVERGE checkpoint {NAME} (RECARC_DVERGE=its path)"),
    pytest.mark.skipif(not (Path(DATA) / "cifar10").is_dir(), reason="needs CIFAR-10 (RECARC_DATA=its parent folder)"),
]


def recarc(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_python("-m", "recarc", *arguments)


def test_adaptive_pgd_on_the_public_members(tmp_path: Path) -> None:
    """AdaptivePGD 20 x 2/255: 44.1 % of the first 2,000 images, and of the first 100, as here, 38.3 %."""
    made = recarc("import", "dverge", CHECKPOINT, "--out", tmp_path / "dverge")
    assert made.returncode == 0, made.stderr
    knobs = ["--norm", "linf", "--eps", "8/255", "--attack", "adaptive_pgd", "--steps", "20", "--step-size", "2/255"]
    data = ["--data", "cifar10", "--limit", "100", "--out", tmp_path / "run"]
    done = recarc("evaluate", tmp_path / "dverge", *data, *knobs, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["samples"] == 100
    assert told["clean_accuracy"] == pytest.approx(0.933, abs=0.01)
    assert told["robust_accuracy"] == pytest.approx(0.383, abs=0.01)
    low, high = told["robust_interval"]
    assert low < 0.408 < high  # that of the first 200
    shown = recarc("show", tmp_path / "run")
    assert f"[{100 * low:.2f}, {100 * high:.2f}]" in shown.stdout
