"""evaluate: figures that follow from the records, attacks that are not believed, records that never vary."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, QUICK, problem, records_of
from safetensors.torch import load_file
from torch import Tensor

from captures import Scarce, capture
from recarc import (
    ARC,
    MORA,
    PGD,
    AdaptivePGD,
    Ball,
    CarliniWagner,
    Climb,
    InputError,
    RandomAttacker,
    RandomizedEnsemble,
    Tight,
    evaluate,
)
from recarc.attacks import Outcome, Problem
from recarc.evaluation import AttackViolation, Evaluation, RunError
from recarc.evaluation.prepare import default_tile
from tiny import assert_unchanged, cnn, photograph, points


def test_figures_are_those_of_the_attack() -> None:
    ensemble, (x, y) = problem()
    result = evaluate(ensemble, QUICK, (x, y), BALL)
    x_adv = QUICK(ensemble, x, y, BALL)
    assert result.clean_accuracy == pytest.approx(float(ensemble.expected_accuracy(x, y).mean()))
    assert result.robust_accuracy == pytest.approx(float(ensemble.expected_accuracy(x_adv, y).mean()))
    assert np.array_equal(result.adversarial_predictions[0], ensemble.predictions(x_adv).numpy())
    assert result.clean_predictions.shape == (3, 40) and result.norms.shape == (1, 40)
    assert result.norms.max() <= 0.1 + 1e-6
    assert result.forward_passes > 0 and result.backward_passes == 3 * 3 * 40


def test_the_ensemble_is_left_as_it_was() -> None:
    ensemble, (x, y) = problem()
    before = photograph(ensemble, x)
    evaluate(ensemble, QUICK, (x, y), BALL)
    assert_unchanged(before, photograph(ensemble, x))


@pytest.mark.parametrize(
    "attack",
    [
        ARC(steps=3),
        ARC(steps=2, variant="corrected"),
        AdaptivePGD(steps=3),
        RandomAttacker(PGD(steps=3)),
        PGD(steps=2, random_init=True),
        CarliniWagner(steps=3, search_steps=2),
        Tight(preset="quick", steps=3),
    ],
    ids=lambda a: type(a).__name__,
)
@pytest.mark.parametrize("norm, eps", [("linf", 0.1), ("l2", 0.3), ("l1", 0.5)])
def test_records_do_not_depend_on_the_batch_size(attack: Any, norm: str, eps: float, tmp_path: Path) -> None:
    """To the last bit, and the adversarial inputs too."""
    torch.manual_seed(0)
    ensemble = RandomizedEnsemble([cnn(i, dtype=torch.float32) for i in range(3)], [0.5, 0.3, 0.2])
    x, y = points(40, 2, 4, 4, dtype=torch.float32), torch.randint(5, (40,))
    found = []
    for batch in ("auto", 7):
        run = tmp_path / str(batch)
        settings: dict[str, Any] = {"batch_size": batch, "shard_size": 24, "tile": 8, "save_inputs": True}
        evaluate(ensemble, attack, (x, y), Ball(norm, eps), out=run, **settings)
        inputs = [file.read_bytes() for file in sorted(run.glob("*.safetensors"))]
        found.append((records_of(run), inputs))
    assert found[0] == found[1]


def test_records_do_not_depend_on_batches_that_span_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with much memory; costs are shared out, and a run that stopped within a shard goes on."""
    ensemble, data = problem()
    settings: dict[str, Any] = {"shard_size": 16, "save_inputs": True, "progress": False}
    plain = evaluate(ensemble, QUICK, data, BALL, out=tmp_path / "a", **settings)
    monkeypatch.setattr("recarc.evaluation.prepare.default_batch", lambda *_: 40)
    done: list[int] = []
    follower = SimpleNamespace(shard_done=lambda shard: done.append(shard.samples))
    joint = evaluate(ensemble, QUICK, data, BALL, out=tmp_path / "b", callbacks=[follower], **settings)
    assert records_of(tmp_path / "a") == records_of(tmp_path / "b")
    inputs = [[file.read_bytes() for file in sorted((tmp_path / run).glob("*.safetensors"))] for run in ("a", "b")]
    assert inputs[0] == inputs[1] and done == [16, 16, 8]
    assert (joint.forward_passes, joint.backward_passes) == (plain.forward_passes, plain.backward_passes)


def test_inputs_are_saved_in_float32_and_judge_the_same(tmp_path: Path) -> None:
    ensemble, (x, y) = problem()
    result = evaluate(ensemble, QUICK, (x, y), BALL, out=tmp_path / "run", save_inputs=True)
    x_adv = load_file(tmp_path / "run" / "shard-00000.inputs.safetensors")["x_adv"]
    assert x_adv.dtype == torch.float32 and x_adv.shape == (40, 1, 6)
    assert float(ensemble.expected_accuracy(x_adv[:, 0], y).mean()) == pytest.approx(result.robust_accuracy)


def test_summary_is_what_the_records_say(tmp_path: Path) -> None:
    ensemble, data = problem()
    result = evaluate(ensemble, QUICK, data, BALL, out=tmp_path / "run", shard_size=16)
    saved = json.loads((tmp_path / "run" / "summary.json").read_text())
    again = Evaluation.load(tmp_path / "run").to_json()
    assert saved == again == json.loads(json.dumps(result.to_json()))
    assert {"clean_accuracy", "robust_accuracy", "floor", "members"} <= saved.keys()


def cheat(kind: str) -> Any:
    def attack(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Any:
        x_adv = x.clone()
        if kind == "norm":
            x_adv[7, 2] = x[7, 2] + 0.101 * (1 if x[7, 2] < 0.5 else -1)
        elif kind == "box":
            x_adv[7] = x[7].where(x[7] < 0.95, 1.0) + 0.01
            x_adv[7, 0] = 1.001
        elif kind == "nan":
            x_adv[7, 0] = math.nan
        elif kind == "shape":
            return x_adv[:-1]
        elif kind == "dtype":
            return (x_adv * 255).to(torch.uint8)
        return x_adv

    attack.__name__ = f"cheat_{kind}"
    return attack


@pytest.mark.parametrize("kind", ["norm", "box", "nan", "shape", "dtype"])
def test_an_attack_that_cheats_is_caught(kind: str, tmp_path: Path) -> None:
    ensemble, (x, y) = problem()
    x = x.clone()
    x[7] = 0.95
    with pytest.raises(AttackViolation, match=f"cheat_{kind}") as caught:
        evaluate(ensemble, cheat(kind), (x, y), BALL, out=tmp_path / "run")
    if kind in ("norm", "box", "nan"):
        assert "sample 7" in str(caught.value)
    assert not records_of(tmp_path / "run")


def test_an_honest_function_is_an_attack_too() -> None:
    ensemble, data = problem()
    result = evaluate(ensemble, cheat("not at all"), data, BALL)
    assert result.robust_accuracy == result.clean_accuracy


class Mixed:
    """Lies about its probabilities."""

    def outcome(self, problem: Problem) -> Outcome:
        return Outcome([(0.5, problem.x), (0.4, problem.x)])


def test_probabilities_of_an_attacker_must_sum_to_one() -> None:
    ensemble, data = problem()
    with pytest.raises(AttackViolation, match="sum to 1"):
        evaluate(ensemble, Mixed(), data, BALL)


def nan_on_some(x: Tensor) -> Tensor:
    logits = x[:, :5] * 4
    return torch.where((x[:, :1] > 0.8), torch.nan, logits)


def test_nan_logits_count_as_wrong_and_are_named() -> None:
    _, (x, y) = problem()
    ensemble = RandomizedEnsemble([nan_on_some, torch.nn.Linear(6, 5)], [0.7, 0.3])
    with pytest.warns(UserWarning, match="NaN"):
        result = evaluate(ensemble, QUICK, (x, y), BALL)
    bad = (x[:, 0] > 0.8).nonzero()[:, 0].numpy()
    assert 0 < len(bad) < 40
    assert set(bad) <= set(result.nan_samples)
    assert (result.clean_predictions[0, bad] == -1).all()
    assert np.array_equal(result.adversarial_predictions[0][:, bad], result.clean_predictions[:, bad])
    assert (result.norms[0, bad] == 0).all()
    assert result.to_json()["nan"]["samples"] == len(result.nan_samples)
    assert (result.clean_scores[bad] <= 0.3).all()


@pytest.mark.parametrize("attack", [AdaptivePGD(steps=3), ARC(steps=3), MORA(steps=3), Climb(steps=3), Tight("quick")])
@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_what_a_member_answers_that_is_never_drawn_does_not_matter(attack: Any) -> None:
    ensemble, (x, y) = problem()
    members = [*ensemble.members, lambda x: x[:, :5] * math.nan]
    more = RandomizedEnsemble(members, [*ensemble.alpha.tolist(), 0.0])
    expected = evaluate(ensemble, attack, (x, y), BALL, progress=False)
    found = evaluate(more, attack, (x, y), BALL, progress=False)
    assert np.array_equal(found.robust_scores, expected.robust_scores)
    assert found.robust_accuracy < found.clean_accuracy


def test_nothing_but_nan() -> None:
    ensemble = RandomizedEnsemble([lambda x: x[:, :5] * math.nan])
    with pytest.warns(UserWarning, match="NaN"):
        result = evaluate(ensemble, QUICK, problem()[1], BALL)
    assert result.clean_accuracy == result.robust_accuracy == 0


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
def test_precisions(precision: str) -> None:
    ensemble, data = problem()
    result = evaluate(ensemble, QUICK, data, BALL, precision=precision)
    assert result.robust_accuracy < result.clean_accuracy
    assert next(ensemble.parameters()).dtype == torch.float32


def test_members_of_another_precision() -> None:
    ensemble, data = problem()
    result = evaluate(ensemble.double(), QUICK, data, BALL)
    assert result.robust_accuracy < result.clean_accuracy


def clock(sleep: Callable[[float], None]) -> SimpleNamespace:
    """For the engine alone, in place of `time`."""
    return SimpleNamespace(sleep=sleep, perf_counter=time.perf_counter, monotonic=time.monotonic)


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("recarc.evaluation.engine.time", clock(slept.append))
    ensemble, (x, y) = problem()
    sizes = []

    def hungry(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        sizes.append(len(x))
        if len(x) > 10:
            raise torch.OutOfMemoryError("no room")
        return QUICK(ensemble, x, y, ball)

    result = evaluate(ensemble, hungry, (x, y), BALL, tile=4)
    assert sizes[:4] == [4, 8, 16, 8]  # grows on a CPU until it does not fit
    whole = evaluate(ensemble, QUICK, (x, y), BALL, tile=4)
    assert np.array_equal(result.adversarial_predictions, whole.adversarial_predictions)
    assert not slept
    with pytest.raises(RunError, match=r"with 16 samples at a time.*from Python a smaller tile=") as caught:
        evaluate(ensemble, hungry, (x, y), BALL, tile=16)
    assert "--tile" not in str(caught.value) and "\n" not in str(caught.value)
    assert slept == [60]  # another process might have freed some
    slept.clear()
    sizes.clear()

    def tight(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        sizes.append(len(x))
        if sizes.count(16) % 2:
            raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported elsewhere")
        return QUICK(ensemble, x, y, ball)

    evaluate(ensemble, tight, (x, y), BALL, tile=16, batch_size=16)
    assert sizes == [16, 16, 16, 16, 8] and slept == [60, 60]


@pytest.mark.parametrize("room", [6, 3])
def test_a_batch_whose_graphs_do_not_fit_is_halved(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three members, with a tile each for their clean logits: those of the larger batch are freed."""
    sizes, alive = [], []

    def attack(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        sizes.append(len(x))
        alive.append(len(Scarce.alive))
        return QUICK(ensemble, x, y, ball)

    ensemble, data = problem()
    plain = evaluate(ensemble, QUICK, data, BALL, precision="tf32", tile=4)
    capture(monkeypatch, room)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="running without")
        result = evaluate(ensemble, attack, data, BALL, precision="tf32", tile=4)
    assert sizes == ([4, 8, 16, 8, 8, 8, 4] if room == 6 else [4, 8, *9 * [4]])
    assert alive == ([3, 3, 6, 3, 6, 6, 6] if room == 6 else 11 * [3])
    assert np.array_equal(result.adversarial_predictions, plain.adversarial_predictions)
    assert np.array_equal(result.norms, plain.norms)
    assert result.backward_passes == plain.backward_passes


def test_graphs_that_never_leave_room_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that fits only once it has waited costs a minute; that happens twice, not with every batch."""
    slept: list[float] = []
    monkeypatch.setattr("recarc.evaluation.engine.time", clock(slept.append))
    calls = 0

    def hungry(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        nonlocal calls
        calls += 1
        captured = ensemble.members[0].member.capturing  # type: ignore[union-attr]
        if captured and calls % 3:
            raise torch.OutOfMemoryError("no room")
        return QUICK(ensemble, x, y, ball)

    ensemble, data = problem()
    capture(monkeypatch, room=100)
    with pytest.warns(UserWarning, match="running without CUDA graphs: out of memory with 8 samples at a time"):
        evaluate(ensemble, hungry, data, BALL, precision="tf32", tile=8, batch_size=8)
    assert slept == [60, 60] and calls == 3 + 3 + 2 + 3


@pytest.mark.parametrize("freed", [False, True])
def test_the_smallest_batch_waits_for_memory_and_does_without_graphs(
    freed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert not Scarce.alive  # others may need the memory as well
        monkeypatch.setattr(Scarce, "room", 100 if freed else 2)

    ensemble, data = problem()
    plain = evaluate(ensemble, QUICK, data, BALL, precision="tf32", tile=16)
    capture(monkeypatch, room=2)
    monkeypatch.setattr("recarc.evaluation.engine.time", clock(sleep))
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        result = evaluate(ensemble, QUICK, data, BALL, precision="tf32", tile=16)
    told = [str(w.message) for w in shown if "CUDA graphs" in str(w.message)]
    assert slept == [60]
    assert told == ([] if freed else 3 * ["running without CUDA graphs: out of memory with 16 samples at a time"])
    assert np.array_equal(result.adversarial_predictions, plain.adversarial_predictions)
    assert np.array_equal(result.norms, plain.norms)


@pytest.mark.filterwarnings("ignore:clean accuracy is at chance level")
def test_a_vote_whose_members_apart_do_not_fit_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision: that memory ran out must not be taken for an input of another precision than the weights."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert not Scarce.alive
        monkeypatch.setattr(Scarce, "room", 100)

    (ensemble, data), attack = problem(), Tight("quick", steps=1)
    plain = evaluate(ensemble.voted(), attack, data, BALL, precision="bfloat16", tile=8)
    for room in (0, 2, 4):  # the vote takes two; its three members, apart, two each
        capture(monkeypatch, room)
        monkeypatch.setattr("recarc.evaluation.engine.time", clock(sleep))
        result = evaluate(ensemble.voted(), attack, data, BALL, precision="bfloat16", tile=8, batch_size=8)
        assert np.array_equal(result.adversarial_predictions, plain.adversarial_predictions)
    assert slept == [60, 60, 60] and "members_apart" in result.stages


def test_nothing_is_computed_twice_before_the_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look at each member's weights and at the data."""
    from recarc.evaluation import fingerprint, samples

    counts: dict[str, int] = {}

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*arguments: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return real(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(fingerprint, "module_hash")
    counted(samples, "tensor_hash")
    ensemble, data = problem()
    evaluate(ensemble, QUICK, data, BALL, out=tmp_path)
    assert counts == {"module_hash": 3, "tensor_hash": 1}


def test_eps_of_each_sample() -> None:
    ensemble, (x, y) = problem()
    eps = torch.linspace(0.01, 0.2, 40)
    result = evaluate(ensemble, QUICK, (x, y), Ball("linf", eps), batch_size=16)
    assert (result.norms[0] <= eps.numpy() + 1e-6).all() and result.norms.max() > 0.14


@pytest.mark.parametrize(
    "data, message",
    [
        ((torch.rand(5, 6), torch.zeros(4, dtype=torch.long)), "one label per sample"),
        ((torch.rand(5, 6), torch.zeros(5)), "integer labels"),
        ((torch.randint(9, (5, 6)), torch.zeros(5, dtype=torch.long)), "floating-point"),
        ((torch.rand(5, 6), torch.full((5,), 5)), r"0\.\.4"),
        ((torch.rand(5, 7), torch.zeros(5, dtype=torch.long)), "cannot take inputs"),
        ((torch.rand(5, 6) * 255, torch.zeros(5, dtype=torch.long)), "divide 8-bit images"),
        ((torch.rand(5, 6) / 0, torch.zeros(5, dtype=torch.long)), "NaN or infinity"),
        ((torch.rand(0, 6), torch.zeros(0, dtype=torch.long)), "no samples"),
        ("digits", "expected recarc.data.load"),
    ],
)
def test_bad_data_is_one_clear_line(data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(problem()[0], QUICK, data, BALL)


@pytest.mark.parametrize("knob", [{"batch_size": 0}, {"shard_size": "many"}, {"tile": 2.5}, {"precision": "float8"}])
def test_bad_settings_are_one_clear_line(knob: dict[str, Any]) -> None:
    ensemble, data = problem()
    with pytest.raises(InputError, match=next(iter(knob))):
        evaluate(ensemble, QUICK, data, BALL, **knob)


def test_default_sizes_follow_the_device() -> None:
    images, vectors = torch.zeros(1, 3, 32, 32), torch.zeros(1, 20)
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    quick = RandomizedEnsemble([torch.nn.Flatten()])
    assert [default_tile(d, x, quick) for d, x in ((cpu, images), (cpu, vectors), (cuda, images))] == [
        16,
        64,
        256,
    ]


class Boastful:
    """Claims to have fooled no member alone, whatever the inputs it returns do to it."""

    def outcome(self, problem: Problem) -> Outcome:
        x_adv = QUICK(problem.ensemble, problem.x, problem.y, problem.ball)
        return Outcome([(1.0, x_adv)], witnesses=torch.stack([problem.x] * len(problem.ensemble)))


def test_a_member_that_a_judged_input_fools_did_not_withstand(tmp_path: Path) -> None:
    ensemble, (x, y) = problem()
    result = evaluate(ensemble, Boastful(), (x, y), Ball("linf", 0.3), out=tmp_path)
    assert result.robust_accuracy < 0.9 and result.records.alone is not None and result.alone is not None
    right = np.concatenate([result.clean_predictions[None], result.adversarial_predictions]) == result.labels
    assert np.array_equal(result.records.alone, right.all(0)) and np.array_equal(result.alone, right.all(0))
    assert result.floor_scores is not None and (result.floor_scores <= result.robust_scores).all()
