"""What a run says about itself while it is under way."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest
import torch
from runs import BALL, QUICK, problem
from torch import Tensor

from recarc import Ball, RandomizedEnsemble, evaluate
from recarc.evaluation import progress
from recarc.runtime import Heartbeat, Ranks


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


def test_ranks_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECARC_RANK_TIMEOUT", "0.5")  # a sign of life every 0.05 s
    store = torch.distributed.HashStore()
    with Heartbeat(store, 0, 2) as first, Heartbeat(store, 1, 2) as second:
        mine = progress.Progress(40, Ranks(0, 2, None, first))
        other = progress.Progress(20, Ranks(1, 2, None, second))
        assert mine.everywhere()[:2] == (0, 40)
        mine.advance(10, 5.0)
        other.advance(20, 1.0)
        deadline = time.monotonic() + 5
        while mine.everywhere() != (30, 60, 0.2) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert mine.everywhere() == (30, 60, 0.2)
    assert mine.everywhere() == (30, 60, 0.2)  # also once the other has left
