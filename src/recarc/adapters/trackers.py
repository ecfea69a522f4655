"""Trackers of evaluations and of training: `callbacks=[WeightsAndBiases(project="recarc")]` of either.

TensorBoard's is in `recarc.adapters.tensorboard`. On the command line: `--track wandb:recarc`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recarc.adapters.common import require
from recarc.errors import InputError
from recarc.evaluation.fingerprint import attack_text
from recarc.evaluation.progress import Callback, Shard
from recarc.evaluation.result import Evaluation

MOST_LETTERS = 500  # of a parameter of MLflow


class Tracker(Callback):
    """Accuracies over the samples done so far, curves of training, a summary at the end; subclasses say where to."""

    def __init__(self) -> None:
        self.samples = 0
        self.sums = {"clean_accuracy": 0.0, "robust_accuracy": 0.0}

    def begin(self, facts: dict[str, str]) -> None:
        """Before the first attack or step: what is evaluated or trained."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Figures after `step` samples or steps."""

    def end(self, values: dict[str, float], step: int) -> None:
        """The final figures."""

    def run_started(self, configuration: dict[str, Any], samples: int, shards: int) -> None:
        ball, data = configuration.get("ball") or {}, configuration.get("data") or {}
        self.begin(
            {
                "attack": attack_text(configuration.get("attack")),
                "norm": str(ball.get("norm")),
                "eps": str(ball.get("eps")),
                "alpha": str(configuration.get("alpha")),
                "data": f"{data.get('name')} {data.get('split') or ''}".strip(),
                "samples": str(samples),
            }
        )

    def shard_done(self, shard: Shard) -> None:
        self.samples += shard.samples
        for name in self.sums:
            self.sums[name] += shard.samples * getattr(shard, name)
        values = {f"so_far/{name}": total / self.samples for name, total in self.sums.items()}
        self.log({**values, "samples_per_second": shard.samples / max(shard.seconds, 1e-9)}, self.samples)

    def run_ended(self, evaluation: Evaluation) -> None:
        summary = evaluation.to_json()
        names = ("clean_accuracy", "robust_accuracy", "floor")
        self.end({name: summary[name] for name in names if summary[name] is not None}, len(evaluation))

    def training_started(self, configuration: dict[str, Any]) -> None:
        recipe = configuration.get("recipe") or {}
        facts = {**{name: value for name, value in configuration.items() if name != "recipe"}, **recipe}
        self.begin({name: str(value) for name, value in facts.items()})

    def epoch_done(self, stage: str, values: Mapping[str, float], step: int) -> None:
        self.log(curves(stage, values), step)

    def training_ended(self, alpha: list[float], step: int) -> None:
        self.end({f"alpha/{i}": a for i, a in enumerate(alpha)}, step)


class WeightsAndBiases(Tracker):
    """Into the run that is active, or into a new one with these `options` of `wandb.init` (project, mode, ...)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.wandb = require("wandb", "wandb")
        self.own = self.wandb.run is None
        self.run = self.wandb.init(**options) if self.own else self.wandb.run

    def begin(self, facts: dict[str, str]) -> None:
        self.run.config.update(facts)

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log(values, step=step)

    def epoch_done(self, stage: str, values: Mapping[str, float], step: int) -> None:
        """With an axis for each stage: steps begin anew, and those of W&B may not."""
        named, (axis,) = curves(stage, values), curves(stage, {"step": step})
        self.run.define_metric(axis, hidden=True)
        for name in named:
            self.run.define_metric(name, step_metric=axis)
        self.run.log({**named, axis: step})

    def end(self, values: dict[str, float], step: int) -> None:
        self.run.summary.update(values)
        if self.own:
            self.run.finish()


class MLflow(Tracker):
    """Into the run that is active, or into a new one with these `options` of `mlflow.start_run` (run_name, ...)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.mlflow = require("mlflow", "mlflow")
        self.own = self.mlflow.active_run() is None
        if self.own:
            self.mlflow.start_run(**options)

    def begin(self, facts: dict[str, str]) -> None:
        self.mlflow.log_params({name: value[:MOST_LETTERS] for name, value in facts.items()})

    def log(self, values: dict[str, float], step: int) -> None:
        self.mlflow.log_metrics(values, step=step)

    def end(self, values: dict[str, float], step: int) -> None:
        self.mlflow.log_metrics(values, step=step)
        if self.own:
            self.mlflow.end_run()


def curves(stage: str, values: Mapping[str, float]) -> dict[str, float]:
    """Under names that every tracker takes: member 0/loss/ce, members 0 1/loss/ce."""
    return {f"{stage.replace(',', '')}/{name}": value for name, value in values.items()}


def tracker_named(text: str) -> Tracker:
    """wandb, wandb:PROJECT, mlflow, mlflow:EXPERIMENT or tensorboard:FOLDER; the rest by their own variables."""
    name, _, where = text.partition(":")
    if name == "wandb":
        return WeightsAndBiases(**({"project": where} if where else {}))
    if name == "mlflow":
        if where:
            require("mlflow", "mlflow").set_experiment(where)
        return MLflow()
    if name == "tensorboard" and where:
        from recarc.adapters.tensorboard import TensorBoard

        return TensorBoard(where)
    raise InputError(f"--track is {text!r}; expected wandb[:PROJECT], mlflow[:EXPERIMENT] or tensorboard:FOLDER")
