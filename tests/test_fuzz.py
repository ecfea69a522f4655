"""A few mutated files for every reader; `make fuzz` tries as many as you like."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fuzz

SEEDS = range(26, 36)  # 28 and 33 once broke the reader of runs


@pytest.fixture(scope="module")
def originals() -> Iterator[Path]:
    before = dict(os.environ)
    with fuzz.originals() as folder:
        yield folder
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("subject", fuzz.SUBJECTS, ids=lambda subject: subject.name)
def test_mutated_files_are_read_or_refused(subject: fuzz.Subject, originals: Path) -> None:
    counts, largest, notes = fuzz.campaign(subject, SEEDS)
    assert notes == [] and largest < fuzz.ALLOWED
    assert sum(counts.values()) == len(SEEDS) and counts["refused"] > 0


def loops(folder: Path) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    "read, outcome",
    [
        (lambda folder: 1 / 0, "traceback"),
        (lambda folder: pickle.loads(fuzz.PAYLOADS[0]), "executed"),
        (lambda folder: pickle.loads(fuzz.PAYLOADS[1]), "executed"),
        (lambda folder: pickle.loads(fuzz.PAYLOADS[2]), "executed"),
        (loops, "hang"),
        (lambda folder: os._exit(9), "crash"),
    ],
)
def test_the_net_catches(read: Any, outcome: str, originals: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    counts, _, notes = fuzz.campaign(fuzz.Subject("idx", fuzz.idx, read), range(2))
    assert counts == {outcome: 2} and len(notes) == 2


def test_the_net_weighs(originals: Path) -> None:
    _, largest, _ = fuzz.campaign(fuzz.Subject("idx", fuzz.idx, lambda folder: bytearray(b"x") * 10**9), range(1))
    assert largest > 10**9
