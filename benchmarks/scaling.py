"""How the cost of ARC grows: with members, classes, image size, images at once, and processes.

Nothing is fooled here (the ball is tiny), and with two steps no image has stood still yet, so every image stays in:
figures are upper bounds for real runs.
Prints seconds and the fitted exponent of each axis; `--json` keeps them; `--render` writes docs/performance.md and
its plots from the results file alone.

    python benchmarks/scaling.py --device cuda --json results/speed.json
    python benchmarks/scaling.py --render
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from common import RESULTS, hardware, median, record, seconds
from performance_page import render
from torch import Tensor

from recarc import ARC, Ball, RandomizedEnsemble
from recarc.fast import accelerate
from recarc.models.registry import build

TINY = 1e-7  # a radius in which nothing changes its label
AXES = ("members", "classes", "image size", "batch", "processes", "imagenet")


def problem(
    members: int, classes: int, size: int, count: int, arch: str, device: torch.device
) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    torch.manual_seed(0)
    options = {"stem": "imagenet"} if arch == "resnet18" else {}
    nets = [build(arch, classes=classes, image_size=size, **options).to(device).eval() for _ in range(members)]
    ensemble = RandomizedEnsemble(nets)
    x = torch.rand(count, 3, size, size, device=device)
    with torch.no_grad():
        y = torch.cat([nets[0](part).argmax(1) for part in x.split(64)])
    return ensemble, x, y


def arc_seconds(
    args: argparse.Namespace,
    members: int = 2,
    classes: int = 10,
    size: int = 32,
    count: int | None = None,
    arch: str = "resnet20",
    planes: int = 4,
) -> float:
    """Median seconds of one iteration of ARC on `count` images, accelerated, after a warm-up."""
    device = torch.device(args.device)
    ensemble, x, y = problem(members, classes, size, count or args.images, arch, device)
    fast = accelerate(ensemble, args.precision, compile=args.compile, tile=args.tile)
    attack, ball = ARC(steps=args.steps, planes=planes), Ball("linf", TINY)

    def work() -> Tensor:
        return torch.cat([attack(fast, u, v, ball) for u, v in zip(x.split(args.chunk), y.split(args.chunk))])

    work()
    return median([seconds(work, device)[0] for _ in range(args.repeats)]) / args.steps


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of log seconds over log size, by least squares."""
    logs = [(math.log(a), math.log(b)) for a, b in points]
    mean_a, mean_b = (sum(column) / len(logs) for column in zip(*logs))
    return sum((a - mean_a) * (b - mean_b) for a, b in logs) / sum((a - mean_a) ** 2 for a, _ in logs)


def over_processes(args: argparse.Namespace) -> list[tuple[float, float]]:
    """The same images dealt out to 1, 2, ... processes; wall time from a common start to the last result."""
    return [(n, _with_processes(args, n)) for n in args.processes]


def _with_processes(args: argparse.Namespace, count: int) -> float:
    context = mp.get_context("spawn")
    barrier, queue = context.Barrier(count + 1), context.Queue()
    workers = [context.Process(target=_worker, args=(args, count, barrier, queue)) for _ in range(count)]
    for worker in workers:
        worker.start()
    barrier.wait(600)
    start = time.perf_counter()
    for _ in workers:
        queue.get(timeout=600)
    took = time.perf_counter() - start
    for worker in workers:
        worker.join()
    return took / args.steps


def _worker(args: argparse.Namespace, count: int, barrier: Any, queue: Any) -> None:
    torch.set_num_threads(max(1, args.threads // count))
    device = torch.device(args.device)
    ensemble, x, y = problem(2, 10, 32, max(1, args.images // count), "resnet20", device)
    fast = accelerate(ensemble, args.precision, compile=False, tile=args.tile)
    attack, ball = ARC(steps=args.steps, planes=4), Ball("linf", TINY)
    attack(fast, x, y, ball)
    barrier.wait(600)
    seconds(lambda: attack(fast, x, y, ball), device)
    queue.put(True)


def axis(args: argparse.Namespace, name: str) -> list[tuple[float, float]]:
    """(size, seconds of an iteration) along one axis; for "imagenet" of one image a step, two ResNet-18s at 224."""
    cuda = args.device.startswith("cuda")
    few = max(1, args.images // 16)
    along: dict[str, Callable[[], list[tuple[float, float]]]] = {
        "members": lambda: [(m, arc_seconds(args, members=m)) for m in args.members],
        "classes": lambda: [(c, arc_seconds(args, classes=c)) for c in (10, 100, 1000)],
        "image size": lambda: [(s, arc_seconds(args, size=s, count=few)) for s in (32, 64, 128, 224)],
        "batch": lambda: [(n, arc_seconds(args, count=n)) for n in _sizes(args.images)],
        "processes": lambda: over_processes(args),
        "imagenet": lambda: [
            (n, arc_seconds(args, size=224, classes=1000, count=n, arch="resnet18")) for n in ((256,) if cuda else (4,))
        ],
    }
    return along[name]()


def _sizes(most: int) -> list[int]:
    return sorted({max(1, most // 4**k) for k in range(4)})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--images", type=int, default=None)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default=None)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tile", type=int, default=None)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default=",".join(AXES))
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--render", action="store_true", help="only write docs/performance.md from the results file")
    args = parser.parse_args()
    args.images = args.images or (4096 if args.device.startswith("cuda") else 32)
    args.precision = args.precision or ("float16" if args.device.startswith("cuda") else "float32")
    return args


def main() -> None:
    args = arguments()
    if args.render:
        print(render(args.json or RESULTS))
        return
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    axes = {}
    for name in args.only.split(","):
        try:
            points = axis(args, name)
        except Exception as error:  # one axis that does not fit the machine must not hide the others
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        slope = exponent(points) if len(points) > 1 else None
        axes[name] = {"points": points, "exponent": slope}
        shown = "  ".join(f"{size:g}: {took:.4g} s" for size, took in points)
        print(f"{name:<12} {shown}  exponent {'-' if slope is None else f'{slope:.2f}'}", flush=True)
    figures = {"axes": axes, "images": args.images, "precision": args.precision, "planes": 4, "compile": args.compile}
    if args.json is not None:
        record("scaling", figures, device, args.json)
    print(f"\n{hardware(device)}; seconds of one iteration of ARC, G = 4, {args.precision}")
    print(f"{'axis':<12} {'size':>8} {'seconds':>10} {'exponent':>9}")
    for name, found in axes.items():
        slope = "-" if found["exponent"] is None else f"{found['exponent']:.2f}"
        for size, took in found["points"]:
            print(f"{name:<12} {size:>8g} {took:>10.4f} {slope:>9}")


if __name__ == "__main__":
    main()
