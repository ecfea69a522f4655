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
    answers = {"ls-files": "provenance.py", "rev-parse": "f00"}
    monkeypatch.setattr("recarc.provenance._git", lambda name, *_, folder: answers[name])
    monkeypatch.setattr("recarc.provenance._changed", lambda folder: folder.name == "changed")
    monkeypatch.setenv("RECARC_COMMIT", "abc")
    assert provenance.commit() == "f00"
    assert provenance.commit(Path("same"), Path("changed")) == "f00+", "the code is no longer that of the commit"


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    (code / "inner").mkdir(parents=True)
    for name in ("a.py", "inner/b.py", "read.me"):
        (code / name).write_text(f"# {name}\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return code


def test_what_changes_code(repository: Path) -> None:
    file = repository / "inner" / "b.py"
    before = file.read_bytes()
    assert not provenance._changed(repository)
    (repository.parent / "elsewhere.py").write_text("new")
    (repository / "read.me").write_text("new")
    file.write_bytes(before.replace(b"\n", b"\r\n"))
    assert not provenance._changed(repository), "only this folder's Python files count, whatever their line ends"
    file.write_bytes(before + b"pass\n")
    assert provenance._changed(repository)
    file.unlink()
    assert provenance._changed(repository)
    file.write_bytes(before)
    assert not provenance._changed(repository)
    (repository / "untracked.py").write_text("")
    assert provenance._changed(repository)


def test_a_short_commit_keeps_its_mark() -> None:
    assert provenance.short("0123456789abcdef") == "0123456789"
    assert provenance.short("0123456789abcdef+") == "0123456789+"
    assert provenance.short("abc+") == "abc+"
    assert provenance.short("0123456789abcdef and abc+") == "0123456789 and abc+"


def test_git_runs_no_code_of_the_repository(repository: Path) -> None:
    hook, ran = repository.parent / "hook", repository.parent / "ran"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "filter.x.clean", "diff.external"):
        git(repository, "config", name, str(hook))
    (repository.parent / ".git" / "info" / "attributes").write_text("*.py filter=x\n")
    (repository / "a.py").write_text("changed")
    assert provenance._git("ls-files", "a.py", folder=repository) == "a.py"
    assert provenance._changed(repository)
    assert not ran.exists()
