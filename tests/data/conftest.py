from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Every test has its own cache, and sees no data of the machine unless it asks for `real_data`."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("RECARC_CACHE", str(folder))
    monkeypatch.setattr(os, "fsync", lambda _: None)  # slow, and of no effect that a test could see
    if "real_data" not in request.fixturenames:
        monkeypatch.delenv("RECARC_DATA", raising=False)
    return folder
