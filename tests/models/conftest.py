from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing is slow and has no effect that a test could see; tests of a full disk patch it themselves."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
