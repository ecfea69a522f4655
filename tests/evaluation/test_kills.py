"""kill -9 at twenty random moments loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from runs import subprocess_environment

HERE = Path(__file__).parent


def test_twenty_kills_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "killing.py"), str(tmp_path), "20"]
    done = subprocess.run(command, env=subprocess_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == 20 and counts["inside"] >= 5
    assert counts["leftovers"] == [] == counts["failed"]
    assert set(counts["digests"]) == {counts["whole"]}
