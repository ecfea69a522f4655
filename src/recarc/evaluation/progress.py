"""How far a run is: a bar on a terminal, one moving line in a notebook, elsewhere a line a minute; and callbacks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recarc.evaluation.checks import warn
from recarc.evaluation.tiling import Passes

if TYPE_CHECKING:
    from recarc.evaluation.result import Evaluation

EVERY = 60.0  # seconds between two lines


class Progress:
    """Counts samples silently; those that `progress_bar` makes also show them."""

    def __init__(self) -> None:
        self.done = 0
        self.total_score = 0.0

    def advance(self, samples: int, score: float) -> None:
        self.done += samples
        self.total_score += score

    @property
    def accuracy(self) -> float:
        return self.total_score / self.done if self.done else float("nan")

    def text(self, total: int) -> str:
        accuracy = f", robust {100 * self.accuracy:.2f} % so far" if self.done else ""
        return f"attacked {self.done:,} of {total:,} samples{accuracy}"


@contextmanager
def progress_bar(total: int, wanted: bool, passes: Passes) -> Iterator[Progress]:
    """Progress over `total` samples; `passes` show that a long batch is moving."""
    if not wanted or total == 0:
        yield Progress()
        return
    notebook = type(sys.stderr).__module__.startswith("ipykernel")
    shown = _on_terminal if sys.stderr.isatty() else _in_notebook if notebook else _in_log
    with shown(total, passes) as progress:
        yield progress


@contextmanager
def _in_notebook(total: int, passes: Passes) -> Iterator[Progress]:
    """One line that is written over: it needs no widgets, so it works in every notebook."""
    start = last = time.monotonic()

    class Line(Progress):
        def advance(self, samples: int, score: float) -> None:
            nonlocal last
            super().advance(samples, score)
            now = time.monotonic()
            if now - last > 0.5:
                last = now
                left = (now - start) * (total - self.done) / self.done
                print(f"\r{self.text(total)}; about {left:.0f} s left ", end="", file=sys.stderr, flush=True)

    progress = Line()
    yield progress
    print(f"\r{progress.text(total)} in {time.monotonic() - start:.0f} s{' ' * 20}", file=sys.stderr, flush=True)


@contextmanager
def _in_log(total: int, passes: Passes) -> Iterator[Progress]:
    progress, stop, start = Progress(), threading.Event(), time.monotonic()

    def report() -> None:
        while not stop.wait(EVERY):
            minutes = (time.monotonic() - start) / 60
            counted = f"{passes.forward:,} passes in this shard"
            line = f"{progress.text(total)}; {counted}, {minutes:.0f} min"
            print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        stop.set()
        thread.join()


@contextmanager
def _on_terminal(total: int, passes: Passes) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class PassesColumn(ProgressColumn):
        """Moves within a batch too."""

        def render(self, task: Task) -> Text:
            return Text(f"{passes.forward:,} passes", style="dim")

    columns = (
        TextColumn("attacking"),
        BarColumn(),
        MofNCompleteColumn(),
        PassesColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("", total=total, speed="", accuracy="")

        class Displayed(Progress):
            def advance(self, samples: int, score: float) -> None:
                super().advance(samples, score)
                display.update(task, advance=samples, accuracy=f"robust {100 * self.accuracy:.2f} %")
                speed = display.tasks[0].finished_speed or display.tasks[0].speed
                display.update(task, speed=f"{speed:.3g} samples/s" if speed else "")

        yield Displayed()


@dataclass(frozen=True)
class Shard:
    """A shard that has been written; accuracies are fractions over its samples."""

    index: int
    samples: int
    clean_accuracy: float
    robust_accuracy: float
    seconds: float


class Callback:
    """Follows an evaluation, e.g. for a tracker; override what you need.

    Under `torchrun` each rank reports its own shards, and the first rank the rest.
    """

    def run_started(self, configuration: dict[str, Any], samples: int, shards: int) -> None:
        """Before the first attack; `shards` are still to be done."""

    def shard_done(self, shard: Shard) -> None:
        """After a shard was written; not called for shards of an earlier run."""

    def run_ended(self, evaluation: Evaluation) -> None:
        """With the result that `evaluate` returns."""


def notify(callbacks: Sequence[Any], event: str, *arguments: Any) -> None:
    """A callback that fails costs a warning, not the run. Any object with some of the methods will do."""
    for callback in callbacks:
        method: Callable[..., None] | None = getattr(callback, event, None)
        if method is None:
            continue
        try:
            method(*arguments)
        except Exception as error:
            warn(f"{type(callback).__name__}.{event} failed ({type(error).__name__}: {error}); the run continues")
