"""One thread a worker, and a closing line with the figures that tests recorded through `record_property`."""

from __future__ import annotations

import signal
from typing import Any

import torch

# A shell starts background jobs with Ctrl-C ignored; the tests that press it need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two workers on two cores would otherwise fight each other


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the count and the largest of every recorded figure, from all workers together."""
    figures: dict[str, list[float]] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            figures.setdefault(name, []).extend(value)
    for name, values in sorted(figures.items()):
        terminalreporter.write_line(f"{name}: {len(values)} comparisons, largest {max(values):.2g}")
