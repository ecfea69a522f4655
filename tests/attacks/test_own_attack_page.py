"""docs/own_attack.md: its example, executed; and what `check_attack` finds in attacks that break a promise."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import recarc
from recarc import Ball, InputError, Tight
from recarc.attacks import Attack, Problem
from recarc.report import build_report
from recarc.testing import check_attack, small_problem

PAGE = Path(__file__).parents[2] / "docs" / "own_attack.md"


@pytest.fixture
def page() -> Iterator[dict[str, Any]]:
    """What the blocks of the page define, run in order as one user would."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    lines = [line for line in blocks[0].partition("@dataclass")[2].splitlines() if line.strip()]
    assert len(lines) <= 20
    module = sys.modules["my_attack"] = ModuleType("my_attack")
    exec(blocks[0], vars(module))
    ensemble, x, y = small_problem(30, torch.float32)
    names: dict[str, Any] = {"ensemble": ensemble, "x": x, "y": y}
    for block in blocks[1:]:
        exec(block, names)
    yield names
    del sys.modules["my_attack"]


def test_the_page_runs_and_its_attack_is_a_stage_of_tight(page: dict[str, Any], tmp_path: Path) -> None:
    assert page["result"].robust_accuracy < page["result"].clean_accuracy
    mine, data, ball = page["MomentumPGD"], (page["x"], page["y"]), Ball("linf", 0.1)
    attack = Tight("quick", steps=2, extra=[mine(), mine(steps=3)])
    result = recarc.evaluate(page["ensemble"], attack, data, ball, out=tmp_path / "run", progress=False)
    assert list(result.stages)[3:5] == ["extra_MomentumPGD", "extra_MomentumPGD_2"]
    alone = recarc.evaluate(page["ensemble"], mine(), data, ball, progress=False)
    assert result.stage_accuracies["extra_MomentumPGD"].value == alone.robust_accuracy >= result.robust_accuracy
    report = build_report(result)
    assert "MomentumPGD" in [row.name for row in report.rows] and result.floor is not None
    with pytest.raises(InputError, match=r"belongs to another configuration: attack.extra"):
        recarc.evaluate(page["ensemble"], Tight("quick", steps=2), data, ball, out=tmp_path / "run")


def test_tight_without_extra_is_what_it_was() -> None:
    plain, none = Tight("quick", steps=2), Tight("quick", steps=2, extra=[])
    assert plain == none and hash(plain) == hash(none)  # so that runs recorded before there was `extra` resume
    for wrong in ([Attack], ["mine:Attack"], "mine:Attack"):
        with pytest.raises(InputError, match=r"expected attacks, such as Tight\(extra=\[MyAttack\(\)\]\)"):
            Tight(extra=wrong)


def leaves_the_ball(ensemble: Any, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    return x + 2 * ball.eps


@dataclass(frozen=True)
class Careless(Attack):
    """Random numbers of the batch, written into x."""

    def perturb(self, problem: Problem) -> Tensor:
        noise = torch.rand_like(problem.x) - 0.5
        return problem.ball.move(problem.x, problem.ball.project(noise, problem.x))


def test_what_an_attack_breaks_is_listed() -> None:
    state = torch.get_rng_state()
    with pytest.raises(AssertionError) as broken:
        check_attack(Careless())
    text = str(broken.value)
    assert text.startswith("Careless breaks ") and "stays in ball" not in text
    for promise in ("same points again", "whatever the batch", "random state as they were"):
        assert promise in text
    with pytest.raises(AssertionError, match=r"stays in ball and box: AssertionError: outside ball or box by"):
        check_attack(leaves_the_ball)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(InputError, match="write Careless"):
        check_attack(Careless)
