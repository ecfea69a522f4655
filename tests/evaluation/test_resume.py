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

from recarc import Ball, Evaluation, InputError, RandomizedEnsemble, evaluate
from recarc.evaluation import engine
from recarc.evaluation.records import to_parquet
from recarc.evaluation.resume import FirstLogits
from recarc.evaluation.run_folder import RunFolder


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


# Within a shard

calls: list[int] = []  # the sizes of the batches


def interrupted(rec: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """Ctrl-C in the fourth batch."""
    calls.append(len(x))
    if len(calls) == 4:
        raise KeyboardInterrupt
    return QUICK(rec, x, y, ball)


def test_a_slow_shard_is_kept_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Killed after its first batches, a shard goes on where it was; the records are those of any other run."""
    ensemble, data = problem(40)
    attack = interrupted
    calls.clear()
    monkeypatch.setattr(engine, "KEEP_AFTER", 0.0)
    monkeypatch.setattr(engine, "LONG", 0.0)  # every batch is slow
    measured: list[int] = []
    check = engine.checks.check_members
    monkeypatch.setattr(engine.checks, "check_members", lambda *given: measured.append(1) or check(*given))
    sizes = {"shard_size": 32, "tile": 8, "save_inputs": True}
    with pytest.raises(KeyboardInterrupt, match="holds 0 of 2 shards and 24 samples of others; rerun"):
        evaluate(ensemble, attack, data, BALL, out=tmp_path / "a", **sizes)
    assert calls == [8, 8, 8, 8] and len(Evaluation.load(tmp_path / "a", partial=True)) == 24
    calls[:] = [0] * 4
    result = evaluate(ensemble, attack, data, BALL, out=tmp_path / "a", shard_size=16, tile=8, save_inputs=True)
    assert calls[4:] == [8, 8] and not list((tmp_path / "a").glob("begun*"))
    assert "resuming 2 of 2" not in capfd.readouterr().err  # none of them is whole
    assert len(measured) == 1  # the members, when the run began
    whole = evaluate(ensemble, attack, data, BALL, out=tmp_path / "b", progress=False, **sizes)
    assert records_of(tmp_path / "a") == records_of(tmp_path / "b")
    inputs = [sorted((tmp_path / name).glob("*.safetensors")) for name in "ab"]
    assert [f.read_bytes() for f in inputs[0]] == [f.read_bytes() for f in inputs[1]]
    assert result.forward_passes == whole.forward_passes


def test_batches_grow_while_they_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, data = problem(40)
    attack = interrupted
    calls[:] = [0] * 4
    evaluate(ensemble, attack, data, BALL, tile=4, progress=False)
    assert calls[4:] == [4, 8, 16, 12]
    calls[:] = [0] * 4
    evaluate(ensemble, attack, data, BALL, tile=4, batch_size=6, progress=False)
    assert calls[4:] == [4, 6, 6, 6, 6, 6, 6]


def test_the_length_of_a_shard_is_no_part_of_the_fingerprint(tmp_path: Path, capfd: Any) -> None:
    ensemble, data = problem(40)
    marks = set()
    for size in (7, 40):
        evaluate(ensemble, QUICK, data, BALL, out=tmp_path / str(size), shard_size=size, progress=False)
        marks.add(RunFolder.open(tmp_path / str(size)).fingerprint)
    assert len(marks) == 1
    first, second = (Evaluation.load(tmp_path / str(size)).records for size in (7, 40))
    assert to_parquet(first) == to_parquet(second)
    (tmp_path / "7" / "shard-00005.parquet").unlink()
    evaluate(ensemble, QUICK, data, BALL, out=tmp_path / "7", shard_size=20)  # keeps its own length
    assert f"resuming 1 of 6 shards; records in {tmp_path / '7'}" in capfd.readouterr().err
