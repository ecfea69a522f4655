"""Members that a user's own code makes, on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from recarc import RandomizedEnsemble, save_ensemble
from recarc.cli import app as program
from recarc.models import from_factory

CODE = "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"


@pytest.fixture()
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module and an ensemble that it made, as in another process than the one that saved it."""
    (tmp_path / "nets_of_mine.py").write_text(CODE)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        save_ensemble(RandomizedEnsemble([from_factory("nets_of_mine:make")]), tmp_path / "mine")
    del sys.modules["nets_of_mine"]
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_trusted_code_is_found_in_the_working_folder(own_folder: Path, capsys: Any) -> None:
    before = list(sys.path)
    words = ["evaluate", "mine", "--data", "digits", "--eps", "0.1", "--attack", "pgd1", "--steps", "1", "--json"]
    words += ["--limit", "5", "--device", "cpu"]
    assert program.run(words) == 2
    assert "load with trust_code=True (--trust-code on the command line)" in capsys.readouterr().err
    assert "nets_of_mine" not in sys.modules
    assert program.run([*words, "--trust-code"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 5
    assert sys.path == before
