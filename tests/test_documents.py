"""The examples of the documents and the scripts in examples/ run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import recarc
from interpreter import run_python
from recarc import Evaluation, RandomizedEnsemble, save_ensemble
from recarc.attacks import registry
from recarc.models import build

ROOT = Path(__file__).parent.parent
PERCENT = re.compile(r"(\d+\.\d)%")


def run(script: Path, folder: Path, *arguments: str) -> str:
    done = run_python(script, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


MODELS = """
import torch
from torch import nn
torch.manual_seed(0)
model_1, model_2 = (nn.Sequential(nn.Flatten(), nn.Linear(192, 10)).eval() for _ in range(2))
x = torch.rand(20, 3, 8, 8)
y = model_1(x).argmax(1)
"""


def code_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_the_three_lines_at_the_top_of_the_readme_run(tmp_path: Path) -> None:
    code = code_blocks()[0]
    assert len([line for line in code.splitlines() if line.strip()]) == 1 + 3
    script = tmp_path / "readme.py"
    script.write_text(MODELS + code)
    accuracy, floor = re.fullmatch(r"(.*) % \[.*\] (.*) %\n", run(script, tmp_path)).groups()  # type: ignore[union-attr]
    assert 0 <= float(floor) <= float(accuracy) <= 100


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    code = code_blocks()[1]
    assert len([line for line in code.splitlines() if line.strip()]) == 8
    script = tmp_path / "readme.py"
    script.write_text(code)
    lines = run(script, tmp_path).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("AdaptivePGD(") and lines[1].startswith("ARC(")


def test_every_attack_the_documentation_names_can_be_made() -> None:
    text = (ROOT / "docs" / "attacks.md").read_text()
    table = text[text.index("| here |") : text.index("Random numbers")]
    calls = [c for c in re.findall(r"`([A-Z]\w+\(.*?\))`", table) if "..." not in c and "attack, n" not in c]
    known = {name: getattr(recarc, name) for name in re.findall(r"\b([A-Z]\w+)\(", " ".join(calls))}
    made = [eval(call, known) for call in calls]
    assert len(made) >= 10 and all(isinstance(attack, recarc.Attack) for attack in made)


@pytest.mark.parametrize("name", registry.names())
def test_every_attack_is_public_and_documented(name: str) -> None:
    attack = type(registry.attack_named(name))
    assert attack.__name__ in recarc.attacks.__all__ and attack.__name__ in recarc.__all__
    assert f"`{attack.__name__}(" in (ROOT / "docs" / "attacks.md").read_text()
    assert f"::: {attack.__module__}.{attack.__name__}\n" in (ROOT / "docs" / "api.md").read_text()


@pytest.mark.parametrize("name", ["own_models", "own_norm"])
def test_examples_print_falling_accuracies(name: str, tmp_path: Path) -> None:
    out = run(ROOT / "examples" / f"{name}.py", tmp_path)
    clean, *attacked = [float(v) for v in PERCENT.findall(out)]
    assert len(attacked) >= 3 and max(attacked) < clean
    assert not list(tmp_path.iterdir())


def test_the_counter_example_is_drawn(tmp_path: Path) -> None:
    out = run(ROOT / "examples" / "counterexample.py", tmp_path, "picture.png")
    assert re.search(r"AdaptivePGD +delta \[0.0, 0.0\] +expected accuracy 1.0", out)
    assert re.search(r"ARC .*expected accuracy 0.5", out)
    picture = (tmp_path / "picture.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 20_000


PAGES = ("attacks", "other_packages", "own_attack", "own_network", "recipes", "evaluation", "zoo")
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{name}.md" for name in PAGES)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_name_files_that_exist(name: str) -> None:
    text = (ROOT / name).read_text()
    for path in re.findall(r"`((?:tests|src|examples|\.ci)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        assert ((ROOT / name).parent / link).exists(), link


SRUN = """#!/bin/bash
[ -z "$SRUN_EXITS" ] || exit "$SRUN_EXITS"
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_PROCID=$rank SLURM_LOCALID=0 "$@" &
    tasks="$tasks $!"
done
for task in $tasks; do wait $task || exit $?; done
"""
SCONTROL = """#!/bin/bash
if [ "$1" = show ]; then echo 127.0.0.1; echo node2; else echo "$@" >> requeued; fi
"""


@pytest.mark.parametrize("code", ["", "3", "137", "1"], ids=lambda code: f"exits {code or 0}")
def test_the_job_script_for_slurm_runs(code: str, tmp_path: Path) -> None:
    """With stand-ins for `srun` and `scontrol`: two tasks evaluate, and only an interrupted job is requeued."""
    script = re.findall(r"```bash\n(#!.*?)```", (ROOT / "docs" / "clusters.md").read_text(), flags=re.DOTALL)[0]
    asked = "--data cifar10 --eps 8/255 --attack arc"
    assert f"dverge {asked} --out runs/arc" in script
    script = script.replace(asked, "--data digits --limit 32 --eps 0.1 --attack arc --steps 1 --shard-size 8")
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "job": script}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    save_ensemble(RandomizedEnsemble([build("cnn", 10, 1, 8, width=2) for _ in range(2)]), tmp_path / "dverge")
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SRUN_EXITS": code}
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **slurm, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [tmp_path / "job"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == int(code or 0), done.stderr
    assert (tmp_path / "requeued").exists() == (code in ("3", "137"))
    if not code:
        assert len(Evaluation.load(tmp_path / "runs" / "arc")) == 32


@pytest.mark.parametrize("name", ["commands.md", "zoo.md"])
def test_generated_pages_are_in_step(name: str) -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from pages import PAGES
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run `python docs/pages.py`"


def test_one_version_everywhere() -> None:
    version = recarc.__version__
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "CHANGELOG.md"):
        assert version in (ROOT / name).read_text(), name


def test_the_threat_model_is_linked_and_packaged() -> None:
    assert (ROOT / "SECURITY.md").is_file()
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text() and "SECURITY.md" in (ROOT / "MANIFEST.in").read_text()


def columns(line: str) -> int:
    """Cells of a line of a table; a pipe in code or behind a backslash ends none."""
    return re.sub(r"`[^`]*`|\\\|", "", line).strip().strip("|").count("|") + 1


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_tables_have_a_heading_for_every_column(path: Path) -> None:
    lines, expected, heading = path.read_text(encoding="utf-8").splitlines(), 0, ""
    for before, line in zip(["", *lines], lines):
        if not line.startswith("|"):
            expected = 0
        elif not before.startswith("|"):
            expected, heading = columns(line), line
        else:
            assert columns(line) == expected, f"{heading}\n{line}"
