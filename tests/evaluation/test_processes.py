"""Real torchrun processes: the same records for any number of them, and a rank that dies is noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dying_rank
import pytest
from runs import records_of, subprocess_environment

from recarc import RandomizedEnsemble, save_ensemble
from recarc.cli.app import run
from recarc.models import build

HERE = Path(__file__).parent
pytestmark = pytest.mark.xdist_group("two ranks")  # one worker, so that their processes start once
RUN = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def called(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=subprocess_environment(**more), capture_output=True, text=True, timeout=300)


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    return save_ensemble(RandomizedEnsemble([build("cnn", 10, 1, 8, width=4) for _ in range(2)]), tmp_path / "rec")


def test_two_processes_give_the_records_of_one(ensemble: Path, tmp_path: Path, capsys: Any) -> None:
    words = [
        "--data",
        "digits",
        "--limit",
        "60",
        "--eps",
        "0.1",
        "--attack",
        "arc",
        "--steps",
        "2",
        "--shard-size",
        "8",
    ]
    command = ["evaluate", str(ensemble), *words, "--json", "--out"]
    assert run([*command, str(tmp_path / "one")]) == 0
    one = capsys.readouterr().out
    two = called(*RUN, "-m", "recarc", *command, str(tmp_path / "two"))
    assert two.returncode == 0, two.stderr
    assert len(records_of(tmp_path / "one")) == 8
    assert records_of(tmp_path / "one") == records_of(tmp_path / "two")
    figures = [json.loads(printed)["robust_accuracy"] for printed in (one, two.stdout)]
    assert figures[0] == figures[1]


def test_two_processes_certify_as_one_does(ensemble: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["--data", "digits", "--limit", "16", "--eps", "0.001", "--steps", "1", "--shard-size", "4"]
    command = ["certify", str(ensemble), *words, "--json", "--out"]
    assert run([*command, str(tmp_path / "one")]) == 0
    one = json.loads(capsys.readouterr().out)
    two = called(*RUN, "-m", "recarc", *command, str(tmp_path / "two"))
    assert two.returncode == 0, two.stderr
    records = [records_of(tmp_path / name / "certificate") for name in ("one", "two")]
    assert len(records[0]) == 4 and records[0] == records[1]
    assert json.loads(two.stdout)["sets"] == one["sets"]


def test_a_dead_rank_fails_the_run_which_another_number_of_ranks_resumes(tmp_path: Path) -> None:
    broken = called(*RUN, str(HERE / "dying_rank.py"), str(tmp_path / "run"), DYING_RANK="1")
    assert broken.returncode != 0
    assert 2 <= len(records_of(tmp_path / "run")) < 16
    for out in (tmp_path / "run", tmp_path / "whole"):
        dying_rank.main(out)
    assert records_of(tmp_path / "run") == records_of(tmp_path / "whole")


def test_bad_input_fails_on_every_rank_at_once(ensemble: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")
    command = ["-m", "recarc", "evaluate", str(ensemble), "--data", "digits", "--limit", "8", "--eps", "0.1"]
    done = called(*RUN, *command, "--out", str(tmp_path / "taken"))
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("[rank ")]  # torchrun ends the slower one
    assert 1 <= len(lines) <= 2 and all("error:" in line and "thesis.tex" in line for line in lines)


@pytest.fixture(scope="module")
def evaluations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks leave that evaluate by themselves, in a group of the caller, and with unequal arguments."""
    out = tmp_path_factory.mktemp("ranks")
    done = called(*RUN, str(HERE / "odd_rank.py"), str(out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize(
    "what, says", [("model", "members[0]"), ("data", "data.fingerprint"), ("shape", "cannot take inputs of shape")]
)
def test_ranks_that_were_given_different_things_all_stop(what: str, says: str, evaluations: Path) -> None:
    for rank in range(2):
        message = (evaluations / f"{what} rank{rank}.txt").read_text()
        assert says in message and "\n" not in message
    assert not records_of(evaluations / what)


def test_evaluations_in_a_group_leave_no_connections_open(evaluations: Path) -> None:
    for rank in range(2):
        counts = (evaluations / f"files{rank}.txt").read_text().split()
        assert counts[1] == counts[3]
    assert records_of(evaluations / "group 0") == records_of(evaluations / "group 3") != {}


def test_processes_meet_for_one_evaluation_after_the_other(evaluations: Path) -> None:
    first, second, third = (records_of(evaluations / f"meeting {k}") for k in range(3))
    assert first == second == third != {}
