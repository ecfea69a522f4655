"""How the cost of ARC grows: with members, classes, image size and images at once; and what full ImageNet would cost.

Nothing is fooled here (the ball is tiny), and within two steps no image is dropped for standing still, so every image
stays in: the figures are upper bounds for real runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paper.bench.common import measured_row, seconds
from paper.recipe import measured_item
from paper.results import Figure, RowResult
from paper.setup import Setup
from recarc import ARC, Ball, RandomizedEnsemble
from recarc.fast import accelerate
from recarc.models.registry import build

TINY = 1e-7  # a radius within which no label changes
PLANES, STEPS, CHUNK = 4, 2, 4096
AXES = ("members", "classes", "image size", "batch", "imagenet")
IMAGENET_IMAGES, IMAGENET_STEPS = 50_000, 50  # the validation set and K as in the paper
NOTE = (
    f"Seconds of one iteration of ARC with G = {PLANES}, ResNet-20 members, nothing fooled. Unless the axis says "
    "otherwise: M = 2, C = 10, 32 x 32 pixels. The exponent is the slope of log seconds over log size."
)


@measured_item("bench-scaling", "Growth of the cost", drawing="growth", page="performance", parts=AXES, note=NOTE)
def scaling(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    toy, cuda = setup.scale.name == "toy", setup.device.type == "cuda"
    images = setup.limit or (2 if toy else 4096 if cuda else 32)
    precision = "float16" if cuda else "float32"
    for axis in parts:
        count, sizes = _sizes(axis, images, toy, cuda)
        points = []
        for size, changes in sizes:
            settings = {"count": count, **({"arch": "cnn", "repeats": 1} if toy else {}), **changes}
            points.append((float(size), arc_seconds(setup.device, precision, **settings)))
        figures = [Figure("seconds", took, x=size, unit="s") for size, took in points]
        figures += [Figure("exponent", exponent(points), unit="")] if len(points) > 1 else []
        note = imagenet_estimate(*points[0]) if axis == "imagenet" else ""
        known: dict[str, Any] = {"images": count, "axis": axis, "precision": precision, "note": note}
        setup.say(f"{axis}: " + ", ".join(f"{size:g}: {took:.3g} s" for size, took in points))
        yield measured_row(setup, "bench-scaling", axis, axis, figures, **known)


def _sizes(axis: str, images: int, toy: bool, cuda: bool) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
    """Images, and for every size along the axis what it changes."""
    few = max(1, images // 16)
    along: dict[str, tuple[int, str, list[int]]] = {
        "members": (images, "members", [1, 2] if toy else [1, 2, 4, 8]),
        "classes": (images, "classes", [10, 100] if toy else [10, 100, 1000]),
        "image size": (few, "size", [32, 64] if toy else [32, 64, 128, 224]),
        "batch": (images, "count", sorted({max(1, images // 4**k) for k in range(4)})),
    }
    if axis == "imagenet":
        count = 1 if toy else 256 if cuda else 4
        return count, [
            (count, {"size": 32, "classes": 10} if toy else {"size": 224, "classes": 1000, "arch": "resnet18"})
        ]
    count, knob, sizes = along[axis]
    return count, [(size, {knob: size}) for size in sizes]


def arc_seconds(
    device: torch.device,
    precision: str,
    count: int,
    members: int = 2,
    classes: int = 10,
    size: int = 32,
    arch: str = "resnet20",
    repeats: int = 3,
) -> float:
    """Median seconds of one iteration of ARC on `count` images, accelerated, after a warm-up."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"stem": "imagenet"} if arch == "resnet18" else {}
    nets = [build(arch, classes=classes, image_size=size, **options).to(device).eval() for _ in range(members)]
    x = torch.rand(count, 3, size, size, device=device)
    with torch.no_grad():
        y = torch.cat([nets[0](part).argmax(1) for part in x.split(64)])
    fast = accelerate(RandomizedEnsemble(nets), precision)
    attack, ball = ARC(steps=STEPS, planes=PLANES), Ball("linf", TINY)

    def work() -> Tensor:
        return torch.cat([attack(fast, u, v, ball) for u, v in zip(x.split(CHUNK), y.split(CHUNK))])

    work()
    return statistics.median(seconds(work, device)[0] for _ in range(repeats)) / STEPS


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of log seconds over log size, by least squares."""
    logs = [(math.log(a), math.log(b)) for a, b in points]
    mean_a, mean_b = (sum(column) / len(logs) for column in zip(*logs))
    return sum((a - mean_a) * (b - mean_b) for a, b in logs) / sum((a - mean_a) ** 2 for a, _ in logs)


def imagenet_estimate(count: float, took: float) -> str:
    """Worked out: measured seconds per image and iteration, times images and iterations."""
    each = took / count
    whole = each * IMAGENET_IMAGES * IMAGENET_STEPS
    return (
        f"Full ImageNet, worked out: one iteration on {count:g} images of 224 x 224 with 1000 classes and two "
        f"ResNet-18s takes {took:.3g} s, that is {1000 * each:.3g} ms per image. {IMAGENET_IMAGES} images x "
        f"{IMAGENET_STEPS} iterations x {1000 * each:.3g} ms = {_duration(whole)} on one device if no sample were ever "
        "dropped; samples on which every member is fooled leave early, so this is an upper bound. Shards are "
        "independent and only the final records are exchanged, so eight devices take about "
        f"{_duration(whole / 8)} plus start-up"
    )


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
