"""`recarc theory` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recarc.cli import app as program


def test_the_picture_and_its_figures(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "new" / "theory.svg"
    assert program.run(["theory", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert out.read_text().count("<svg") == 1
    for accuracy in told["expected_accuracy"].values():
        assert accuracy["AdaptivePGD"] == 1 and accuracy["optimum"] <= accuracy["ARC"] < 1


def test_the_picture_of_joint_certificates(tmp_path: Path, capsys: Any) -> None:
    """Within the smaller ball each network can be fooled but not both; within the larger one both at one point."""
    assert program.run(["theory", "--certificates", "--out", str(tmp_path / "regions.svg"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["expected_accuracy"]
    assert list(told.values()) == [{"certified": 0.5, "exact": 0.5}, {"certified": 0.0, "exact": 0.0}]
    assert (tmp_path / "regions.svg").read_text().count("<svg") == 1


def test_another_ending_is_refused(tmp_path: Path, capsys: Any) -> None:
    assert program.run(["theory", "--out", str(tmp_path / "theory.jpeg")]) == 2
    assert ".png, .svg or .pdf" in capsys.readouterr().err
