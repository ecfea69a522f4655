"""Trackers: Weights & Biases offline and MLflow in a local folder where they are installed, and a stand-in of each."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recarc import Ball, Evaluation, InputError, evaluate
from recarc.adapters.trackers import MLflow, Tracker, WeightsAndBiases
from recarc.attacks import AdaptivePGD
from recarc.testing import small_problem


def tracked(tracker: Tracker) -> Evaluation:
    ensemble, x, y = small_problem(20, torch.float32)
    attack = AdaptivePGD(steps=2)
    return evaluate(ensemble, attack, (x, y), Ball("linf", 0.1), shard_size=10, progress=False, callbacks=[tracker])


class FakeRun:
    """As much of a run of wandb as is used."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.summary: dict[str, Any] = {}
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def log(self, values: dict[str, float], step: int) -> None:
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
    assert list(tmp_path.rglob("run-*.wandb"))


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    result = tracked(MLflow())
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.metrics["robust_accuracy"] == pytest.approx(result.robust_accuracy)


@pytest.mark.parametrize(("tracker", "extra"), [(WeightsAndBiases, "wandb"), (MLflow, "mlflow")])
def test_a_missing_package_is_one_line(tracker: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(InputError, match=rf"install recarc\[{extra}\]"):
        tracker()
