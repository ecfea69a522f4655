"""Which version of this code made a result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def commit() -> str | None:
    """The commit this code was run from; where it is no checkout, what RECARC_COMMIT says."""
    here = Path(__file__).resolve()
    try:
        tracked = _git("ls-files", here.name, folder=here.parent)
        known = tracked and _git("rev-parse", "HEAD", folder=here.parent)
    except (OSError, subprocess.SubprocessError):
        known = ""
    return known or os.environ.get("RECARC_COMMIT") or None


def _git(*arguments: str, folder: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10)
    return done.stdout.strip() if done.returncode == 0 else ""
