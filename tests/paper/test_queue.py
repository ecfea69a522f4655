"""The plan of GPU jobs, and the runner that starts a block of it; jobs are tiny shell commands here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paper import queue, runner, schedule
from paper.__main__ import main
from paper.costs import attack_seconds, training_seconds
from paper.items import ITEMS
from paper.results import Figure, ItemResult, RowResult
from paper.schedule import Job
from paper.setup import HERE


def job(
    name: str, seconds: float, beside: bool = False, after: str = "", command: str = "true", alone: bool = False
) -> Job:
    return Job(name, command, seconds, "open", beside=beside, after=after, alone=alone)


def rows(*seconds: float) -> list[Job]:
    return [job(f"row {i}", each, beside=True) for i, each in enumerate(seconds)]


def test_how_long_jobs_take_side_by_side() -> None:
    assert schedule.length([job("a", 300), job("b", 500)]) == pytest.approx(620), "1.4 times the work of one"
    assert schedule.length([job("a", 300, alone=True), job("b", 500, alone=True)]) == 800, "large networks in turn"
    assert schedule.length(rows(400)) == 400, "nothing is gained by a row that is alone"
    begun = 200 / 1.66 + 200 / 1.33  # seconds of the training that are done beside two rows and beside one
    assert schedule.length([job("a", 900), *rows(200, 100)]) == pytest.approx(400 + 900 - begun), "rows at half speed"
    assert schedule.length([job("a", 100), *rows(400)]) == pytest.approx(133 + 400 - 66.5), (
        "66.5 s of the row beside it"
    )
    assert schedule.length([*rows(50), job("small", 100), job("large", 300, alone=True)]) == pytest.approx(
        425.25, abs=1
    ), "and none beside it"
    five, eight = schedule.length(rows(*[100] * 5)), schedule.length(rows(*[100] * 8))
    assert five == pytest.approx(100 * (1 + 4 * schedule.SLOWER)) and eight > five, "at most five at once"
    chain = [job("first", 100, True), job("second", 100, True, after="first")]
    assert schedule.length(chain) == 200


def started(waiting: list[Job], left: float = 1000) -> list[str]:
    running: list[Job] = []
    while (found := schedule.next_job(waiting, running, left)) is not None:
        waiting.remove(found)
        running.append(found)
    return [one.job for one in running]


def test_what_may_start_is_limited_by_memory() -> None:
    small = [job(name, 10) for name in "abcd"]
    assert started([*rows(5, 9, 7, 8, 6, 4), *small]) == ["a", "b", "c", "row 0", "row 1", "row 2"]
    assert started(rows(5, 9, 7, 8, 6, 4)) == [f"row {k}" for k in range(schedule.ROWS_ALONE)]
    large = job("large", 9, alone=True)
    assert started([*rows(5), large, *small]) == ["large"], "nothing starts beside it"
    assert started([small[0], large, *small[1:], *rows(5)]) == ["a", "row 0"], "it waits for the small ones, rows go on"


def test_a_job_that_cannot_end_in_time_gives_way() -> None:
    waiting = [job("long", 500), *rows(300, 90), job("follower", 5, True, after="row 0"), job("short", 80)]
    assert started(waiting, left=100) == ["short", "row 1", "long", "row 0"], "what cannot end comes last"
    assert started([job("long", 500)], left=100) == ["long"], "but nothing is lost by beginning it"


def test_what_waits_for_a_job_that_cannot_end_does_not_hold_it_up() -> None:
    first, second = job("first", 500, True), job("second", 5, True, after="first")
    assert schedule.next_job([second, first], [], 100) is first
    small = job("small", 20, True)
    assert schedule.later_job([small], [second, first], {}, 100) is small


def test_blocks_are_filled_in_order() -> None:
    planned = [job(str(k), seconds, alone=True) for k, seconds in enumerate((600, 2000, 900, 700, 200))]
    assert [[one.job for one in block] for block in schedule.blocks(planned, 1500)] == [["0", "2"], ["1"], ["3", "4"]]
    late = [
        job("0", 1000, alone=True),
        job("1", 1000, alone=True),
        job("first", 1100, True),
        job("second", 100, True, after="first"),
    ]
    assert [[one.job for one in block] for block in schedule.blocks(late, 1500)] == [["0"], ["1"], ["first", "second"]]


def test_the_plan_fits_into_blocks_and_measures_what_is_open() -> None:
    planned = queue.open_jobs({name: [] for name in ITEMS})
    plan = schedule.blocks(planned)
    assert all(schedule.length(block) <= schedule.BLOCK for block in plan)
    assert len({one.job for one in planned}) == len(planned) == sum(map(len, plan))
    commands = " ".join(one.command for one in planned)
    for row in ITEMS["table1"].rows:
        assert f"table1 --only {row.name} " in commands
    linf = next(one for one in planned if one.job == "figure7 linf")
    assert linf.command.index("figure7 --only linf") < linf.command.index("figure3 --only alpha"), "it has its runs"
    l2 = [one for one in planned if one.job.startswith("figure7 l2")]
    assert "--points 2" in l2[0].command and {one.after for one in l2[1:]} == {"figure7 l2"}
    chosen = [word for one in l2[1:] for word in one.job.partition(": ")[2].split(", ")]
    assert set(chosen) == ITEMS["figure7"].rows[1].columns - {"ARC at alpha 1 less ARC at alpha 0.9"}
    assert len(chosen) == len(set(chosen)), "no two write to the same run"


def trains_nothing(one: Job) -> bool:
    """Whether a job is to train, and measures a row whose ensemble is shipped instead."""
    for item, rest in re.findall(r"-m paper (table1|seeds|paper-recipe|second-member) (.*?)(?:&&|$)", one.command):
        names = re.findall(r"--only (\S+)", rest)
        rows = [row for row in ITEMS[item].rows if row.name in names]
        if not one.beside and "--ensemble" not in rest and not all(training_seconds(r.ensemble, "fast") for r in rows):
            return True
    return False


def test_an_open_job_of_the_list_does_not_take_what_is_shipped_for_a_training() -> None:
    again = job("again", 1, command="python -m paper table1 --only mobilenetv1-linf --device cuda")
    assert trains_nothing(again), "the zoo has that pair"
    assert not trains_nothing(replace(again, command=f"{again.command} --ensemble mine"))
    assert not trains_nothing(replace(again, command=again.command.replace("mobilenetv1", "vgg16")))
    assert not [one.job for one in queue.jobs() if one.status == "open" and trains_nothing(one)]


def found_row(name: str, **changes: object) -> tuple[queue.Row, RowResult]:
    """Figure 7 in linf, all of it measured on 10,000 images."""
    row = next(row for row in ITEMS["figure7"].rows if row.name == name)
    figures = [Figure(r.column, 1.0, x=m.x) for m in row.measurements for r in m.readings]
    figures += [Figure(difference.column, 1.0) for difference in row.differences]
    result = RowResult(name, tuple(figures), 10_000, data="cifar10", axis="alpha")
    return row, replace(result, **changes)  # type: ignore[arg-type]


def test_only_what_a_row_lacks_is_measured_again() -> None:
    row, whole = found_row("linf")
    assert queue.why_open(row, whole) == "" and queue.columns_lacking(row, whole) == []
    stale = replace(whole, stale={"tight": "why"})
    assert queue.why_open(row, stale) == "out of date: tight" and queue.columns_lacking(row, stale) == ["tight"]
    ends = replace(whole, figures=tuple(f for f in whole.figures if f.column != "PGD" or f.x in (0, 1)))
    assert queue.why_open(row, ends) == "lacks points of PGD"
    unpaired = replace(whole, figures=whole.figures[:-1])
    assert queue.columns_lacking(row, unpaired) == ["ARC"], "both sides of a difference are measured together"
    few = replace(whole, images=1000)
    assert queue.why_open(row, few) == "measured on 1000 images only" and queue.columns_lacking(row, few) == []
    measured = {name: [ItemResult(name, "", (ends,))] if name == "figure7" else [] for name in ITEMS}
    (made,) = [one for one in queue.open_jobs(measured) if one.job.startswith("figure7 linf")]
    assert made.job == "figure7 linf: PGD" and "--column PGD" in made.command and not made.after


def test_an_attack_that_ignores_alpha_is_counted_once() -> None:
    row, _ = found_row("linf")
    whole, point = attack_seconds(row.only(["PGD"])), replace(row, measurements=row.only(["PGD"]).measurements[:1])
    assert whole == attack_seconds(point)
    assert attack_seconds(row.only(["APGD"])) == pytest.approx(11 * whole)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL", 0.02)
    monkeypatch.setattr(runner, "GRACE", 1.0)


def ended(folder: Path) -> dict[str, dict[str, object]]:
    return {entry["job"]: entry for entry in json.loads((folder / runner.LOG).read_text())["jobs"]}


def test_a_block_is_run_with_a_log_and_the_seconds_of_each_job(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priority = "echo priority $CUDA_MPS_CLIENT_PRIORITY; command -v python"
    block = [job("a b", 5, command=priority), job("row: C&W", 5, True, command=f"{priority}; sleep 0.2; exit 4")]
    assert runner.run(block, tmp_path, 60) == 1
    found = ended(tmp_path)
    assert found["a b"]["exit"] == 0 and found["a b"]["status"] == "done"
    assert found["row: C&W"]["exit"] == 4 and found["row: C&W"]["status"] == "open"
    assert 0.2 <= float(str(found["row: C&W"]["seconds"])) < 30 and found["a b"]["note"] == "in a block of 2 jobs"
    assert (tmp_path / "a-b.log").read_text().splitlines()[0] == "priority"
    log = (tmp_path / "row--C-W.log").read_text().splitlines()
    assert log[0] == "priority 1" and Path(log[1]).parent == Path(sys.executable).parent
    assert "exit code 4" in capsys.readouterr().out
    assert queue.Job(**{key: value for key, value in found["a b"].items() if key != "exit"}).seconds < 30  # type: ignore[arg-type]
    assert runner.run([job("row: C&W", 5, True), job("c", 5, True)], tmp_path, 60) == 0
    assert [entry["exit"] for entry in ended(tmp_path).values()] == [0, 0, 0], (
        "earlier jobs stay, a second try replaces"
    )
    (tmp_path / runner.LOG).write_text("{")
    with pytest.raises(runner.InputError, match="is not a list of jobs that ended"):
        runner.run(block, tmp_path, 60)


def test_a_job_starts_after_the_one_it_adds_to(quick: None, tmp_path: Path) -> None:
    made = tmp_path / "made"
    block = [
        job("second", 9, True, "first", f"cat {made}"),
        job("first", 1, True, command=f"sleep 0.3; echo x > {made}"),
    ]
    assert runner.run(block, tmp_path, 60) == 0


def test_the_next_block_follows_as_far_as_time_allows(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [job("long", 1, command="sleep 0.6"), job("row", 1, True)]
    later = [job("next row", 1, True), job("next", 1, alone=True), job("endless", 1, command="sleep 100")]
    assert runner.run(first, tmp_path, 4, later=later) == 0, "the block itself is done"
    found = ended(tmp_path)
    assert [found[name]["exit"] for name in ("long", "row", "next row", "next")] == [0, 0, 0, 0]
    assert found["endless"]["status"] == "open" and "endless" in capsys.readouterr().out
    log = [entry["job"] for entry in json.loads((tmp_path / runner.LOG).read_text())["jobs"]]
    assert log.index("next row") < log.index("long") < log.index("next"), "rows beside the training, trainings after it"


def test_what_follows_leaves_a_block_the_time_it_needs() -> None:
    """Each row slows a training beside it by a third."""
    training, row = job("own", 100), rows(10)[0]
    assert schedule.later_job([row], [], {training: 50.0}, left=100) is row
    assert schedule.later_job([row], [], {training: 99.0}, left=100) is None, "the training would be stopped"
    assert schedule.later_job([row], [training], {}, left=103) is None, "it has not even begun"
    assert schedule.later_job([replace(row, after="own")], [training], {}, left=1000) is None


def test_what_is_done_is_not_done_again(quick: None, tmp_path: Path) -> None:
    count = tmp_path / "count"
    block = [job("good", 1, True, command=f"echo x >> {count}"), job("bad", 1, True, command="exit 4")]
    assert [runner.run(block, tmp_path, 60) for _ in range(2)] == [1, 1]
    assert count.read_text() == "x\n" and ended(tmp_path)["good"]["exit"] == 0
    changed = [replace(block[0], command=f"{block[0].command}; true"), replace(block[1], command="true")]
    assert runner.run(changed, tmp_path, 60) == 0 and count.read_text() == "x\nx\n"


def test_when_time_is_up_every_process_is_stopped(quick: None, tmp_path: Path) -> None:
    """Also the children of a shell, and one that does not listen."""
    pids = tmp_path / "pids"
    polite = job("polite", 5, True, command=f"sleep 100 & echo $! >> {pids}; wait && true")
    deaf = job("deaf", 5, True, command=f"trap '' TERM; echo $$ >> {pids}; while :; do sleep 0.1; done")
    late = job("late", 1, True, after="deaf")
    begun = time.monotonic()
    assert runner.run([polite, deaf, late], tmp_path, 1.0) == 3
    assert time.monotonic() - begun < 20
    found = ended(tmp_path)
    assert set(found) == {"polite", "deaf"} and all(entry["exit"] != 0 for entry in found.values())
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_runner_that_is_told_to_stop_stops_its_jobs(tmp_path: Path) -> None:
    pid, log = tmp_path / "pid", tmp_path / runner.LOG
    script = f"""
import sys
from paper import queue
from paper.__main__ import main
from paper.schedule import Job

queue.planned = lambda measured: [Job("a", "echo $$ > {pid}; sleep 100", 5, "open")]
sys.exit(main(["--queue", "--block", "1", "--run", "{tmp_path}"]))
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=HERE.parent, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    process.terminate()
    assert process.wait(60) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
    assert json.loads(log.read_text())["jobs"][0]["status"] == "open", "it can be started again"


def test_the_queue_lists_what_was_done_and_what_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--queue", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    listed = printed["jobs"]
    assert {job["status"] for job in listed} == {"done", "optional", "open"}
    assert all(
        job["seconds"] > 0 and job["command"].startswith(("recarc ", "python -m ", "mkdir -p reproduce"))
        for job in listed
    )
    assert all(0 < block["minutes"] <= 25 and block["jobs"] for block in printed["blocks"])
    assert main(["--queue"]) == 0
    printed = capsys.readouterr().out
    assert "GPU minutes" in printed and all(job["job"] in printed for job in listed)
    for words, line in (
        (["--block", "999", "--run", str(tmp_path)], "the plan has blocks 1 to"),
        (["--block", "1"], "--block and --run go together"),
        (["--run", str(tmp_path)], "--block and --run go together"),
        (["--block", "1", "--run", str(tmp_path), "--minutes", "0"], "--minutes is 0; expected a number > 0"),
    ):
        assert main(["--queue", *words]) == 2
        assert line in capsys.readouterr().err
    monkeypatch.setattr(queue, "PATH", tmp_path / "queue.json")
    queue.PATH.write_text('{"jobs": [{"job": "a", "command": "c", "seconds": 1, "status": "lost"}]}')
    assert main(["--queue"]) == 2
    assert "the status of 'a' is 'lost'; expected done, optional, open" in capsys.readouterr().err


def test_a_block_is_started_by_one_command(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "planned", lambda measured: [job("a", 5), job("b", 5, command="exit 7")])
    assert main(["--queue", "--block", "1", "--run", str(tmp_path), "--json"]) == 1
    assert [entry["exit"] for entry in json.loads(capsys.readouterr().out)["jobs"]] == [0, 7]
    monkeypatch.setattr(queue, "planned", lambda measured: [job("a", 5)])
    assert main(["--queue", "--block", "1", "--run", str(tmp_path)]) == 0
