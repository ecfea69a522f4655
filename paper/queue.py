"""The GPU jobs of the paper: those done with what they cost, and a plan of what is open, in blocks of GPU time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from paper.costs import attack_seconds, training_seconds
from paper.items import ITEMS
from paper.recipe import Row
from paper.results import ItemResult, RowResult
from paper.settings import DVERGE, IAT
from paper.setup import HERE
from recarc.cli.output import print_entry, print_json
from recarc.data.catalog import CATALOG
from recarc.errors import InputError

PATH = HERE / "queue.json"
BLOCK = 25 * 60  # seconds for which a GPU can be had at a time
AT_ONCE, GAIN = 8, 4  # rows without training side by side under MPS, and how much sooner they are done (queue.json)
START = 20  # seconds until a command has read its data and prepared its networks
BY_HAND = ("head-to-head", "autoattack")  # on fewer images on purpose; what is open of them stands in queue.json
GIVEN = {  # the public ensemble, converted by `recarc import`, and eight members that were trained for 60 epochs
    DVERGE.name: "dverge",
    IAT.name: "paper/ensembles/iat8-cifar10-resnet20-l2-fast",
}
AT_HAND = ("cifar10",)


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
    beside: bool = False  # needs no training: runs beside others of its kind


def jobs() -> list[Job]:
    """What stands in queue.json."""
    try:
        found = [Job(**entry) for entry in json.loads(PATH.read_text(encoding="utf-8"))["jobs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{PATH} is not a queue of jobs: {error}") from None
    for job in found:
        if job.status not in ("done", "open"):
            raise InputError(f"{PATH}: the status of {job.job!r} is {job.status!r}; expected done or open")
    return found


def open_jobs(measured: Mapping[str, Sequence[ItemResult]]) -> list[Job]:
    """A job for every row of the paper that is missing, partial or measured with less than the paper's effort.

    Rows that need the same training are one job, since a GPU that is given back forgets its weights.
    """
    chosen: dict[str, list[tuple[str, Row, str]]] = {}
    asked = set()
    for name, item in ITEMS.items():
        found = {row.row: row for result in measured[name] for row in result.rows}
        for row in item.rows:
            why = why_open(row, found.get(row.name))
            if name in BY_HAND or row.data not in AT_HAND or row.question in asked or not why:
                continue
            asked.add(row.question)
            trained = training_seconds(row.ensemble, "fast") and row.ensemble.name not in GIVEN
            chosen.setdefault(row.ensemble.name if trained else f"{name} {row.name}", []).append((name, row, why))
    return [_job(key, rows) for key, rows in chosen.items()]


def why_open(row: Row, found: RowResult | None) -> str:
    """Why a row is to be measured (again), in words; empty if it is not."""
    if found is None:
        return "not measured"
    spec = CATALOG[row.data]
    if found.images < spec.splits[spec.evaluation] and not row.ensemble.package:
        return f"measured on {found.images} images only"
    lacking = sorted(row.columns - {figure.column for figure in found.figures})
    if lacking:
        return f"lacks {', '.join(lacking)}"
    if found.stale:
        return f"out of date: {', '.join(found.stale)}"
    return "alpha was chosen on test images" if found.alpha_saw_test else ""


def _job(key: str, rows: Sequence[tuple[str, Row, str]]) -> Job:
    ensemble = rows[0][1].ensemble
    given = GIVEN.get(ensemble.name)
    training = 0.0 if given else training_seconds(ensemble, "fast")
    commands = []
    for name, row, _ in rows:
        words = ["python", "-m", "paper", name, "--only", row.name, "--device", "cuda", "--precision", "float16"]
        words += ["--tight", "standard"] if row.axis and "tight" in row.columns else []
        words += ["--ensemble", given] if given else []
        commands.append(shlex.join([*words, "--results", "paper/results"]))
    seconds = training + sum(START + attack_seconds(row) for _, row, _ in rows)
    why = "; ".join(f"{name} {row.name}: {reason}" for name, row, reason in rows)
    cost = f"computed from passes: training {training / 60:.0f} min" if training else "computed from passes"
    return Job(
        key,
        " && ".join(commands),
        round(seconds),
        "open",
        members=ensemble.members,
        note=f"{why} ({cost})",
        beside=not training,
    )


def blocks(planned: Sequence[Job]) -> list[list[Job]]:
    """First fit, in the order of the jobs: trainings one after the other, rows without training side by side.

    One that is longer than a block has it for itself, and resumes when it is started again.
    """
    found: list[list[Job]] = []
    for job in planned:
        block = next((block for block in found if _seconds([*block, job]) <= BLOCK), None)
        if block is None:
            found.append(block := [])
        block.append(job)
    return found


def _seconds(block: Sequence[Job]) -> float:
    return sum(job.seconds / (GAIN if job.beside else 1) for job in block)


def script(block: Sequence[Job]) -> str:
    """A shell script that runs the jobs of a block; a job that fails does not stop the others."""
    rows = [job.command for job in block if job.beside]
    together = [f"xargs -d '\\n' -P {AT_ONCE} -n 1 bash -c <<'ROWS'", *rows, "ROWS"] if rows else []
    return "\n".join([*together, *(job.command for job in block if not job.beside)])


def print_queue(measured: Mapping[str, Sequence[ItemResult]], block: int | None, as_json: bool) -> None:
    listed, planned = jobs(), open_jobs(measured)
    plan = blocks(planned)
    if block is not None:
        if not 1 <= block <= len(plan):
            raise InputError(f"--block is {block}; the plan has blocks 1 to {len(plan)}")
        print(script(plan[block - 1]))
        return
    if as_json:
        named = [[job.job for job in one] for one in plan]
        print_json({"jobs": [asdict(job) for job in [*listed, *planned]], "blocks": named})
        return
    for status in ("done", "open"):
        chosen = [job for job in listed if job.status == status]
        title = "Done" if status == "done" else "Open, beside the tables and figures"
        print(f"{title}: {sum(job.seconds for job in chosen) / 60:.0f} GPU minutes\n")
        for job in chosen:
            _print(job)
        print()
    print(f"Tables and figures: {_seconds(planned) / 60:.0f} GPU minutes in {len(plan)} blocks\n")
    for number, one in enumerate(plan, 1):
        again = ", more than a block: start it again to go on" if _seconds(one) > BLOCK else ""
        start = f"python -m paper --queue --block {number} | bash"
        print(f"Block {number}: {_seconds(one) / 60:.0f} minutes{again}; {start}\n")
        for job in one:
            _print(job)
        print()

    waiting = dict.fromkeys(row.data for item in ITEMS.values() for row in item.rows if row.data not in AT_HAND)
    print(f"Not planned: rows on {', '.join(waiting)}; docs/full_size.md has their commands and costs")


def _print(job: Job) -> None:
    took = f"{job.seconds / 60:.1f} min" + (f" on {job.hardware}" if job.hardware else "")
    print_entry(job.job, "", "; ".join(part for part in (took, job.date, job.note, job.command) if part))
