"""The GPU jobs of the paper: trainings and measurements with what they cost, and those still to be done."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from paper.setup import HERE
from paper.tables import Grid
from recarc.cli.output import print_json
from recarc.errors import InputError

PATH = HERE / "queue.json"


@dataclass(frozen=True)
class Job:
    """One command for a GPU. `seconds` was measured if the job is done, otherwise it is estimated from such jobs."""

    job: str
    command: str
    seconds: float
    status: str  # done or open
    epochs: float | None = None
    members: int | None = None
    hardware: str = ""
    date: str = ""
    note: str = ""


def jobs() -> list[Job]:
    try:
        found = [Job(**entry) for entry in json.loads(PATH.read_text(encoding="utf-8"))["jobs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{PATH} is not a queue of jobs: {error}") from None
    for job in found:
        if job.status not in ("done", "open"):
            raise InputError(f"{PATH}: the status of {job.job!r} is {job.status!r}; expected done or open")
    return found


def print_queue(as_json: bool) -> None:
    listed = jobs()
    if as_json:
        print_json({"jobs": [asdict(job) for job in listed]})
        return
    for status, title in (("open", "to be done"), ("done", "done")):
        chosen = [job for job in listed if job.status == status]
        if chosen:
            minutes = sum(job.seconds for job in chosen) / 60
            header = ["job", "minutes", "epochs", "members", "hardware", "date", "note"]
            Grid("", header, [_cells(job) for job in chosen]).print(f"{title}: {minutes:.0f} GPU minutes")
    for job in listed:
        if job.status == "open":
            print(f"{job.job}: {job.command}")


def _cells(job: Job) -> list[str]:
    def text(value: Any) -> str:
        return "" if value is None else f"{value:g}"

    return [job.job, f"{job.seconds / 60:.1f}", text(job.epochs), text(job.members), job.hardware, job.date, job.note]
