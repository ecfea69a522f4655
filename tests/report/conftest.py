"""Runs that all tests of the report look at."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import make_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_runs(tmp_path_factory.mktemp("report") / "runs")


@pytest.fixture(scope="session")
def runs_of_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three members, without sweeps."""
    return make_runs(tmp_path_factory.mktemp("report") / "three", members=3, sweeps=False)
