"""What a person sees of a run: what it will cost, a line per epoch, the time left; and what trackers hear."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from recarc.errors import printable
from recarc.evaluation.progress import notify

ESTIMATE_AFTER = 20  # steps
QUIET = 10.0  # seconds between lines about epochs without validation


def duration(seconds: float) -> str:
    """'12 s', '3 min 20 s', '2 h 05 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"


def counted(number: float, noun: str) -> str:
    """'1 step', '40 steps', '0.5 epochs'."""
    text = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{text} {noun}{'s' * (number != 1)}"


def to_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


class Progress:
    """Lines for people, curves for callbacks; on a terminal the current line is rewritten between epochs."""

    def __init__(
        self,
        say: Callable[[str], None] | None,
        terminal: TextIO | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self._say = say
        live = terminal is not None and terminal.isatty()
        self._terminal = terminal if say is not None and live else None
        self._callbacks = callbacks
        self._clock_start, self._steps, self._later_steps = time.monotonic(), 0, 0
        self._estimated = False
        self._last_line = 0.0
        self._notes_shown = 0

    def say(self, line: str) -> None:
        if self._terminal is not None:
            self._terminal.write("\r\033[K")
        if self._say is not None:
            self._say(line)

    def notes(self, notes: Sequence[str]) -> None:
        """Show those of a growing list that were not shown before."""
        for note in notes[self._notes_shown :]:
            self.say(note)
        self._notes_shown = len(notes)

    def start_stage(self, label: str, steps: int, epochs: float, later_steps: int) -> None:
        """`later_steps`: those of later stages, so that the time left is that of the whole run."""
        self._later_steps = later_steps
        self.start_clock()
        self.say(f"{label}: {counted(epochs, 'epoch')}, {counted(steps, 'step')}")

    def start_clock(self) -> None:
        """Time steps from here: what came before was preparation."""
        self._clock_start, self._steps = time.monotonic(), 0

    def step_done(self, step: int, steps: int, synchronize: Callable[[], None]) -> None:
        """After every step; `synchronize` waits for the device, so that the estimate is right."""
        self._steps += 1
        if self._steps == ESTIMATE_AFTER and not self._estimated:
            synchronize()
            self._estimated = True
            left = self.seconds_left(step, steps)
            pace = (time.monotonic() - self._clock_start) / self._steps
            self.say(f"{1000 * pace:.1f} ms per step after {ESTIMATE_AFTER} steps: about {duration(left)} left")

    def seconds_left(self, step: int, steps: int) -> float:
        """Seconds to the end of the run at the pace so far."""
        pace = (time.monotonic() - self._clock_start) / max(self._steps, 1)
        return pace * (steps - step + self._later_steps)

    def live(self, text: str) -> None:
        if self._terminal is not None:
            self._terminal.write(f"\r\033[K{text}")
            self._terminal.flush()

    def epoch_done(self, label: str, entry: dict[str, Any], epochs: float, step: int, steps: int) -> None:
        """A line for each epoch with validation; for others at most one every ten seconds."""
        values = {f"loss/{k}": v for k, v in entry["loss"].items()}
        values |= {f"validation/{k}": entry[k] for k in ("clean", "attacked") if k in entry}
        self.notify("epoch_done", label, values, step)
        if "clean" not in entry and time.monotonic() - self._last_line < QUIET:
            return
        self._last_line = time.monotonic()
        losses = ", ".join(f"{name} {value:.3f}" for name, value in entry["loss"].items())
        reached = f"{min(entry['epoch'], epochs):g}"
        text = f"{label}: epoch {reached}/{epochs:g}, step {step}/{steps}, {losses}"
        if "clean" in entry:
            text += f", validation clean {100 * entry['clean']:.1f}"
        if "attacked" in entry:
            text += f" attacked {100 * entry['attacked']:.1f}"
        self.say(f"{text}, {duration(self.seconds_left(step, steps))} left")

    def notify(self, event: str, *arguments: Any) -> None:
        """Tell the callbacks: `training_started`, `epoch_done` or `training_ended`."""
        notify(self._callbacks, event, *arguments)
