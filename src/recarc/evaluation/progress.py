"""How far a run is: a bar on a terminal, elsewhere a line a minute; both on standard error."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from recarc.evaluation.tiling import Passes

EVERY = 60.0  # seconds between two lines


class Progress:
    """Counts silently; `bar` shows it."""

    def __init__(self) -> None:
        self.done = 0
        self.total_score = 0.0

    def advance(self, samples: int, score: float) -> None:
        self.done += samples
        self.total_score += score

    @property
    def accuracy(self) -> float:
        return self.total_score / self.done if self.done else float("nan")


@contextmanager
def bar(total: int, wanted: bool, passes: Passes) -> Iterator[Progress]:
    """Progress over `total` samples; `passes` show that a long batch moves."""
    if not wanted or total == 0:
        yield Progress()
    elif sys.stderr.isatty():
        with _drawn(total, passes) as shown:
            yield shown
    else:
        with _spoken(total, passes) as shown:
            yield shown


@contextmanager
def _spoken(total: int, passes: Passes) -> Iterator[Progress]:
    shown, stop, began = Progress(), threading.Event(), time.monotonic()

    def speak() -> None:
        while not stop.wait(EVERY):
            found = f", robust {100 * shown.accuracy:.2f} % so far" if shown.done else ""
            minutes = (time.monotonic() - began) / 60
            counted = f"{passes.forward:,} passes in this shard"
            line = f"attacked {shown.done:,} of {total:,} samples{found}; {counted}, {minutes:.0f} min"
            print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    try:
        yield shown
    finally:
        stop.set()
        thread.join()


@contextmanager
def _drawn(total: int, passes: Passes) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Counted(ProgressColumn):
        """Moves within a batch too."""

        def render(self, task: Task) -> Text:
            return Text(f"{passes.forward:,} passes", style="dim")

    columns = (
        TextColumn("attacking"),
        BarColumn(),
        MofNCompleteColumn(),
        Counted(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task("", total=total, speed="", accuracy="")

        class Shown(Progress):
            def advance(self, samples: int, score: float) -> None:
                super().advance(samples, score)
                display.update(task, advance=samples, accuracy=f"robust {100 * self.accuracy:.2f} %")
                speed = display.tasks[0].finished_speed or display.tasks[0].speed
                display.update(task, speed=f"{speed:.3g} samples/s" if speed else "")

        yield Shown()
