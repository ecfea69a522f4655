"""A bar with samples a second, the accuracy so far and the time left; on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
def bar(total: int, wanted: bool) -> Iterator[Progress]:
    """Progress over `total` samples, drawn on standard error where that is a terminal."""
    if not wanted or total == 0 or not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("attacking"),
        BarColumn(),
        MofNCompleteColumn(),
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
