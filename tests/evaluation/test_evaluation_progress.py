"""What a run says about itself while it is under way."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest
from runs import BALL, QUICK, problem
from torch import Tensor

from recarc import Ball, RandomizedEnsemble, evaluate
from recarc.evaluation import progress


def slow(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    x_adv = QUICK(ensemble, x, y, ball)
    time.sleep(0.3)
    return x_adv


def test_a_line_now_and_then_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    ensemble, data = problem()
    monkeypatch.setattr(progress, "EVERY", 0.1)
    evaluate(ensemble, slow, data, BALL, shard_size=20, progress=False)
    assert capfd.readouterr().err == ""
    evaluate(ensemble, slow, data, BALL, shard_size=20)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("attacked 0 of 40 samples; ") and " 0 passes" not in lines[1]
    assert any(line.startswith("attacked 20 of 40 samples, robust ") for line in lines)


def test_the_bar_moves_within_a_batch(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    ensemble, data = problem()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(os.environ, "FORCE_COLOR", "1")
    monkeypatch.setitem(os.environ, "COLUMNS", "200")
    evaluate(ensemble, slow, data, BALL)
    drawn = capfd.readouterr().err
    assert "0/40" in drawn and " passes" in drawn
