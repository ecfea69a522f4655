"""TensorBoard as a tracker of evaluations: `evaluate(..., callbacks=[TensorBoard("logs")])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recarc.adapters.common import require
from recarc.evaluation.progress import Callback, Shard
from recarc.evaluation.result import Evaluation


class TensorBoard(Callback):
    """Accuracies over the samples done so far, and the summary at the end."""

    def __init__(self, folder: str | Path) -> None:
        require("tensorboard", "tensorboard")
        self.writer: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))
        self.samples = 0
        self.sums = {"clean_accuracy": 0.0, "robust_accuracy": 0.0}

    def run_started(self, configuration: dict[str, Any], samples: int, shards: int) -> None:
        self.writer.add_text("attack", str(configuration.get("attack")))

    def shard_done(self, shard: Shard) -> None:
        self.samples += shard.samples
        for name in self.sums:
            self.sums[name] += shard.samples * getattr(shard, name)
            self.writer.add_scalar(f"so_far/{name}", self.sums[name] / self.samples, self.samples)
        self.writer.add_scalar("samples_per_second", shard.samples / max(shard.seconds, 1e-9), self.samples)

    def run_ended(self, evaluation: Evaluation) -> None:
        for name in ("clean_accuracy", "robust_accuracy", "floor"):
            value = evaluation.to_json()[name]
            if value is not None:
                self.writer.add_scalar(name, value, len(evaluation))
        self.writer.close()
