"""The commit that made a result."""

from __future__ import annotations

import subprocess
from pathlib import Path
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
    answers = {"ls-files": "provenance.py", "rev-parse": "f00", "diff": ""}
    monkeypatch.setattr("recarc.provenance._git", lambda name, *_, folder: answers[name])
    monkeypatch.setenv("RECARC_COMMIT", "abc")
    assert provenance.commit() == "f00"
    answers["diff"] = "src/recarc/geometry.py"
    assert provenance.commit() == "f00+", "the code is no longer that of the commit"


def test_a_short_commit_keeps_its_mark() -> None:
    assert provenance.short("0123456789abcdef") == "0123456789"
    assert provenance.short("0123456789abcdef+") == "0123456789+"
    assert provenance.short("abc+") == "abc+"


def test_git_runs_no_code_of_the_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "hook").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "hook").chmod(0o755)
    for name, value in (("core.fsmonitor", tmp_path / "hook"), ("core.untrackedCache", "true")):
        subprocess.run(["git", "config", name, str(value)], cwd=tmp_path, check=True)
    provenance._git("ls-files", "hook", folder=tmp_path)
    assert not (tmp_path / "ran").exists()
