"""Entries whose members are made by code of the user's own, here a network that hides its gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recarc import RandomizedEnsemble, Tight, save_ensemble
from recarc.board import Board, Row, entry
from recarc.cli.app import run
from recarc.models import from_factory

CODE = """
import torch
from torch import nn
class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 10)
    def forward(self, x):
        return self.linear(torch.round(4 * x).flatten(1) / 4)
"""


@pytest.fixture()
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with code, an ensemble of it and an empty board."""
    (tmp_path / "rounding_of_mine.py").write_text(CODE)
    Board("digits", "test", {"linf": 0.1}).write(tmp_path / "board.json")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        save_ensemble(RandomizedEnsemble([from_factory("rounding_of_mine:Rounded")]), tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(entry, "Tight", lambda: Tight("quick", steps=4))
    return tmp_path


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_own_networks_enter_if_trusted_and_masked_ones_are_marked(mine: Path, capsys: Any) -> None:
    problem = ["--data", "digits", "--eps", "0.1", "--limit", "12", "--device", "cpu", "--quiet"]
    assert run(["evaluate", "mine", *problem, "--trust-code", "--out", "run"]) == 0
    add = ["board", "add", "run", "--ensemble", "mine", "--device", "cpu"]
    assert run(add) == 2
    assert "--trust-code on the command line" in capsys.readouterr().err and not Board.read("board.json").rows
    assert run([*add, "--trust-code"]) == 0
    said = capsys.readouterr().out
    assert "over its best member alone; open: gradients vanish" in said
    assert run(["board", "show", "--json"]) == 0
    assert "gradients_vanish" in json.loads(capsys.readouterr().out)["rows"][0]["signals"]


def test_the_shown_table_names_the_signals(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    known = {"clean": 1.0, "adaptive_pgd": 0.6, "arc": 0.6, "floor": 0.5, "best_member": 0.4, "most": 0.2}
    shared: dict[str, Any] = {"norm": "linf", "eps": 0.1, "members": 2, "alpha": [0.5, 0.5], "samples": 9, **known}
    gain = {"value": 0.1, "low": 0.0, "high": 0.2}
    row = Row("m", tight=figure, gain=gain, gain_at_floor=0.0, verdict="open", signals=["margin_jumps"], **shared)
    assert run(["board", "show", "--board", str(Board(rows=(row,)).write(tmp_path / "b.json"))]) == 0
    assert "open: margin jumps" in capsys.readouterr().out
