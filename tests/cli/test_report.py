"""`recarc report` and `recarc theory` on the command line."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape
from PIL import Image

from recarc import AdaptivePGD, Ball, RandomizedEnsemble, evaluate, save_ensemble
from recarc.attacks import Tight
from recarc.cli import app as program
from recarc.cli.output import print_entry, print_table
from recarc.data import load
from recarc.models import build
from recarc.report import build_report, load_runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    rec = RandomizedEnsemble([build("cnn", 10, 1, 8, width=4).eval() for _ in range(2)])
    data, ball, out = load("digits", "test", limit=16), Ball("linf", 0.1), tmp_path_factory.mktemp("report_cli")
    evaluate(rec, Tight("quick", steps=2), data, ball, out=out / "tight", progress=False, save_inputs=True)
    evaluate(rec, AdaptivePGD(steps=2), data, ball, out=out / "adaptive_pgd", progress=False)
    return out


def run(*arguments: object) -> int:
    return program.run([str(a) for a in arguments])


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_page_tables_and_figures(folder: Path, tmp_path: Path, capsys: Any) -> None:
    out, tables, figures = tmp_path / "page.html", tmp_path / "tables", tmp_path / "figures"
    options = ["--out", out, "--tables", tables, "--figures", figures, "--title", "My ensemble", "--json"]
    assert run("report", folder / "tight", folder / "adaptive_pgd", *options) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["page"] == str(out) and told["runs"] == 2 and told["verdict"]["floor"] <= told["attacks"]["Tight"]
    assert all(Path(name).exists() for name in told["figures"] + told["tables"])
    page = out.read_text(encoding="utf-8")
    assert "<h1>My ensemble</h1>" in page and told["verdict"]["sentence"] in page


def test_what_it_prints(folder: Path, tmp_path: Path, capsys: Any) -> None:
    assert run("report", folder, "--out", tmp_path / "page.html") == 0
    printed = capsys.readouterr().out
    assert "onclusive: the robust accuracy is" in printed and "2 runs" in printed
    assert run("report", folder / "adaptive_pgd", "--out", tmp_path / "page.html") == 0
    assert "1 run, " in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_the_command_on_the_page_is_the_one_that_was_typed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rec = save_ensemble(RandomizedEnsemble([build("cnn", 10, 1, 8, width=4)]), tmp_path / "my rec")
    typed = ["evaluate", str(rec), "--data", "digits", "--limit", "4", "--eps", "8/255", "--attack", "pgd1", "--quiet"]
    typed += ["--out", str(tmp_path / "run")]
    assert run(*typed) == 0
    assert run("report", tmp_path / "run", "--out", tmp_path / "page.html") == 0
    assert escape(shlex.join(["recarc", *typed])) in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_the_command_on_the_page_runs_again_and_names_the_ensemble(tmp_path: Path) -> None:
    """A folder of images, a flag of trust and a radius of 1/3: all of it as it was typed."""
    generator = torch.Generator().manual_seed(0)
    for k, pixels in enumerate(torch.randint(256, (4, 8, 8), dtype=torch.uint8, generator=generator)):
        (tmp_path / "images" / "test" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.numpy()).save(tmp_path / "images" / "test" / "ab"[k % 2] / f"{k}.png")
    torch.manual_seed(0)
    rec = save_ensemble(RandomizedEnsemble([build("cnn", 2, 1, 8, width=4)]), tmp_path / "my rec")
    typed = ["evaluate", str(rec), "--data", str(tmp_path / "images"), "--eps", "1/3", "--attack", "pgd1", "--quiet"]
    assert run(*typed, "--trust-code", "--out", tmp_path / "run") == 0
    report = build_report(load_runs([tmp_path / "run"]))
    (command,) = report.commands
    assert "--trust-code" in command and "--eps 1/3" in command
    assert run(*shlex.split(command)[1:]) == 0
    facts = dict(report.facts)
    assert facts["ensemble"] == str(rec) and facts["ball"] == "linf eps 1/3"


def test_a_full_disk_leaves_what_was_there(folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """Whichever of the files the disk has no room for, none of them is new and none is left over."""
    out = tmp_path / "page.html"
    out.write_text("before")
    sync, room = os.fsync, iter(range(4))

    def fill(file: int) -> None:
        if next(room, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr(os, "fsync", fill)
    options = ["--out", out, "--tables", tmp_path / "tables", "--figures", tmp_path / "figures"]
    assert run("report", folder / "tight", *options) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "No space left" in error
    assert out.read_text() == "before" and [f for f in tmp_path.rglob("*") if f.is_file()] == [out]


def test_names_never_reach_the_terminal_raw(folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    from recarc.evaluation import Verdict

    odd = "\x1b[2J\nrobust accuracy 99.00 %\r[red]"
    found = Verdict.of
    monkeypatch.setattr(Verdict, "of", lambda *runs: replace(found(*runs), sentence=odd))
    place = tmp_path / odd.replace("\n", "\x0b")
    for command in (["report", folder, "--out", place], ["show", folder / "tight"]):
        assert run(*command) == 0
        printed = capsys.readouterr().out
        assert r"\x1b[2J\nrobust accuracy 99.00 %\r[red]" in printed
        assert all(c.isprintable() or c == "\n" for c in printed)
    print_entry(odd, odd, odd)
    print_table([odd], [[odd]], odd)
    assert all(c.isprintable() or c == "\n" for c in capsys.readouterr().out)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_a_table_fits_the_terminal(columns: int, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    head = ["ensemble", "alpha", "clean %", "robust %", "floor %", "conclusive", "minus A long name, points"]
    long, word = "A long name of an ensemble", "zoo:bat-resnet20-linf-of-somebody"
    rows = [
        [long, "0.123 / 0.877", "97.83", "25.50 [17.64, 34.64]", "24.50", "no floor", ""],
        [word, "0.5 / 0.5", "100.00", "19.17 [13.35, 26.02]", "", "yes", "-16.33 [-19.05, -13.62]"],
    ]
    print_table(head, rows, "digits test")
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.strip() == "digits test" and max(map(len, lines)) <= columns
    if columns >= 80:
        assert all(line.strip()[-1] in "┓┃┩│┘" for line in lines)
        first = [line.split("│")[1].strip() for line in lines if line.startswith("│")]
        assert "".join(first).replace(" ", "") == (long + word).replace(" ", "")
    text = " ".join(lines)
    for whole in ("conclusive", "0.123", "25.50", "[17.64,", "100.00", "-16.33", "[-19.05,", "-13.62]"):
        assert re.search(rf"(?<![\w-]){re.escape(whole)}(?!\w)", text), whole


def test_commands_print_through_one_place() -> None:
    for file in Path(program.__file__).parent.glob("*.py"):
        if file.name != "output.py":
            assert not re.search(r"(?<![\w.])(?<!def )print\(", file.read_text(encoding="utf-8")), file


def test_bad_input(tmp_path: Path, capsys: Any) -> None:
    assert run("report", tmp_path / "nowhere", "--out", tmp_path / "page.html") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "does not exist" in error and not (tmp_path / "page.html").exists()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.json").write_text("{")
    assert run("report", broken, "--out", tmp_path / "page.html") == 2
    assert "cannot be read" in capsys.readouterr().err
