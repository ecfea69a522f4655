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
from recarc import PGD, AdaptivePGD, Ball, InputError, Square, Tight
from recarc.attacks import Attack, Best, Problem, input_gradient
from recarc.geometry import per_sample
from recarc.report import build_report
from recarc.testing import ATTACK_CHECKS, check_attack, small_problem

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


@dataclass(frozen=True)
class RandomPoints(Attack):
    """A random point of the ball, for better or worse; or x and the best of a few."""

    seed: int = 0
    best_of: int = 0

    def perturb(self, problem: Problem) -> Tensor:
        x, ball, best = problem.x, problem.ball, Best.clean(problem)
        for t in range(self.best_of):
            best.consider(problem, ball.move(x, ball.random_start(x, self.seed + t)))
        return best.x_adv if self.best_of else ball.move(x, ball.random_start(x, self.seed))


@dataclass(frozen=True)
class Lame(Attack):
    """One step from a random start, a tenth of the way where x has few bits; or the wrong way, or nowhere."""

    fault: str = ""
    seed: int = 0

    def perturb(self, problem: Problem) -> Tensor:
        x, ball = problem.x, problem.ball
        x_adv = AdaptivePGD(steps=1, random_init=True, seed=self.seed)(problem.ensemble, x, problem.y, ball)
        if self.fault == "uphill":
            gradient = input_gradient(lambda u: problem.ensemble.expected_loss(u, problem.y), x)
            return ball.move(x, -0.5 * per_sample(ball.radius(x), x) * ball.norm.steepest(gradient))
        if self.fault == "nowhere":
            return x.clone()
        return ball.move(x, 0.1 * (x_adv - x)) if self.fault == str(x.dtype) else x_adv


PRECISION, HARM = "works in half, bfloat16 and single precision", "lowers the accuracy"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("promise", [PRECISION, HARM])
def test_chance_fails_no_honest_attack(promise: str, seed: int) -> None:
    for attack in (*(RandomPoints(seed, n) for n in (0, 1, 2)), Square(queries=1, seed=seed)):
        ATTACK_CHECKS[promise](attack)
    ATTACK_CHECKS[promise](PGD(steps=1, step_size=0.001, random_init=True, seed=seed))


@pytest.mark.parametrize(
    ("fault", "promise", "told"),
    [
        ("torch.float16", PRECISION, "it moves far less in torch.float16 than in float64"),
        ("torch.bfloat16", PRECISION, "it moves far less in torch.bfloat16 than in float64"),
        ("torch.float32", PRECISION, "it moves far less in torch.float32 than in float64"),
        ("uphill", HARM, "without an attack, in l1"),
        ("nowhere", HARM, "without an attack, in l1"),
    ],
)
def test_a_fault_is_found_whatever_the_seed(fault: str, promise: str, told: str) -> None:
    ATTACK_CHECKS[promise](Lame())
    for seed in range(3):
        with pytest.raises(AssertionError, match=told):
            ATTACK_CHECKS[promise](Lame(fault, seed))


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
