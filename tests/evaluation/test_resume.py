"""A run is resumed only with members that answer the first samples as before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import BALL, QUICK, problem, records_of
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, evaluate
from recarc.evaluation.resume import FirstLogits


def with_code(source: str, **attributes: Any) -> nn.Module:
    """A member with the same weights and name whose forward is this."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(6, 5)
            vars(self).update(attributes)

        def forward(self, x: Tensor) -> Tensor:
            return eval(source, {"x": x, "self": self, "torch": torch})

    return Net().eval()


def hooked(scale: float) -> nn.Module:
    net = with_code("self.layer(x)")
    net.layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * scale,))  # type: ignore[union-attr, operator]
    return net


def test_other_code_is_refused_in_one_line_and_changes_nothing(tmp_path: Path) -> None:
    _, data = problem()
    evaluate(with_code("self.layer(x)"), QUICK, data, BALL, out=tmp_path)
    before = records_of(tmp_path)
    evaluate(with_code("self.layer(1 * x)"), QUICK, data, BALL, out=tmp_path)
    with pytest.raises(InputError, match=r"members\[0\] by .* their code .* has changed") as caught:
        evaluate(with_code("self.layer(2 * x - 1)"), QUICK, data, BALL, out=tmp_path)
    assert "\n" not in str(caught.value) and records_of(tmp_path) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda v: with_code("self.layer(x - self.held)", held=torch.tensor(v)),
        lambda v: with_code("self.layer(x - self.held[0])", held=[v]),
        lambda v: with_code("self.layer(x - self.held['mean'])", held={"mean": v}),
        lambda v: with_code("self.held(self.layer(x))", held=partial(torch.mul, v)),
        lambda v: with_code("self.held(self.layer(x))", held=lambda z: v * z),
        hooked,
    ],
    ids=["tensor", "list", "dict", "partial", "closure", "hook"],
)
def test_what_a_hash_of_the_weights_cannot_see_shows_in_the_logits(
    make: Callable[[float], nn.Module], tmp_path: Path
) -> None:
    _, data = problem()
    for _ in range(2):
        evaluate(make(0.5), QUICK, data, BALL, out=tmp_path)
    with pytest.raises(InputError, match="answered the first samples differently"):
        evaluate(make(0.25), QUICK, data, BALL, out=tmp_path)


@pytest.mark.filterwarnings("ignore:members")
def test_a_random_member_is_resumed(tmp_path: Path) -> None:
    _, data = problem()
    for _ in range(2):
        evaluate(with_code("self.layer(x) + torch.randn(5)"), QUICK, data, BALL, out=tmp_path)


def test_rounding_is_no_change_and_nan_is() -> None:
    ensemble = RandomizedEnsemble([with_code("self.layer(x)")])
    logits = torch.tensor([[[1.0, -200.0, float("inf"), float("nan")]]])

    def first(values: Tensor) -> FirstLogits:
        return FirstLogits.of(ensemble, values, values)

    saved = first(logits).lines
    assert first(logits * 1.0001).changes_from(saved) == []
    for other in (logits * 1.01, logits.nan_to_num(nan=0.0), logits.flip(-1)):
        assert len(first(other).changes_from(saved)) == 1
