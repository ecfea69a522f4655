"""How every benchmark prints and keeps what it measured: figures, command, commit, hardware, date."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def hardware(device: str) -> str:
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{os.cpu_count()} CPU cores ({platform.machine()}), torch {torch.__version__}"


def commit() -> str:
    told = os.environ.get("RECARC_COMMIT")
    if told:
        return told
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def record(path: str | None, figures: dict[str, Any], device: str) -> None:
    """Print one result as JSON; with a path, append it to the list in that file (written aside and renamed)."""
    row = {
        **figures,
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "hardware": hardware(device),
        "date": datetime.date.today().isoformat(),
    }
    print(json.dumps(row, indent=1))
    if path is None:
        return
    file = Path(path)
    rows = json.loads(file.read_text()) if file.exists() else []
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps([*rows, row], indent=1) + "\n")
    part.replace(file)
