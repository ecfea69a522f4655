"""The GPU jobs of the paper: those done with what they cost, and a plan of what is open, in blocks of GPU time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from paper.costs import LARGE, MMACS, attack_seconds, net, training_seconds
from paper.items import ITEMS
from paper.recipe import Row
from paper.results import ItemResult, RowResult
from paper.settings import DVERGE
from paper.setup import HERE
from recarc.cli.output import print_entry, print_json
from recarc.data.catalog import CATALOG
from recarc.errors import InputError

PATH = HERE / "queue.json"
BLOCK = 25 * 60  # seconds for which a GPU can be had at a time
START = 20  # seconds until a command has read its data and prepared its networks
SIDES, GAIN = 3, 1.4  # small networks: so many commands side by side, and what that gains (see README.md)
BY_HAND = ("head-to-head", "autoattack")  # on fewer images on purpose; what is open of them stands in queue.json
GIVEN = {DVERGE.name: "dverge"}  # the public ensemble, converted by `recarc import`
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
    alone: bool = False  # a large network fills the GPU


@dataclass
class Block:
    """Jobs for one stretch of GPU time: `alone` one after the other, then `sides` at the same time."""

    alone: list[Job] = field(default_factory=list)
    sides: list[list[Job]] = field(default_factory=lambda: [[] for _ in range(SIDES)])

    @property
    def seconds(self) -> float:
        together = [sum(job.seconds for job in side) for side in self.sides]
        return sum(job.seconds for job in self.alone) + max(max(together), sum(together) / GAIN)

    def with_job(self, job: Job) -> Block:
        if job.alone:
            return Block([*self.alone, job], self.sides)
        least = min(self.sides, key=lambda side: sum(other.seconds for other in side))
        return Block(self.alone, [[*side, job] if side is least else side for side in self.sides])

    def script(self) -> str:
        """For bash; every command resumes, so that a block which was cut off is started once more."""
        chains = [f"( {'; '.join(job.command for job in side)} ) &" for side in self.sides if side]
        return "\n".join([*(job.command for job in self.alone), *chains, *(["wait"] if chains else [])])


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
        alone=MMACS[net(ensemble)] > LARGE,
    )


def blocks(planned: Sequence[Job]) -> list[Block]:
    """First fit, in the order of the jobs; one that is longer than a block has it alone, and resumes in another."""
    found: list[Block] = []
    for job in planned:
        for k, block in enumerate(found):
            larger = block.with_job(job)
            if larger.seconds <= BLOCK:
                found[k] = larger
                break
        else:
            found.append(Block().with_job(job))
    return found


def print_queue(measured: Mapping[str, Sequence[ItemResult]], block: int | None, as_json: bool) -> None:
    listed, planned = jobs(), open_jobs(measured)
    plan = blocks(planned)
    if block is not None:
        if not 1 <= block <= len(plan):
            raise InputError(f"--block is {block}; the plan has blocks 1 to {len(plan)}")
        print(plan[block - 1].script())
        return
    if as_json:
        print_json({"jobs": [asdict(job) for job in [*listed, *planned]], "blocks": [asdict(one) for one in plan]})
        return
    for status in ("done", "open"):
        chosen = [job for job in listed if job.status == status]
        title = "Done" if status == "done" else "Open, beside the tables and figures"
        print(f"{title}: {sum(job.seconds for job in chosen) / 60:.0f} GPU minutes\n")
        for job in chosen:
            _print(job)
        print()
    total = sum(one.seconds for one in plan)
    print(
        f"Tables and figures: {total / 60:.0f} GPU minutes in {len(plan)} blocks; those of block 1: --block 1 | bash\n"
    )
    for number, one in enumerate(plan, 1):
        again = ", more than a block: start it again to go on" if one.seconds > BLOCK else ""
        print(f"Block {number}: {one.seconds / 60:.0f} minutes{again}\n")
        for job in one.alone:
            _print(job)
        for letter, side in zip("abc", one.sides):
            for job in side:
                _print(job, f"side by side, {letter}; ")
        print()

    waiting = dict.fromkeys(row.data for item in ITEMS.values() for row in item.rows if row.data not in AT_HAND)
    print(f"Not planned: rows on {', '.join(waiting)}; docs/full_size.md has their commands and costs")


def _print(job: Job, place: str = "") -> None:
    took = f"{place}{job.seconds / 60:.1f} min" + (f" on {job.hardware}" if job.hardware else "")
    print_entry(job.job, "", "; ".join(part for part in (took, job.date, job.note, job.command) if part))
