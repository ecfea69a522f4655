"""The commit that made a result."""

from __future__ import annotations

from typing import Any

import pytest

from recarc import provenance


def test_outside_a_checkout_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_git(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("git")

    monkeypatch.setattr("recarc.provenance.subprocess.run", no_git)
    monkeypatch.setenv("RECARC_COMMIT", "abc")
    assert provenance.commit() == "abc"
    monkeypatch.setenv("RECARC_COMMIT", "")
    assert provenance.commit() is None


def test_in_a_checkout_git_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.provenance._git", lambda *arguments, folder: "f00" if "HEAD" in arguments else "it.py")
    monkeypatch.setenv("RECARC_COMMIT", "abc")
    assert provenance.commit() == "f00"
