"""Trackers of evaluations and training: W&B offline and MLflow in a folder where installed, and a stand-in of each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recarc import Ball, Evaluation, InputError, RandomizedEnsemble, evaluate
from recarc.adapters.trackers import MLflow, Tracker, WeightsAndBiases, tracker_named
from recarc.attacks import AdaptivePGD
from recarc.testing import small_problem
from recarc.training import train


def tracked(tracker: Tracker) -> Evaluation:
    ensemble, x, y = small_problem(20, torch.float32)
    attack = AdaptivePGD(steps=2)
    return evaluate(ensemble, attack, (x, y), Ball("linf", 0.1), shard_size=10, progress=False, callbacks=[tracker])


def trained(method: str, *trackers: Any, **more: Any) -> RandomizedEnsemble:
    """Two members on digits, a few steps each."""
    changes, options = {"epochs": 0.1, "validation": 40}, {"width": 4}
    return train(method, "digits", "cnn", members=2, changes=changes, arch_options=options, norm="linf", eps=0.1,
                 device="cpu", say=None, callbacks=trackers, **more)  # fmt: skip


class FakeRun:
    """As much of a run of wandb as is used."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.logged: list[tuple[int | None, dict[str, float]]] = []
        self.axes: dict[str, str | None] = {}
        self.finished = 0

    def define_metric(self, name: str, step_metric: str | None = None, hidden: bool = False) -> None:
        self.axes[name] = step_metric

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("active", [False, True])
def test_weights_and_biases_by_a_stand_in(active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    fake = SimpleNamespace(run=run if active else None, init=lambda **options: run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    result = tracked(WeightsAndBiases(project="mine"))
    assert [step for step, _ in run.logged] == [10, 20] and run.config["attack"].startswith("AdaptivePGD(")
    assert run.logged[-1][1]["so_far/robust_accuracy"] == pytest.approx(result.robust_accuracy)
    assert run.summary == {"clean_accuracy": result.clean_accuracy, "robust_accuracy": result.robust_accuracy}
    assert run.finished == (not active)  # a run of the user's own stays open


def test_training_has_an_axis_of_steps_for_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second member begins with step 0 again, which W&B would drop."""
    run = FakeRun()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None, init=lambda **options: run))
    rec = trained("natural", tracker_named("wandb:mine"))
    assert (run.config["method"], run.config["epochs"], run.config["arch"]) == ("natural", "0.1", "cnn")
    assert [sorted(values) for _, values in run.logged] == [
        [f"member {i}/loss/ce", f"member {i}/step", f"member {i}/validation/clean"] for i in range(2)
    ]
    assert run.axes["member 1/loss/ce"] == "member 1/step" and {step for step, _ in run.logged} == {None}
    assert run.summary == {f"alpha/{i}": a for i, a in enumerate(rec.alpha.tolist())} and run.finished == 1


@pytest.mark.parametrize("active", [False, True])
def test_mlflow_by_a_stand_in(active: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    fake = SimpleNamespace(
        active_run=lambda: "mine" if active else None,
        start_run=lambda **options: calls.append(("start", options)),
        end_run=lambda: calls.append(("end", None)),
        log_params=lambda values: calls.append(("params", values)),
        log_metrics=lambda values, step: calls.append(("metrics", (step, values))),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    result = tracked(MLflow(run_name="mine"))
    kinds = [kind for kind, _ in calls]
    own = ["start", "params", "metrics", "metrics", "metrics", "end"]
    assert kinds == (own[1:-1] if active else own)
    assert all(len(value) <= 500 for value in dict(calls)["params"].values())
    assert dict(calls)["metrics"] == (20, {k: result.to_json()[k] for k in ("clean_accuracy", "robust_accuracy")})


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_offline(tmp_path: Path) -> None:
    tracked(WeightsAndBiases(project="recarc", mode="offline", dir=str(tmp_path)))
    trained("natural", WeightsAndBiases(project="recarc", mode="offline", dir=str(tmp_path)))
    assert len(list(tmp_path.rglob("run-*.wandb"))) == 2


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    result = tracked(MLflow())
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.metrics["robust_accuracy"] == pytest.approx(result.robust_accuracy)
    trained("adp", tracker_named("mlflow:joint"))  # members that are trained at once
    (run,) = mlflow.search_runs(experiment_names=["joint"], output_format="list")
    assert run.data.params["method"] == "adp" and run.data.metrics["members 0 1/loss/ce"] > 0


def test_other_names_are_refused_in_one_line() -> None:
    for text in ("neptune", "tensorboard", ""):
        with pytest.raises(InputError, match=rf"--track is '{text}'; expected wandb\[:PROJECT\], mlflow"):
            tracker_named(text)


@pytest.mark.parametrize(("tracker", "extra"), [(WeightsAndBiases, "wandb"), (MLflow, "mlflow")])
def test_a_missing_package_is_one_line(tracker: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(InputError, match=rf"install recarc\[{extra}\]"):
        tracker()
