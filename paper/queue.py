"""The GPU jobs of the paper: trainings and measurements with what they cost, and those still to be done."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from paper.setup import HERE
from recarc.cli.output import print_entry, print_json
from recarc.errors import InputError

PATH = HERE / "queue.json"


@dataclass(frozen=True)
class Job:
    """One command for a GPU. `seconds` was measured if the job is done; otherwise the note says what it rests on."""

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
    for status in ("done", "open"):
        chosen = [job for job in listed if job.status == status]
        print(f"{status.capitalize()}: {sum(job.seconds for job in chosen) / 60:.0f} GPU minutes\n")
        for job in chosen:
            details = (f"{job.seconds / 60:.1f} min on {job.hardware}", job.date, job.note, job.command)
            print_entry(job.job, "", "; ".join(part for part in details if part))
        print()
