"""TensorBoard as a tracker of evaluations and of training: `callbacks=[TensorBoard("logs")]`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recarc.adapters.common import require
from recarc.adapters.trackers import Tracker


class TensorBoard(Tracker):
    """Into this folder."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        require("tensorboard", "tensorboard")
        self.writer: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def begin(self, facts: dict[str, str]) -> None:
        for name, value in facts.items():
            self.writer.add_text(name, value)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, values: dict[str, float], step: int) -> None:
        self.log(values, step)
        self.writer.close()
