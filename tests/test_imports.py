"""The direction of imports, and what `import recarc` costs."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import recarc

PACKAGE = Path(recarc.__file__).parent
# Bottom-up: a part may import itself and what stands on an earlier line.
ORDER = [
    ["errors"],
    ["lazy"],
    ["atomic", "runtime", "provenance", "inputs"],
    ["data", "zoo"],
    ["randomness", "simplex"],
    ["losses"],
    ["geometry"],
    ["combined"],
    ["ensemble"],
    ["deployment"],
    ["models"],
    ["fast"],
    ["attacks"],
    ["exact"],
    ["evaluation"],
    ["sampling", "sweep"],
    ["adapters"],
    ["training", "report"],
    ["board"],
    ["cli", "testing"],
]
LEVEL = {part: level for level, parts in enumerate(ORDER) for part in parts}
ONLY = {"data": {"errors", "atomic", "lazy"}}  # knows less than its place allows
USERS_OF_TRAINING = {"cli", "testing"}
HEAVY = ["scipy", "sklearn", "pyarrow", "matplotlib"]


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> set[str]:
    """The parts of recarc a module imports, anywhere in it, under any spelling."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("recarc.")}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            module = (node.module or "").split(".")
            if module[0] == "recarc":
                found |= {module[1]} if len(module) > 1 else {alias.name for alias in node.names}
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if part_of(p) not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_way_of_the_data(path: Path) -> None:
    part = part_of(path)
    assert part in LEVEL, f"{part} has no place in the order: add it to ORDER and to the code map of CONTRIBUTING.md"
    for other in imported_parts(ast.parse(path.read_text())) - {part}:
        if other in ("__version__",):
            continue
        assert other in LEVEL, f"{path.name} imports recarc.{other}: import from the module that defines it"
        assert LEVEL[other] < LEVEL[part], f"{part} may not import {other}"
        assert other in ONLY.get(part, LEVEL), f"{part} may import only {sorted(ONLY[part])}, not {other}"
        assert other != "training" or part in USERS_OF_TRAINING, f"{part} may not use training"


def test_the_code_map_shows_this_order() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    block = re.search(r"### Who may import whom\n.*?```\n(.*?)```", text, flags=re.DOTALL)
    assert block is not None
    assert [line.split() for line in block[1].splitlines()] == ORDER
    assert {name for line in ORDER for name in line} <= set(re.findall(r"`(\w+)/?`", text)), "not in the table"


def test_the_check_sees_every_spelling() -> None:
    code = "import recarc.data.cifar\nfrom recarc.attacks import ARC\nfrom recarc import evaluation\nimport torch"
    assert imported_parts(ast.parse(code)) == {"data", "attacks", "evaluation"}


def test_import_is_quick_and_light() -> None:
    """Beyond torch itself under two seconds, and without the libraries that only some commands need."""
    script = (
        "import time, torch, sys\n"
        "start = time.process_time()\n"
        "from recarc import ARC, Ball, RandomizedEnsemble\n"
        "print(time.process_time() - start)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    lines = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    assert float(lines[0]) < 2.0
    assert lines[1] == "[]"


def test_evaluate_imports_neither_scipy_nor_pandas(tmp_path: Path) -> None:
    """Each would cost up to half a second in every command. A file stands for pandas, which may not be installed."""
    (tmp_path / "pandas.py").write_text("__version__ = '3.0'")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["-m", "recarc", "evaluate", "zoo:bat-cnn-digits", "--data", "digits", "--norm", "l2", "--eps", "0.5"]
    command += ["--limit", "4", "--quiet", "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-X", "importtime", *command]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}
    assert imported & {"scipy", "pandas"} == set()
    assert {"torch", "pyarrow", "recarc"} <= imported and ran.returncode == 0, ran.stderr[-1000:]


def test_every_public_name_exists() -> None:
    for name in recarc.__all__:
        assert getattr(recarc, name) is not None
    assert recarc.__version__


def test_dir_shows_the_public_names() -> None:
    """Names that are imported on first use are offered by a notebook's completion, too."""
    import recarc.models
    import recarc.report
    import recarc.training

    assert {"load_ensemble", "save_ensemble", "push_to_hub"} <= set(dir(recarc.models))
    assert {"train", "Method"} <= set(dir(recarc.training)) and {"build_report", "compare"} <= set(dir(recarc.report))
