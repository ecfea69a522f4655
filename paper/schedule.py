"""GPU jobs: which run side by side, how long that takes, and in which block of GPU time each of them is."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

BLOCK = 21 * 60  # seconds that are planned of those for which a GPU can be had at a time
SPARE = 4 * 60  # the others, for jobs that take longer than planned, as most did so far
# An evaluation holds 15 to 40 GB, a training up to 38, of the 139 GB of an H200 (queue.json, "rows of the board").
ROWS_ALONE, ROWS_BESIDE = 5, 3  # rows without training at once, and beside trainings
# 18 rows, 660 s one after the other, took 250 s eight at a time (queue.json, "rows without training"): each of them
# slows the others by 29 %. Beside trainings of small networks they run at half their speed, and each slows a training
# by a third, although it comes first (CUDA_MPS_CLIENT_PRIORITY): two trainings beside three rows took 2.4 and 2.6 times
# as long as computed for them alone (queue.json, "mrboost, 3 x resnet20, l2" and "table1 mobilenetv1-linf"). ResNet-18
# took 31 ms per step beside three rows (queue.json, "at, resnet18, linf, 8 epochs"), 14 alone, so that nothing starts
# beside large ones.
SLOWER, BESIDE_TRAINING, SLOWER_BY_ROW = 0.29, 0.5, 0.33
# A small network leaves half of the GPU idle: mrboost and gal together do 1.4 times the work of one after the other
# (README.md), four members in one graph twice (results/bench-training-h200.json).
TRAININGS, SLOWER_TRAINING = 3, 0.4  # of small networks at once; how much each slows the others


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
    beside: bool = False  # needs no training, or hardly any: runs beside others
    alone: bool = False  # a training that keeps a GPU busy by itself
    after: str = ""  # the job whose results it adds to


def next_job(waiting: Sequence[Job], running: Collection[Job], left: float = math.inf) -> Job | None:
    """The job to start now, if any: in the order of the plan, while there is one that ends within the seconds left.

    Trainings first, a large network by itself; beside those of small ones rows without training.
    """
    if any(job.alone for job in running):
        return None
    unfinished = {job.job for job in (*waiting, *running)}
    ready = [job for job in waiting if job.after not in unfinished]
    fitting = [job for job in ready if job.seconds <= left] or ready
    training = sum(not job.beside for job in running)
    first = next((job for job in fitting if not job.beside), None)
    if first is not None and training < (1 if first.alone else TRAININGS):
        return first
    if sum(job.beside for job in running) >= (ROWS_BESIDE if training else ROWS_ALONE):
        return None
    return next((job for job in fitting if job.beside), None)


def later_job(later: Sequence[Job], waiting: Sequence[Job], running: Mapping[Job, float], left: float) -> Job | None:
    """A job of a later block to start now, if any: one that lets this block still end within the seconds left.

    Jobs of the block that cannot end in time anyway do not count. `running`: the seconds that each still has to go.
    """
    unfinished = {job.job for job in (*later, *waiting, *running)}
    ready = [job for job in later if job.after not in unfinished]
    able = [job for job in waiting if job.seconds <= left]
    return next_job([job for job in ready if length([*able, job], running) <= left], running, left)


def length(jobs: Sequence[Job], running: Mapping[Job, float] | None = None) -> float:
    """Seconds until the last of these jobs has ended, each started as soon as `next_job` allows.

    `running`: the seconds that others, which run already, still have to go.
    """
    waiting, left, clock = list(jobs), dict(running or {}), 0.0
    while waiting or left:
        while (job := next_job(waiting, left)) is not None:
            waiting.remove(job)
            left[job] = job.seconds
        speed = {job: speed_of(job, left) for job in left}
        step = min(left[job] / speed[job] for job in left)
        clock += step
        left = {job: rest for job in left if (rest := left[job] - step * speed[job]) > 1e-6}
    return clock


def speed_of(job: Job, running: Collection[Job]) -> float:
    """How fast a job runs beside the others; 1 is alone."""
    trainings = sum(not other.beside for other in running)
    if not job.beside:
        return 1 / (1 + SLOWER_TRAINING * (trainings - 1) + SLOWER_BY_ROW * (len(running) - trainings))
    return BESIDE_TRAINING if trainings else 1 / (1 + SLOWER * (len(running) - 1))


def blocks(planned: Sequence[Job], seconds: float = BLOCK) -> list[list[Job]]:
    """First fit, in the order of the jobs; none comes before the one it adds to. A longer one has its own block."""
    found: list[list[Job]] = []
    for job in planned:
        first = next((i for i, block in enumerate(found) if job.after in {other.job for other in block}), 0)
        block = next((block for block in found[first:] if length([*block, job]) <= seconds), None)
        if block is None:
            found.append(block := [])
        block.append(job)
    return found
