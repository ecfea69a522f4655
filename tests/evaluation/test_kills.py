"""kill -9 at twenty random moments loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

from runs import subprocess_environment

from interpreter import run_python

HERE = Path(__file__).parent


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    done = run_python("-W", "ignore", HERE / "killing.py", tmp_path, "20", **subprocess_environment())
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == 20 and counts["inside"] >= 5
    assert counts["leftovers"] == [] == counts["failed"]
    assert set(counts["digests"]) == {counts["whole"]}
