"""Runs that must not count: on another problem, or by attacks weaker than they look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recarc import (
    PGD,
    Ball,
    InputError,
    RandomAttacker,
    RandomizedEnsemble,
    Restarts,
    Tight,
    WorstOf,
    evaluate,
    load_ensemble,
)
from recarc.board import checks
from recarc.board.boards import Board
from recarc.data import load
from recarc.evaluation.fingerprint import describe
from recarc.report.runs import Run, load_runs

DIGITS = Board("digits", "test", {"linf": 0.1})
DATA = load("digits", "test", limit=4)
pytestmark = pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")


@pytest.fixture(scope="module")
def rec() -> RandomizedEnsemble:
    return load_ensemble("zoo:bat-cnn-digits")


def made(rec: RandomizedEnsemble, out: Path, data: Any = DATA, attack: Any = None, eps: float = 0.1) -> Run:
    evaluate(rec, attack or Tight(), data, Ball("linf", eps), out=out, progress=False)
    return load_runs([out])[0]


@pytest.fixture(scope="module")
def drawn(rec: RandomizedEnsemble, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made(rec, tmp_path_factory.mktemp("drawn") / "drawn")


def configured(run: Run, **changes: Any) -> Run:
    """The same run, had its configuration been another."""
    return replace(run, evaluation=replace(run.evaluation, configuration=run.configuration | changes))


def ball(norm: str, eps: float, box: Any = (0.0, 1.0)) -> dict[str, Any]:
    return {"ball": {"norm": norm, "eps": eps, "box": None if box is None else list(box)}}


def test_a_run_without_the_box_of_images_is_refused(drawn: Run) -> None:
    with pytest.raises(InputError, match="drawn has the box None; this board has images in"):
        checks.check_run(configured(drawn, **ball("linf", 0.1, None)), DIGITS)


class Weak(Tight):
    """Has the name of its attack below."""


Weak.__name__ = Weak.__qualname__ = "Tight"


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        (Tight(steps=1), "drawn used steps=1; a row needs 20 or more: evaluate without that knob of Tight"),
        (Tight("quick"), "preset quick"),
        (Restarts(Tight(steps=19)), "steps=19"),
        (RandomAttacker(PGD()), r"drawn used RandomAttacker\(.*; a row needs --attack tight"),
        (Weak(), "a row needs --attack tight"),
    ],
)
def test_weakened_attacks_are_refused(drawn: Run, attack: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        checks.check_run(configured(drawn, attack=describe(attack)), DIGITS)


@pytest.mark.parametrize(
    "attack",
    [Tight(steps=40, seed=3), Tight("thorough", challenge=0.1), Restarts(Tight()), WorstOf([len, Tight()])],
)
def test_attacks_that_are_as_strong_are_accepted(drawn: Run, attack: Any) -> None:
    checks.check_run(configured(drawn, attack=describe(attack)), DIGITS)


def test_a_knob_that_is_new_to_the_board_must_be_as_tight_has_it(drawn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "ADAPTED", ("preset", "challenge", "masked", "extra"))
    with pytest.raises(InputError, match="used seed=3; a row needs 0"):
        checks.check_run(configured(drawn, attack=describe(Tight(seed=3))), DIGITS)
