"""Runs GPU jobs side by side, each with a log of its own, until all have ended or time is up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paper.results import now
from paper.schedule import Job, later_job, next_job, speed_of
from paper.tables import Grid
from recarc.atomic import write_bytes
from recarc.cli.output import print_json, print_note
from recarc.errors import InputError

LOG = "jobs.json"  # in the folder of the logs
GRACE = 20.0  # seconds for a job that was told to stop to save what it has
POLL = 0.2


@dataclass
class Started:
    process: subprocess.Popen[bytes]
    at: float
    left: float  # seconds that it would still need alone, as far as the plan tells


@dataclass
class Run:
    """The jobs of one call. `outcomes` has an entry for each that ended, in the fields of queue.json and `exit`."""

    folder: Path
    waiting: list[Job]
    later: list[Job]  # of other blocks, started where the block leaves room
    running: dict[Job, Started]
    outcomes: dict[str, dict[str, Any]]
    jobs: int
    begun: list[str] = field(default_factory=list)
    seen: float = field(default_factory=time.monotonic)  # when `left` of what runs was last brought up to date

    def next(self, left: float) -> Job | None:
        """The job to start now, if any, with so many seconds left; those of the block come first."""
        own = next_job(self.waiting, self.running, left)
        if own is not None and own.seconds <= left:
            return own
        running = {job: known.left for job, known in self.running.items()}
        return later_job(self.later, self.waiting, running, left) or own

    def start(self, left: float) -> None:
        """All that may start with so many seconds left; rows without training give way to trainings (under MPS)."""
        now = time.monotonic()
        for other, known in self.running.items():
            known.left = max(known.left - (now - self.seen) * speed_of(other, self.running), POLL)
        self.seen = now
        while (job := self.next(left)) is not None:
            (self.waiting if job in self.waiting else self.later).remove(job)
            here = Path(sys.executable).parent
            environment = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"}
            environment |= {"CUDA_MPS_CLIENT_PRIORITY": "1"} if job.beside else {}
            with self.log_of(job).open("ab") as log:
                process = subprocess.Popen(
                    ["bash", "-c", job.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # so that it can be stopped with everything it has started
                )
            self.running[job] = Started(process, time.monotonic(), job.seconds)
            self.begun.append(job.job)

    def collect(self) -> None:
        """Note the jobs that have ended."""
        for job, started in list(self.running.items()):
            if started.process.poll() is not None:
                del self.running[job]
                self.note(job, started)

    def note(self, job: Job, started: Started) -> None:
        code, seconds = started.process.returncode, round(time.monotonic() - started.at, 1)
        known = {key: value for key, value in asdict(job).items() if key not in ("beside", "alone", "after")}
        ended = {"seconds": seconds, "status": "done" if code == 0 else "open", "date": now(), "exit": code}
        self.outcomes[job.job] = {**known, **ended, "note": f"in a block of {self.jobs} jobs"}
        write_bytes(self.folder / LOG, (json.dumps({"jobs": list(self.outcomes.values())}, indent=1) + "\n").encode())

    def stop(self) -> None:
        """End what runs, gently first: every command goes on where it stopped when it is started again."""
        self.waiting.clear()
        self.later.clear()
        groups = [started.process.pid for started in self.running.values()]
        for number in (signal.SIGTERM, signal.SIGKILL):
            groups = [group for group in groups if _told(group, number)]
            until = time.monotonic() + GRACE
            while groups and time.monotonic() < until:
                time.sleep(POLL)
                self.collect()
                groups = [group for group in groups if _told(group, 0)]

    def log_of(self, job: Job) -> Path:
        return self.folder / ("".join(c if c.isalnum() or c in "-_." else "-" for c in job.job) + ".log")


def _told(group: int, number: int) -> bool:
    """Send a signal (0: none) to a job and all it has started; whether any of them is left."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def run(
    jobs: Sequence[Job],
    folder: Path,
    seconds: float,
    as_json: bool = False,
    later: Sequence[Job] = (),
) -> int:
    """The exit code: 0 if every job is done, 3 if time ran out (start it again to go on), 1 if one failed.

    Where these leave room, jobs of `later` blocks follow, as far as time allows; nothing depends on how they end. What
    an earlier call in the same folder did with the same command is not done again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
        print_note("without NVIDIA's MPS the jobs take turns on a GPU; paper/README.md says how to start it")
    end, names, earlier = time.monotonic() + seconds, [job.job for job in jobs], _earlier(folder / LOG)
    todo, more = ([job for job in some if not _done(job, earlier)] for some in (jobs, later))
    now_running = Run(folder, todo, more, {}, earlier, len(jobs))
    for job in todo:
        now_running.outcomes.pop(job.job, None)
    with _stopped_at_the_end(now_running):
        while time.monotonic() < end:
            now_running.start(end - time.monotonic())
            if not now_running.waiting and not now_running.running:
                break
            time.sleep(POLL)
            now_running.collect()
        late = {job.job for job in (*now_running.waiting, *now_running.running)} & {*names}
    _show(now_running, names, as_json)
    failed = [name for name in names if now_running.outcomes.get(name, {}).get("exit") != 0]
    return 3 if late else 1 if failed else 0


@contextmanager
def _stopped_at_the_end(run: Run) -> Iterator[None]:
    try:
        yield
    finally:
        run.stop()


def _earlier(path: Path) -> dict[str, dict[str, Any]]:
    """What an earlier call noted in the same folder."""
    if not path.exists():
        return {}
    try:
        return {entry["job"]: entry for entry in json.loads(path.read_text(encoding="utf-8"))["jobs"]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a list of jobs that ended ({error}): choose another folder") from None


def _done(job: Job, earlier: dict[str, dict[str, Any]]) -> bool:
    known = earlier.get(job.job, {})
    return known.get("exit") == 0 and known.get("command") == job.command


def _show(run: Run, names: Sequence[str], as_json: bool) -> None:
    names = [*names, *(name for name in run.begun if name not in names)]
    if as_json:
        print_json({"jobs": [run.outcomes[name] for name in names if name in run.outcomes]})
        return
    cells = []
    for name in names:
        found = run.outcomes.get(name)
        result = "not started" if found is None else "done" if found["exit"] == 0 else f"exit code {found['exit']}"
        cells.append([name, f"{found['seconds']:.0f}" if found else "", result])
    Grid("", ["job", "seconds", "result"], cells).print(f"logs and {LOG} in {run.folder}")
