"""The examples of the documents and the scripts in examples/ run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import recarc
from recarc.attacks import registry

ROOT = Path(__file__).parent.parent
PERCENT = re.compile(r"(\d+\.\d)%")


def run(script: Path, folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
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


@pytest.mark.parametrize("package, broken", [("torch", "2.9.1"), ("pyarrow", "14.0.0"), ("pillow", "10.2.0")])
def test_versions_with_known_holes_in_what_is_promised_safe_are_not_accepted(package: str, broken: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (lowest,) = re.findall(rf'"{package}>=([\d.]+)', text)
    assert [int(n) for n in lowest.split(".")] > [int(n) for n in broken.split(".")]


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
