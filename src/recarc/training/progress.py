"""What a person sees of a run: what it will cost, a line an epoch, how long it still takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from recarc.errors import InputError

ESTIMATE_AFTER = 20  # steps
QUIET = 10.0  # seconds between lines that are not about validation


def duration(seconds: float) -> str:
    """'12 s', '3 min 20 s', '2 h 05 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Lines for people; on a terminal the current line is rewritten between epochs."""

    def __init__(self, say: Callable[[str], None] | None, terminal: TextIO | None = None) -> None:
        self._say = say
        live = terminal is not None and terminal.isatty()
        self._terminal = terminal if say is not None and live else None
        self._began, self._steps = time.monotonic(), 0
        self._estimated = False
        self._spoke = 0.0
        self._noted = 0

    def say(self, line: str) -> None:
        if self._terminal is not None:
            self._terminal.write("\r\033[K")
        if self._say is not None:
            self._say(line)

    def notes(self, notes: Sequence[str]) -> None:
        """Says those of a growing list that were not said before."""
        for note in notes[self._noted :]:
            self.say(note)
        self._noted = len(notes)

    def stage(self, label: str, steps: int, epochs: float, ahead: int) -> None:
        """`ahead`: steps of later stages, so that the time left is that of the whole run."""
        self._began, self._steps, self._ahead = time.monotonic(), 0, ahead
        self.say(f"{label}: {epochs:g} epochs, {steps} steps")

    def go(self) -> None:
        """Starts the clock: what came before was preparation."""
        self._began, self._steps = time.monotonic(), 0

    def tick(self, step: int, steps: int, settle: Callable[[], None]) -> None:
        """After every step; `settle` waits for the device, so that the clock is honest."""
        self._steps += 1
        if self._steps == ESTIMATE_AFTER and not self._estimated:
            settle()
            self._estimated = True
            left = self.left(step, steps)
            pace = (time.monotonic() - self._began) / self._steps
            self.say(f"{1000 * pace:.1f} ms a step after {ESTIMATE_AFTER} steps: about {duration(left)} left")

    def left(self, step: int, steps: int) -> float:
        """Seconds to the end of the run at the pace so far."""
        pace = (time.monotonic() - self._began) / max(self._steps, 1)
        return pace * (steps - step + self._ahead)

    def live(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.write(f"\r\033[K{text}")
            self._terminal.flush()

    def epoch(self, label: str, entry: dict[str, Any], epochs: float, step: int, steps: int) -> None:
        """A line for an epoch that was validated; for others at most one every ten seconds."""
        if "clean" not in entry and time.monotonic() - self._spoke < QUIET:
            return
        self._spoke = time.monotonic()
        losses = ", ".join(f"{name} {value:.3f}" for name, value in entry["loss"].items())
        text = f"{label}: epoch {entry['epoch']}/{epochs:g}, step {step}/{steps}, {losses}"
        if "clean" in entry:
            text += f", validation clean {100 * entry['clean']:.1f}"
        if "attacked" in entry:
            text += f" attacked {100 * entry['attacked']:.1f}"
        self.say(f"{text}, {duration(self.left(step, steps))} left")


class Board:
    """TensorBoard curves, if asked for."""

    def __init__(self, folder: str | Path | None) -> None:
        self._writer: Any = None
        if folder is None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("TensorBoard is not installed: pip install 'recarc[tensorboard]'") from None
        self._writer = SummaryWriter(str(folder))

    def epoch(self, label: str, entry: dict[str, Any], step: int) -> None:
        if self._writer is None:
            return
        values = {f"loss/{k}": v for k, v in entry["loss"].items()}
        values |= {f"validation/{k}": entry[k] for k in ("clean", "attacked") if k in entry}
        for name, value in values.items():
            self._writer.add_scalar(f"{label}/{name}", value, step)
        self._writer.flush()
