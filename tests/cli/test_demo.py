"""`recarc demo`: the whole way as a new user takes it, and what it does with a folder that is not its own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from interpreter import run_python
from recarc.attacks import tight, unmasking
from recarc.cli import app as program
from recarc.cli import demo as module
from recarc.data import ImageSet, load

SMALL = {"epochs": 1, "width": 2, "sweep_samples": 6, "alphas": [0.5, 1.0], "radii": [0.3]}


def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    """One process, as installed, but with sweeps on few images: the gap, the floor met, and the time it may take."""
    script = (
        "import resource, sys\n"
        "from recarc.cli import demo\n"
        "from recarc.cli.app import run\n"
        f"demo.SETTING['sweep_samples'] = {SMALL['sweep_samples']}\n"
        "code = run(['demo', '--json'])\n"
        "print('used', resource.getrusage(resource.RUSAGE_SELF).ru_utime, file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = run_python("-c", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["attacks"]["AdaptivePGD"] - told["robust_accuracy"] >= 0.10
    assert told["floor"] <= told["robust_accuracy"] <= told["floor"] + 0.005, "conclusive"
    assert told["robust_accuracy"] < told["attacks"]["Best member alone"] < told["attacks"]["AdaptivePGD"]
    assert "fooled the test, not the attacker" in told["lesson"]
    text = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    for name, share in {**told["attacks"], "Tight": told["robust_accuracy"], "Floor": told["floor"]}.items():
        row = re.search(rf"\| \**{name}\** \| \**([\d.]+)\** \|", text)
        assert row is not None and abs(float(row[1]) - 100 * share) < 0.6, f"{name}: {share}, two samples off at most"
    used = float(done.stderr.splitlines()[-1].removeprefix("used "))
    assert used < 70, "seconds of computing; about 40 on the machine it was made on"
    page = tmp_path / "demo" / "report.html"
    assert page.stat().st_size < 3_000_000 and told["lesson"].split(";")[0]
    assert "Why AdaptivePGD stalls" in page.read_text(encoding="utf-8")
    assert [line.split()[0] for line in done.stderr.splitlines() if "/4" in line] == ["1/4", "2/4", "3/4", "4/4"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any training, few images, and the least effort of the tight attack."""

    def few(name: str, split: str, limit: int = 12, **options: Any) -> ImageSet:
        return load(name, split, limit=limit, **options)

    monkeypatch.setattr(module, "SETTING", {**module.SETTING, **SMALL})
    monkeypatch.setattr("recarc.data.load", few)
    monkeypatch.setitem(tight.PRESETS, "standard", tight.PRESETS["quick"])
    monkeypatch.setattr(tight, "SEARCH", 10)
    monkeypatch.setattr(unmasking, "MORE_NEIGHBOURS", 2)


def test_again_goes_on_and_another_seed_starts_anew(small: None, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "demo"
    assert program.run(["demo", "--out", str(out), "--quiet", "--seed", "0"]) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().splitlines()[-1].strip() and "What this shows:" in printed
    members = [(out / "ensemble" / f"member_{i}.safetensors").read_bytes() for i in range(2)]
    assert program.run(["demo", "--out", str(out), "--quiet", "--json", "--seed", "0"]) == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"clean_accuracy", "robust_accuracy", "floor", "members"}
    assert [(out / "ensemble" / f"member_{i}.safetensors").read_bytes() for i in range(2)] == members
    assert program.run(["demo", "--out", str(out), "--quiet", "--seed", "1"]) == 0
    assert (out / "ensemble" / "member_0.safetensors").read_bytes() != members[0]


def test_a_folder_with_other_files_is_left_alone(small: None, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert program.run(["demo", "--out", str(tmp_path)]) == 2
    assert "choose another folder" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
