"""Three moments of an evaluation that a tracker may listen to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from recarc.evaluation.checks import warn
from recarc.evaluation.result import Evaluation


@dataclass(frozen=True)
class Shard:
    """One shard that is on disk now; accuracies are fractions over its samples."""

    index: int
    samples: int
    clean_accuracy: float
    robust_accuracy: float
    seconds: float


class Callback:
    """Override what you need; under `torchrun` shards are told by the rank that did them, the rest by the first."""

    def run_started(self, configuration: dict[str, Any], samples: int, shards: int) -> None:
        """Before the first attack; `shards` are still to be done."""

    def shard_done(self, shard: Shard) -> None:
        """After a shard was written; not for shards of an earlier run."""

    def run_ended(self, evaluation: Evaluation) -> None:
        """With the result that `evaluate` returns."""


def tell(callbacks: Sequence[Any], moment: str, *told: Any) -> None:
    """A tracker that fails costs a warning, not the run. Any object with some of the methods will do."""
    for callback in callbacks:
        method: Callable[..., None] | None = getattr(callback, moment, None)
        if method is None:
            continue
        try:
            method(*told)
        except Exception as error:
            warn(f"{type(callback).__name__}.{moment} failed ({type(error).__name__}: {error}); the run goes on")
