"""What a stranger installs: the wheel, built from the source distribution, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("build", reason="build is not installed: recarc[dev]")
ROOT = Path(__file__).parents[1]


def run(*command: Any, cwd: Path) -> str:
    """What a command prints, run without what this process knows of the source tree."""
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if name not in hidden} | {"OMP_NUM_THREADS": "1"}
    merged, words = subprocess.STDOUT, [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=merged, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both distributions; without isolation, as nothing can be downloaded everywhere."""
    folder = tmp_path_factory.mktemp("dist")
    said = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    assert not [line for line in said.splitlines() if "warning" in line.lower() or "deprecat" in line.lower()]
    return folder


def test_the_source_distribution_is_whole(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = [
        "LICENSE",
        "CITATION.cff",
        "CHANGELOG.md",
        "docs/index.md",
        "docs/figures/theory.svg",
        "examples/tour.ipynb",
    ]
    assert set(wanted) <= names and {f"tests/{file.name}" for file in ROOT.glob("tests/*.py")} <= names
    assert {f"docs/{file.name}" for file in ROOT.glob("docs/*.md")} <= names
    assert not [name for name in names if name.startswith(("tests/paper", "paper/"))]  # the one needs the other


def test_the_wheel_works_by_itself(built: Path, tmp_path: Path) -> None:
    """In an environment that has the other packages, but neither the source tree nor an editable installation."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    others = [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    (site / "others.pth").write_text("\n".join([*others, sysconfig.get_path("purelib")]))
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet"]
    run(*pip, "install", "--no-deps", "--no-index", next(built.glob("*.whl")), cwd=tmp_path)

    module = run(python, "-c", "import recarc.testing; print(recarc.testing.__file__)", cwd=tmp_path)
    assert Path(module.strip()).is_relative_to(site)
    head = HeaderParser().parsestr(next(site.glob("recarc-*.dist-info/METADATA")).read_text())
    assert (head["License-Expression"], head["Author"]) == ("MIT", "The recarc developers")
    assert head.get_all("Project-URL") == ["Paper, https://arxiv.org/abs/2206.06737"]  # no address that does not exist
    recarc = tmp_path / "env" / "bin" / "recarc"
    assert run(recarc, "--version", cwd=tmp_path).split() == ["recarc", head["Version"]]
    where, attack = ["--data", "digits", "--limit", 8, "--norm", "l2", "--eps", 0.5], ["--attack", "arc", "--steps", 2]
    said = run(recarc, "evaluate", "zoo:bat-cnn-digits", *where, *attack, "--quiet", "--json", cwd=tmp_path)
    result = json.loads(said)
    assert result["samples"] == 8 and 0 <= result["robust_accuracy"] <= result["clean_accuracy"] <= 1
