"""How far a run is: a bar on a terminal, one moving line in a notebook, elsewhere a line a minute; and callbacks."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recarc.evaluation.checks import warn
from recarc.evaluation.tiling import Passes
from recarc.runtime import Ranks

if TYPE_CHECKING:
    from recarc.evaluation.result import Evaluation

EVERY = 60.0  # seconds between two lines


class Progress:
    """Counts the samples of this process silently; those that `progress_bar` makes also show those of all ranks."""

    def __init__(self, total: int = 0, ranks: Ranks | None = None) -> None:
        self.total, self.heart = total, ranks.heart if ranks else None
        self.done = 0
        self.total_score = 0.0
        self.advance(0, 0.0)

    def advance(self, samples: int, score: float) -> None:
        self.done += samples
        self.total_score += score
        if self.heart is not None:
            self.heart.tell(self.done, self.total, self.total_score)

    def everywhere(self) -> tuple[int, int, float]:
        """Samples done, samples to do, and the accuracy so far, of this rank and of what the others told."""
        told = [[self.done, self.total, self.total_score], *(self.heart.heard() if self.heart is not None else [])]
        done, total, score = map(sum, zip(*told))
        return int(done), int(total), score / done if done else float("nan")

    def text(self) -> str:
        done, total, accuracy = self.everywhere()
        return f"attacked {done:,} of {total:,} samples" + (f", robust {100 * accuracy:.2f} % so far" if done else "")


@contextmanager
def progress_bar(total: int, wanted: bool, passes: Passes, ranks: Ranks) -> Iterator[Progress]:
    """Progress over `total` samples of this process, shown with those of the other ranks until all are done.

    `passes` show that a long batch is moving.
    """
    progress = Progress(total, ranks)
    notebook = type(sys.stderr).__module__.startswith("ipykernel")
    show = _on_terminal if sys.stderr.isatty() else _in_notebook if notebook else _in_log
    with show(progress, passes) if wanted and total else nullcontext():
        yield progress
        ranks.wait()


@contextmanager
def _repeated(show: Callable[[], None], seconds: float) -> Iterator[None]:
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(seconds):
            show()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _in_notebook(progress: Progress, passes: Passes) -> Iterator[None]:
    """One line that is written over: it needs no widgets, so it works in every notebook."""
    start = time.monotonic()

    def line() -> None:
        done, total, _ = progress.everywhere()
        left = f"; about {(time.monotonic() - start) * (total - done) / done:.0f} s left" if done else ""
        print(f"\r{progress.text()}{left} ", end="", file=sys.stderr, flush=True)

    with _repeated(line, 0.5):
        yield
    print(f"\r{progress.text()} in {time.monotonic() - start:.0f} s{' ' * 20}", file=sys.stderr, flush=True)


@contextmanager
def _in_log(progress: Progress, passes: Passes) -> Iterator[None]:
    start = time.monotonic()

    def line() -> None:
        minutes = (time.monotonic() - start) / 60
        counted = f"{passes.forward:,} passes"
        print(f"{progress.text()}; {counted}, {minutes:.0f} min", file=sys.stderr, flush=True)

    with _repeated(line, EVERY):
        yield


@contextmanager
def _on_terminal(progress: Progress, passes: Passes) -> Iterator[None]:
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
        task = display.add_task("", total=progress.total, speed="", accuracy="")

        def update() -> None:
            done, total, accuracy = progress.everywhere()
            if done != display.tasks[0].completed or total != display.tasks[0].total:
                display.update(task, completed=done, total=total, accuracy=f"robust {100 * accuracy:.2f} %")
                speed = display.tasks[0].finished_speed or display.tasks[0].speed
                display.update(task, speed=f"{speed:.3g} samples/s" if speed else "")

        with _repeated(update, 0.1):
            yield
        update()


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
