"""What made a result: versions, hardware, the commit, and the command that was typed."""

from __future__ import annotations

import hashlib
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


def commit(*more: Path) -> str | None:
    """The commit of this code, and a + if its Python files, or those of the folders `more`, are no longer those of it.

    Outside a checkout the value of RECARC_COMMIT.
    """
    folder = Path(__file__).resolve().parent
    known = _git("ls-files", Path(__file__).name, folder=folder) and _git("rev-parse", "HEAD", folder=folder)
    if known:
        return known + "+" * any(_changed(each) for each in (folder, *more))
    return os.environ.get("RECARC_COMMIT") or None


def short(commit: str) -> str:
    """The first ten digits of a commit with its +; of several, "a and b", each."""
    return " and ".join(one[:10].rstrip("+") + "+" * one.endswith("+") for one in commit.split(" and "))


def _changed(folder: Path) -> bool:
    """Whether the Python files of a folder differ from those of the last commit, new and missing ones included.

    Git is asked for names and hashes only: where it reads the files itself, it runs filters that a repository names.
    """
    listed = _git("ls-tree", "-r", "-z", "HEAD", "--", ".", folder=folder).split("\0")
    committed = {name: entry.split()[2] for entry, name in (line.split("\t", 1) for line in listed if line)}
    committed = {name: known for name, known in committed.items() if name.endswith(".py")}
    present = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*.py")}
    if committed.keys() != present.keys():
        return True
    try:
        return not all(_is_blob(file.read_bytes(), committed[name]) for name, file in present.items())
    except OSError:
        return True


def _is_blob(content: bytes, known: str) -> bool:
    """Whether Git has this content under this hash, also where a checkout has made its line ends those of Windows."""
    kind = "sha1" if len(known) == 40 else "sha256"
    texts = (content, content.replace(b"\r\n", b"\n"))
    return any(hashlib.new(kind, b"blob %d\0" % len(text) + text).hexdigest() == known for text in texts)


def _git(*arguments: str, folder: Path) -> str:
    """What Git answers, nothing if it fails. A repository may name programs to run and servers to ask: none are."""
    harmless = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.allow=never"]
    try:
        result = subprocess.run(["git", *harmless, *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip("\n\0") if result.returncode == 0 else ""
