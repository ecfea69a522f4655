"""How the cost of ARC grows: with members, classes, image size, images at once, and processes.

Nothing is fooled here (the ball is tiny), and within two steps no image is dropped for standing still, so every image
stays in: the figures are upper bounds for real runs.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.multiprocessing as mp
import typer
from torch import Tensor

from paper.bench.common import FOLDER, measured_row, seconds, write
from paper.results import Figure
from recarc import ARC, Ball, RandomizedEnsemble
from recarc.errors import first_line, unknown
from recarc.fast import accelerate
from recarc.models.registry import build

TINY = 1e-7  # a radius within which no label changes
PLANES, STEPS, CHUNK = 4, 2, 4096
AXES = ("members", "classes", "image size", "batch", "processes", "imagenet")


@dataclass(frozen=True)
class Options:
    device: torch.device
    images: int
    precision: str
    repeats: int
    members: list[int]
    processes: list[int]


def problem(
    members: int, classes: int, size: int, count: int, arch: str, device: torch.device
) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    torch.manual_seed(0)
    options: dict[str, Any] = {"stem": "imagenet"} if arch == "resnet18" else {}
    nets = [build(arch, classes=classes, image_size=size, **options).to(device).eval() for _ in range(members)]
    x = torch.rand(count, 3, size, size, device=device)
    with torch.no_grad():
        y = torch.cat([nets[0](part).argmax(1) for part in x.split(64)])
    return RandomizedEnsemble(nets), x, y


def arc_seconds(
    options: Options, count: int, members: int = 2, classes: int = 10, size: int = 32, arch: str = "resnet20"
) -> float:
    """Median seconds of one iteration of ARC on `count` images, accelerated, after a warm-up."""
    ensemble, x, y = problem(members, classes, size, count, arch, options.device)
    fast = accelerate(ensemble, options.precision)
    attack, ball = ARC(steps=STEPS, planes=PLANES), Ball("linf", TINY)

    def work() -> Tensor:
        return torch.cat([attack(fast, u, v, ball) for u, v in zip(x.split(CHUNK), y.split(CHUNK))])

    work()
    return statistics.median(seconds(work, options.device)[0] for _ in range(options.repeats)) / STEPS


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of log seconds over log size, by least squares."""
    logs = [(math.log(a), math.log(b)) for a, b in points]
    mean_a, mean_b = (sum(column) / len(logs) for column in zip(*logs))
    return sum((a - mean_a) * (b - mean_b) for a, b in logs) / sum((a - mean_a) ** 2 for a, _ in logs)


def seconds_with_processes(options: Options, count: int) -> float:
    """The same images dealt out to `count` processes; wall time from a common start to the last result."""
    context = mp.get_context("spawn")
    barrier, queue = context.Barrier(count + 1), context.Queue()
    threads = max(1, torch.get_num_threads() // count)
    workers = [context.Process(target=_worker, args=(options, count, threads, barrier, queue)) for _ in range(count)]
    for worker in workers:
        worker.start()
    barrier.wait(600)
    start = time.perf_counter()
    for _ in workers:
        queue.get(timeout=600)
    took = time.perf_counter() - start
    for worker in workers:
        worker.join()
    return took / STEPS


def _worker(options: Options, count: int, threads: int, barrier: Any, queue: Any) -> None:
    torch.set_num_threads(threads)
    ensemble, x, y = problem(2, 10, 32, max(1, options.images // count), "resnet20", options.device)
    fast = accelerate(ensemble, options.precision)
    attack, ball = ARC(steps=STEPS, planes=PLANES), Ball("linf", TINY)
    attack(fast, x, y, ball)
    barrier.wait(600)
    seconds(lambda: attack(fast, x, y, ball), options.device)
    queue.put(True)


def along(axis: str, o: Options) -> tuple[int, list[tuple[float, float]]]:
    """Images used, and (size, seconds of an iteration); for "imagenet", size is the number of images."""
    few, one = max(1, o.images // 16), 256 if o.device.type == "cuda" else 4
    batches = sorted({max(1, o.images // 4**k) for k in range(4)})
    points: dict[str, tuple[int, Callable[[], list[tuple[float, float]]]]] = {
        "members": (o.images, lambda: [(m, arc_seconds(o, o.images, members=m)) for m in o.members]),
        "classes": (o.images, lambda: [(c, arc_seconds(o, o.images, classes=c)) for c in (10, 100, 1000)]),
        "image size": (few, lambda: [(s, arc_seconds(o, few, size=s)) for s in (32, 64, 128, 224)]),
        "batch": (o.images, lambda: [(n, arc_seconds(o, n)) for n in batches]),
        "processes": (o.images, lambda: [(n, seconds_with_processes(o, n)) for n in o.processes]),
        "imagenet": (one, lambda: [(one, arc_seconds(o, one, classes=1000, size=224, arch="resnet18"))]),
    }
    images, measure = points[axis]
    return images, measure()


def scaling(
    images: Annotated[int | None, typer.Option(help="4096 on a GPU, 32 on a CPU by default.")] = None,
    members: Annotated[str, typer.Option(help="Sizes of the ensemble, separated by commas.")] = "1,2,4,8",
    processes: Annotated[str, typer.Option(help="Numbers of processes, separated by commas.")] = "1,2",
    only: Annotated[str, typer.Option(help="Axes, separated by commas.")] = ",".join(AXES),
    precision: Annotated[str | None, typer.Option(help="float16 on a GPU, float32 on a CPU by default.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed runs of each size.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda" if torch.cuda.is_available() else "cpu",
    name: Annotated[str, typer.Option(help="The results file: NAME.json, beginning with scaling-.")] = "scaling-here",
    results: Annotated[Path, typer.Option(help="The folder of results files.")] = FOLDER,
) -> None:
    """Time one iteration of ARC along each axis and fit the exponent.

    Example: `python -m paper bench scaling --device cuda --name scaling-h200`
    """
    where = torch.device(device)
    cuda = where.type == "cuda"
    options = Options(
        where,
        images or (4096 if cuda else 32),
        precision or ("float16" if cuda else "float32"),
        repeats,
        [int(m) for m in members.split(",")],
        [int(n) for n in processes.split(",")],
    )
    rows = []
    for axis in only.split(","):
        if axis not in AXES:
            raise unknown("axis", axis, AXES)
        try:
            count, points = along(axis, options)
        except Exception as error:  # one axis that does not fit the machine must not hide the others
            print(f"{axis}: {type(error).__name__}: {first_line(error)}", file=sys.stderr, flush=True)
            continue
        figures = [Figure("seconds", took, x=size, unit="s") for size, took in points]
        figures += [Figure("exponent", exponent(points), unit="")] if len(points) > 1 else []
        rows.append(measured_row(axis, figures, count, where, axis=axis, precision=options.precision))
        print(axis, *(f"{size:g}: {took:.4g} s" for size, took in points), flush=True)
    write(name, "Growth of the cost", rows, results, planes=PLANES)
