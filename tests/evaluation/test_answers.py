"""A run goes on only with members that answer the first samples as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from runs import BALL, QUICK, problem, records_of
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, evaluate
from recarc.evaluation.resume import answers_of, changed_answers


def with_code(source: str) -> nn.Module:
    """A member of the same weights, attributes and name, whose forward is this."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return eval(source, {"x": x, "self": self, "torch": torch})

    return Net().eval()


def test_another_code_is_refused_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    _, data = problem()
    evaluate(with_code("self.layer(x)"), QUICK, data, BALL, out=tmp_path)
    before = records_of(tmp_path)
    evaluate(with_code("self.layer(1 * x)"), QUICK, data, BALL, out=tmp_path)
    with pytest.raises(InputError, match=r"members\[0\] by .* their code changed") as caught:
        evaluate(with_code("self.layer(2 * x - 1)"), QUICK, data, BALL, out=tmp_path)
    assert "\n" not in str(caught.value) and records_of(tmp_path) == before


@pytest.mark.filterwarnings("ignore:members")
def test_a_random_member_goes_on(tmp_path: Path) -> None:
    _, data = problem()
    for _ in range(2):
        evaluate(with_code("self.layer(x) + torch.randn(5)"), QUICK, data, BALL, out=tmp_path)


def test_rounding_is_no_change_and_nan_is() -> None:
    ensemble = RandomizedEnsemble([with_code("self.layer(x)")])
    logits = torch.tensor([[[1.0, -200.0, float("inf"), float("nan")]]])
    there = answers_of(ensemble, logits, logits)
    assert changed_answers(ensemble, there, answers_of(ensemble, logits * 1.0001, logits * 1.0001)) == []
    for other in (logits * 1.01, logits.nan_to_num(nan=0.0), logits.flip(-1)):
        assert len(changed_answers(ensemble, there, answers_of(ensemble, other, other))) == 1
