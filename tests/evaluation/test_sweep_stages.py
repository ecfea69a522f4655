"""A sweep reads an attack off the stages of Tight only where it is the very attack that Tight runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import BALL, problem
from torch import Tensor

from recarc import ARC, AdaptivePGD, Attack, Evaluation, Tight, evaluate
from recarc.attacks.base import Outcome, Stage
from recarc.attacks.problem import Problem
from recarc.sweep import sweep

pytestmark = pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("arc", ARC(steps=1, step_size=1e-6)),
        ("arc", ARC(steps=2, planes=1)),
        ("arc", ARC(steps=2, planes=4, variant="corrected")),
        ("adaptive_pgd", AdaptivePGD(steps=2, step_size=1e-6)),
        ("climb", ARC(steps=2, planes=4)),
    ],
)
def test_an_attack_with_knobs_of_its_own_is_run(name: str, attack: Any, tmp_path: Path) -> None:
    ensemble, data = problem()
    attacks = {name: attack, "tight": Tight("quick", steps=2)}
    found = sweep(ensemble, attacks, data, BALL, "eps", [0.05, 0.1], tmp_path / "sweep", progress=False)
    alone = evaluate(ensemble, attack, data, BALL, progress=False)
    cell = found.at(0.1, name)
    assert cell is not None and cell.stage == "" and cell.estimate.value == alone.robust_accuracy
    assert Evaluation.load(cell.run).configuration["attack"] == alone.configuration["attack"]


def test_the_attacks_that_tight_runs_are_read_off_its_records(tmp_path: Path) -> None:
    ensemble, data = problem()
    attacks = {"adaptive_pgd": AdaptivePGD(steps=2), "arc": ARC(steps=2, planes=4), "tight": Tight("quick", steps=2)}
    found = sweep(ensemble, attacks, data, BALL, "eps", [0.1], tmp_path, progress=False)
    assert [str(p.parent.relative_to(tmp_path)) for p in tmp_path.rglob("run.json")] == ["eps=0.1/tight"]
    for name in ("adaptive_pgd", "arc"):
        cell = found.at(0.1, name)
        assert cell is not None and cell.stage == name
        assert cell.estimate.value == evaluate(ensemble, attacks[name], data, BALL, progress=False).robust_accuracy
    swept = sweep(ensemble, attacks, data, BALL, "steps", [1, 2], tmp_path / "steps", progress=False)
    assert {cell.stage for cell in swept.cells if cell.attack == "arc"} == {"arc"}, "steps change both alike"


@dataclass(frozen=True)
class Staged(Attack):
    """A user's own staged attack: ARC alone."""

    def plain_stages(self) -> dict[str, Attack]:
        return {"arc": ARC(steps=2)}

    def perturb(self, problem: Problem) -> Tensor:
        return ARC(steps=2).perturb(problem)

    def outcome(self, problem: Problem) -> Outcome:
        x_adv = self.perturb(problem)
        return Outcome([(1.0, x_adv)], [Stage("arc", x_adv, alone=True)])


def test_a_users_own_staged_attack_shares_its_stages(tmp_path: Path) -> None:
    ensemble, data = problem()
    attacks = {"arc": ARC(steps=2), "own": Staged()}
    found = sweep(ensemble, attacks, data, BALL, "eps", [0.1], tmp_path / "eps", progress=False)
    cell = found.at(0.1, "arc")
    assert cell is not None and cell.stage == "arc"
    found = sweep(ensemble, attacks, data, BALL, "steps", [1, 2], tmp_path / "steps", progress=False)
    assert [cell.stage for cell in found.cells if cell.attack == "arc"] == ["", ""], "only arc changes"


def test_values_that_agree_in_six_digits_are_two_points(tmp_path: Path) -> None:
    ensemble, data = problem()
    values = [0.0313725, 0.03137251, 8 / 255]
    found = sweep(ensemble, {"pgd": AdaptivePGD(steps=2)}, data, BALL, "eps", values, tmp_path, progress=False)
    assert [Evaluation.load(cell.run).configuration["ball"]["eps"] for cell in found.cells] == values
    assert (tmp_path / "eps=0.0313725" / "pgd").exists()
