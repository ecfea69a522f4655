"""Adversarial training with PGD-7: recarc's step against a plain eager loop written the usual way.

Claim: at least 5 x the plain loop for ResNet-20 and 3 x for ResNet-18 at batch 128 on one H200. Every row is the median
of several blocks of steps with the fastest and the slowest; the plain loop runs before and after the others, so that a
machine that slows down shows. cuDNN may try its algorithms for all rows, the plain loop included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paper.bench.common import measured_row, seconds, timing
from paper.recipe import measured_item, radius
from paper.results import Figure, RowResult
from paper.settings import LINF
from paper.setup import Setup
from recarc.data.imageset import ImageSet
from recarc.models.registry import build
from recarc.runtime import kernel_settings
from recarc.training.checkpoint import CheckpointFolder
from recarc.training.config import configure
from recarc.training.cuda_graph import step_function
from recarc.training.distributed import Group
from recarc.training.progress import Progress
from recarc.training.run import TrainingRun
from recarc.training.speed_options import SpeedOptions, make_execution

EPS, LR, BATCH = radius(LINF), 0.1, 128
NOTE = (
    f"Adversarial training with PGD-7 at batch {BATCH}: milliseconds per step and member (fastest-slowest) against a "
    "plain eager loop in PyTorch's default precision in the same run."
)
OFF = SpeedOptions(False, False, False, False, False, False, False)
VARIANTS: dict[str, tuple[SpeedOptions, dict[str, Any], int]] = {
    # name: speed options, recipe changes, members trained at the same time
    "recarc, everything off": (OFF, {"attack_mode": "train"}, 1),
    "bf16, channels_last": (replace(OFF, bf16=True, channels_last=True), {"attack_mode": "train"}, 1),
    "+ CUDA graph": (SpeedOptions(fold=False), {"attack_mode": "train"}, 1),
    "+ attack in evaluation mode": (SpeedOptions(fold=False), {"attack_mode": "eval"}, 1),
    "+ batch norm folded": (SpeedOptions(fuse=False), {"attack_mode": "eval"}, 1),
    "+ convolutions fused (default)": (SpeedOptions(), {"attack_mode": "eval"}, 1),
    "default, 2 members side by side": (SpeedOptions(), {"attack_mode": "eval"}, 2),
    "default, 4 members side by side": (SpeedOptions(), {"attack_mode": "eval"}, 4),
}


class PlainLoop:
    """What everybody writes: eager, torch.optim, the model in training mode while it is attacked."""

    def __init__(self, arch: str, data: ImageSet, batch: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = build(
            arch, 10, image_size=data.shape[1], mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)
        )
        self.model = self.model.to(device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / 1000))
        self.pixels, self.labels = data.uint8().to(device), torch.from_numpy(data.labels).to(device)
        self.batch = batch

    def step(self) -> None:
        rows = torch.randint(len(self.labels), (self.batch,), device=self.labels.device)
        x, y = self.pixels[rows].float() / 255, self.labels[rows]
        x = crop_and_flip(x)
        delta = torch.empty_like(x).uniform_(-EPS, EPS)
        for _ in range(7):
            delta.requires_grad_()
            loss = F.cross_entropy(self.model((x + delta).clamp(0, 1)), y)
            (g,) = torch.autograd.grad(loss, delta)
            delta = (delta.detach() + EPS / 4 * g.sign()).clamp(-EPS, EPS)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model((x + delta).clamp(0, 1)), y).backward()
        self.optimizer.step()
        self.schedule.step()


def crop_and_flip(x: Tensor) -> Tensor:
    size, padded = x.shape[-1], F.pad(x, (4, 4, 4, 4))
    i, j = (int(v) for v in torch.randint(9, (2,)))
    x = padded[:, :, i : i + size, j : j + size]
    return torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)


def fast_step(arch: str, data: ImageSet, batch: int, device: torch.device, name: str) -> tuple[Any, int, list[str]]:
    """The step of recarc's own loop, batch loading included; how many members it trains; what was switched off."""
    speed, changes, members = VARIANTS[name]
    config = configure(
        "iat",
        data,
        arch,
        norm="linf",
        eps=EPS,
        recipe="fast",
        changes={**changes, "batch": batch, "epochs": 1000, "validation": 0},
        members=members,
        seed=0,
        start=None,
        alpha=None,
        arch_options={},
        confirm=True,
    )
    execution = make_execution(config, device, Group(), speed)
    run = TrainingRun(config, execution, CheckpointFolder(None, {}, 1e9), Progress(None))
    trainers = [run.trainer(stage) for stage in run.groups[0]]
    steps_per_epoch = len(run.data) // batch
    steps = 1000 * steps_per_epoch
    for trainer in trainers:
        trainer.load(0, steps, steps_per_epoch)
    advance = step_function(trainers, execution)
    position = iter(range(steps))

    def step() -> None:
        at = next(position)
        for trainer in trainers:
            trainer.load(at, steps, steps_per_epoch)
        advance()

    return step, len(trainers), execution.notes


def timed(step: Callable[[], None], device: torch.device, blocks: int, size: int) -> list[float]:
    """Milliseconds per step, one figure per block, after a warm-up."""

    def block(steps: int = size) -> None:
        for _ in range(steps):
            step()

    block(min(size, 5))
    return [1000 * seconds(block, device)[0] / size for _ in range(blocks)]


@measured_item(
    "bench-training",
    "Training beside a plain loop",
    page="performance",
    parts=("resnet20", "resnet18"),
    note=NOTE,
    cost="5 min on one H200",
)
def training(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    toy, device, data = setup.scale.name == "toy", setup.device, setup.images("cifar10", "train")
    blocks, size, batch = (2, 2, 8) if toy else (7, 30, BATCH)
    for part in ["cnn"] if toy else parts:
        times: dict[str, tuple[list[float], str]] = {}
        with kernel_settings(device, benchmark=True):
            plain = PlainLoop(part, data, batch, device)
            before = timed(plain.step, device, blocks, size)
            for name in list(VARIANTS)[-2 if toy else 0 :]:
                step, members, notes = fast_step(part, data, batch, device, name)
                found = [t / members for t in timed(step, device, blocks, size)]
                times[name] = found, "; ".join(notes)
                del step
                if device.type == "cuda":
                    torch.cuda.empty_cache()
            times = {"plain loop": (before + timed(plain.step, device, blocks, size), ""), **times}
        reference = timing("ms", times["plain loop"][0], "ms").measured
        for name, (found, note) in times.items():
            took = timing("ms", found, "ms")
            figures = [took, Figure("ratio", reference / took.measured, unit="x")]
            known: dict[str, Any] = {"data": "cifar10", "norm": "linf", "eps": LINF, "ensemble": part, "note": note}
            yield measured_row(setup, "bench-training", part, f"{part}: {name}", figures, images=len(data), **known)
