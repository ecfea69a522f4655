"""What made a result: versions, hardware, the commit, and the command that was typed."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_command: ContextVar[str | None] = ContextVar("command", default=None)


@contextmanager
def started_by(words: Sequence[str]) -> Iterator[None]:
    """Runs made within the block record this command line."""
    before = _command.set(shlex.join(words))
    try:
        yield
    finally:
        _command.reset(before)


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, hardware and command: recorded with a run, not compared."""
    from importlib.metadata import version

    import torch

    import recarc

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    command = _command.get()
    return {
        "recarc": recarc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pyarrow": version("pyarrow"),
        "system": platform.system(),
        "hardware": name,
        "commit": commit(),
        **({} if command is None else {"command": command}),
    }


def commit() -> str | None:
    """The commit of this code, with a + if its Python files were changed since; else the value of RECARC_COMMIT."""
    file = Path(__file__).resolve()
    try:
        tracked = _git("ls-files", file.name, folder=file.parent)
        known = tracked and _git("rev-parse", "HEAD", folder=file.parent)
        known += "+" if known and _git("diff", "--name-only", "HEAD", "--", ":/*.py", folder=file.parent) else ""
    except (OSError, subprocess.SubprocessError):
        known = ""
    return known or os.environ.get("RECARC_COMMIT") or None


def short(commit: str) -> str:
    """The first ten digits of a commit, and its +."""
    return commit[:10].rstrip("+") + "+" * commit.endswith("+")


def _git(*arguments: str, folder: Path) -> str:
    harmless = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]  # a repository may name programs
    result = subprocess.run(["git", *harmless, *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    return result.stdout.strip() if result.returncode == 0 else ""
