"""The GPU jobs of the paper and the board: those done with what they cost, and a plan of the open ones, in blocks."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from paper.costs import attack_seconds, busy, training_seconds
from paper.items import ITEMS
from paper.recipe import Row
from paper.results import ItemResult, RowResult, commit
from paper.runner import run
from paper.scale import FULL
from paper.schedule import BLOCK, SPARE, Job, blocks, length
from paper.settings import ADP, AT_HAND, DVERGE, IAT, TRS
from paper.setup import HERE
from recarc.cli.output import print_entry, print_json
from recarc.data.catalog import CATALOG
from recarc.errors import InputError

PATH = HERE / "queue.json"
STATUSES = {"done": "Done", "optional": "Might be measured again; not in the plan", "open": "Open"}
START = 20  # seconds until a command has read its data and prepared its networks
BY_HAND = ("head-to-head", "autoattack")  # on fewer images on purpose; what is open of them stands in queue.json
GIVEN = {  # the public ensemble, converted by `recarc import`, and members of the board
    DVERGE.name: "dverge",
    IAT.name: "paper/ensembles/iat8-cifar10-resnet20-l2-fast",
    ADP.name: "paper/ensembles/adp-cifar10-resnet20-linf-fast",
    TRS.name: "paper/ensembles/trs-cifar10-resnet20-linf-fast",
}
BEGIN = "python -m paper --queue --block {} --run reproduce/logs"
SHORT = 60  # seconds; a job that trains for less, on small networks, runs beside others like one that does not
ENDS = 2  # points of a sweep that is too long for a block: measured first, so that columns can be added one by one


@dataclass(frozen=True)
class Open:
    """A row that is to be measured (again), why, and what there is of it."""

    item: str
    row: Row
    why: str
    found: RowResult | None = None

    @property
    def name(self) -> str:
        return f"{self.item} {self.row.name}"

    @property
    def trained(self) -> bool:
        return training_seconds(self.row.ensemble, "fast") > 0 and self.row.ensemble.name not in GIVEN

    @property
    def planned(self) -> Row:
        """With the tight attack at its usual effort, also at the points of a sweep."""
        return replace(FULL, tight="standard").row(self.row)

    @property
    def runs(self) -> set[tuple[str, ...]]:
        row = self.row
        return {(row.ensemble.name, row.norm, row.eps, str(row.last), str(row.alpha), m.run) for m in row.measurements}

    def command(self, out: str, *options: str) -> str:
        words = ["python", "-m", "paper", self.item, "--only", self.row.name, *options]
        words += ["--device", "cuda", "--precision", "float16"]
        words += ["--tight", "standard"] if self.row.axis and "tight" in self.row.columns else []
        given = GIVEN.get(self.row.ensemble.name)
        words += ["--ensemble", given] if given else []
        return shlex.join([*words, "--out", f"reproduce/{out.replace(' ', '-')}", "--results", "paper/results"])


def jobs() -> list[Job]:
    """What stands in queue.json."""
    try:
        found = [Job(**entry) for entry in json.loads(PATH.read_text(encoding="utf-8"))["jobs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{PATH} is not a queue of jobs: {error}") from None
    for job in found:
        if job.status not in STATUSES:
            raise InputError(f"{PATH}: the status of {job.job!r} is {job.status!r}; expected {', '.join(STATUSES)}")
    return found


def planned(measured: Mapping[str, Sequence[ItemResult]]) -> list[Job]:
    """The open jobs of queue.json, then those of the tables and figures."""
    return [*(job for job in jobs() if job.status == "open"), *open_jobs(measured)]


def open_rows(measured: Mapping[str, Sequence[ItemResult]]) -> list[Open]:
    """Every row of the paper on data at hand that is missing, partial or measured with less than the paper's effort."""
    found: dict[str, Open] = {}  # by what they ask
    for name, item in ITEMS.items():
        results = {row.row: row for result in measured[name] for row in result.rows}
        for row in item.rows if name not in BY_HAND else ():
            why = why_open(row, results.get(row.name))
            if row.data in AT_HAND and why:
                found.setdefault(row.question, Open(name, row, why, results.get(row.name)))
    return list(found.values())


def open_jobs(measured: Mapping[str, Sequence[ItemResult]]) -> list[Job]:
    """The jobs that measure every open row.

    Rows that need the same training are one job, since a GPU that is given back forgets its weights; so are rows of
    which one has all runs of the other. Each job has a folder of its own, so that no two write to the same run.
    """
    rows = open_rows(measured)
    whole = [row for row in rows if not row.trained and not columns_lacking(row.row, row.found)]
    chosen: dict[str, list[Open]] = {}
    for row in rows:
        wider = next((other for other in whole if row.runs < other.runs and _fits(other)), row)
        chosen.setdefault(row.row.ensemble.name if row.trained else wider.name, []).append(row)
    made: list[Job] = []
    for key, group in chosen.items():
        made += [_together(key, group)] if group[0].trained or len(group) > 1 else _row_jobs(group[0])
    return made


def why_open(row: Row, found: RowResult | None) -> str:
    """Why a row is to be measured (again), in words; empty if it is not."""
    if found is None:
        return "not measured"
    spec = CATALOG[row.data]
    if found.images < spec.splits[spec.evaluation] and not row.ensemble.package:
        return f"measured on {found.images} images only"
    if found.alpha_saw_test:
        return "alpha was chosen on test images"
    lacking = sorted(row.columns - {figure.column for figure in found.figures})
    if lacking:
        return f"lacks {', '.join(lacking)}"
    if found.stale:
        return f"out of date: {', '.join(found.stale)}"
    partial = columns_lacking(row, found)
    return f"lacks points of {', '.join(partial)}" if partial else ""


def columns_lacking(row: Row, found: RowResult | None) -> list[str]:
    """The columns that would complete a row, or have to be measured again; none if the whole row has to be."""
    spec = CATALOG[row.data]
    if found is None or found.images < spec.splits[spec.evaluation] or found.alpha_saw_test:
        return []
    known = {(figure.column, figure.x) for figure in found.figures if figure.column not in found.stale}
    unpaired = [d for d in row.differences if (d.column, None) not in known]  # needs both of its columns anew
    again = {column for difference in unpaired for column in (difference.plus, difference.minus)}
    asked = [(r.column, m.x) for m in row.measurements for r in m.readings if r.what not in ("cross", "gradients")]
    return list(dict.fromkeys(column for column, x in asked if column in again or (column, x) not in known))


def _fits(row: Open) -> bool:
    return START + attack_seconds(row.planned) <= BLOCK


def _together(key: str, rows: Sequence[Open]) -> Job:
    """One command after the other; those with most runs first, so that the others find them."""
    rows = sorted(rows, key=lambda row: -len(row.runs)) if not rows[0].trained else rows
    ensemble, trained = rows[0].row.ensemble, rows[0].trained
    training = training_seconds(ensemble, "fast") if trained else 0.0
    attacks = sum(attack_seconds(row.planned) for row in (rows if trained else rows[:1]))
    why = "; ".join(f"{row.name}: {row.why}" for row in rows)
    cost = f"computed from passes: training {training / 60:.0f} min" if trained else "computed from passes"
    seconds = round(training + attacks + START * len(rows))
    command = " && ".join(row.command(key) for row in rows)
    note = f"{why} ({cost})"
    short = training < SHORT
    alone = busy(ensemble) and not short
    return Job(key, command, seconds, "open", members=ensemble.members, note=note, beside=short, alone=alone)


def _row_jobs(row: Open) -> list[Job]:
    """A row without training: whole, only the columns that it lacks, or in parts if it is longer than a block."""

    def job(name: str, seconds: float, *options: str, after: str = "") -> Job:
        note, members = f"{row.name}: {row.why} (computed from passes)", row.row.ensemble.members
        command = row.command(row.name, *options)
        return Job(name, command, round(START + seconds), "open", members=members, note=note, beside=True, after=after)

    lacking = columns_lacking(row.row, row.found)
    if not lacking and _fits(row):
        return [job(row.name, attack_seconds(row.planned))]
    first, parts = [], lacking
    if not lacking:
        ends = replace(FULL, tight="standard", points=ENDS).row(row.row)
        first = [job(row.name, attack_seconds(ends), "--points", str(ENDS))]
        parts = list(dict.fromkeys(r.column for m in row.row.measurements for r in m.readings))
    made = []
    for columns in _portions(row.planned, parts):
        options = [word for column in columns for word in ("--column", column)]
        seconds = attack_seconds(row.planned.only(columns))
        made.append(job(f"{row.name}: {', '.join(columns)}", seconds, *options, after=row.name if first else ""))
    return [*first, *made]


def _portions(row: Row, columns: Sequence[str]) -> list[list[str]]:
    """These columns in portions of at most half a block, or one column; those of one run (tight and floor) together."""
    found: list[list[str]] = []
    for column in columns:
        for portion in found:
            same = row.only(portion) == row.only([*portion, column])
            if same or START + attack_seconds(row.only([*portion, column])) <= BLOCK / 2:
                portion.append(column)
                break
        else:
            found.append([column])
    return found


def print_queue(measured: Mapping[str, Sequence[ItemResult]], minutes: float, as_json: bool) -> None:
    """What was done, what might be done, and the plan of what is open."""
    listed, plan = jobs(), plan_of(measured, minutes)
    if as_json:
        named = [{"minutes": round(length(one) / 60, 1), "jobs": [job.job for job in one]} for one in plan]
        print_json({"jobs": [asdict(job) for job in [*listed, *open_jobs(measured)]], "blocks": named})
        return
    for status in ("done", "optional"):
        chosen = [job for job in listed if job.status == status]
        print(f"{STATUSES[status]}: {sum(job.seconds for job in chosen) / 60:.0f} GPU minutes\n")
        for job in chosen:
            _print(job)
        print()
    print(f"{STATUSES['open']}: {sum(map(length, plan)) / 60:.0f} GPU minutes in {len(plan)} blocks\n")
    for number, one in enumerate(plan, 1):
        again = ", more than a block: keep reproduce/ and start it again to go on" if length(one) > BLOCK else ""
        print(f"Block {number}: {length(one) / 60:.0f} minutes{again}; {BEGIN.format(number)}\n")
        for job in one:
            _print(job)
        print()

    waiting = dict.fromkeys(row.data for item in ITEMS.values() for row in item.rows if row.data not in AT_HAND)
    print(f"Not planned: rows on {', '.join(waiting)}; docs/full_size.md has their commands and costs")


def plan_of(measured: Mapping[str, Sequence[ItemResult]], minutes: float) -> list[list[Job]]:
    """The open jobs in blocks for so many minutes, of which some are spare."""
    return blocks(planned(measured), max(60 * minutes - SPARE, 0))


def run_block(
    measured: Mapping[str, Sequence[ItemResult]], block: int | None, folder: Path | None, minutes: float, as_json: bool
) -> int:
    """Start the jobs of a block, and of the next ones as far as time allows; blocks are as long as the minutes given.

    The exit code is that of the block: 0 if all of its jobs are done, 3 if time ran out, 1 if one failed.
    """
    plan = plan_of(measured, minutes)
    if block is None or folder is None:
        raise InputError(f"--block and --run go together, e.g. {BEGIN.format(1)}")
    if not 1 <= block <= len(plan):
        raise InputError(f"--block is {block}; the plan has blocks 1 to {len(plan)}")
    if not minutes > 0:
        raise InputError(f"--minutes is {minutes:g}; expected a number > 0")
    if commit() is None:
        raise InputError("the commit of this copy is not known, and results must name it: set RECARC_COMMIT")
    later = [job for one in plan[block:] for job in one]
    return run(plan[block - 1], folder, 60 * minutes, as_json, later)


def _print(job: Job) -> None:
    took = f"{job.seconds / 60:.1f} min" + (f" on {job.hardware}" if job.hardware else "")
    print_entry(job.job, "", "; ".join(part for part in (took, job.date, job.note, job.command) if part))
