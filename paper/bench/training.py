"""Adversarial training with PGD-7: recarc's step against a plain eager loop written the usual way.

Claim: at least 5 x the plain loop for ResNet-20 and 3 x for ResNet-18 at batch 128 on one H200, at no loss of accuracy
(`--accuracy-epochs`). Every row is the median of several blocks of steps with the fastest and the slowest; the plain
loop runs before and after the others, so that a machine that slows down shows. cuDNN may try its algorithms for all
rows, the plain loop included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

from paper.bench.common import FOLDER, MADE_UP, accuracies, made_up, measured_row, seconds, timing, write
from paper.results import Figure, ItemResult, RowResult
from paper.tables import grids
from recarc import PGD, Ball, RandomizedEnsemble
from recarc.data.imageset import ImageSet
from recarc.data.loading import load
from recarc.models.registry import build
from recarc.runtime import kernel_settings
from recarc.training.checkpoint import RunFolder
from recarc.training.config import pose
from recarc.training.cuda_graph import stepper
from recarc.training.distributed import Group
from recarc.training.progress import Board, Progress
from recarc.training.run import Run, train
from recarc.training.speed_options import Switches, machine_for


@dataclass(frozen=True)
class Options:
    arch: str
    batch: int
    blocks: int
    steps: int  # per block
    accuracy_epochs: float
    device: torch.device
    eps: float = 8 / 255
    lr: float = 0.1


OFF = Switches(False, False, False, False, False, False, False)
VARIANTS: dict[str, tuple[Switches, dict[str, Any], int]] = {
    # name: switches, recipe changes, members trained at the same time
    "recarc, everything off": (OFF, {"attack_mode": "train"}, 1),
    "bf16, channels_last": (replace(OFF, bf16=True, channels_last=True), {"attack_mode": "train"}, 1),
    "+ CUDA graph": (Switches(fold=False), {"attack_mode": "train"}, 1),
    "+ attack in evaluation mode": (Switches(fold=False), {"attack_mode": "eval"}, 1),
    "+ batch norm folded": (Switches(fuse=False), {"attack_mode": "eval"}, 1),
    "+ convolutions fused (default)": (Switches(), {"attack_mode": "eval"}, 1),
    "default + compile": (Switches(compile=True), {"attack_mode": "eval"}, 1),
    "default, 2 members side by side": (Switches(), {"attack_mode": "eval"}, 2),
    "default, 4 members side by side": (Switches(), {"attack_mode": "eval"}, 4),
}


class PlainLoop:
    """What everybody writes: eager, torch.optim, the model in training mode while it is attacked."""

    def __init__(self, o: Options, data: ImageSet, steps: int) -> None:
        torch.manual_seed(0)
        self.model = build(o.arch, 10, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616))
        self.model = self.model.to(o.device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=o.lr, momentum=0.9, weight_decay=1e-4)
        peak = max(1, steps // 4)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: min((s + 1) / peak, (steps - s) / max(1, steps - peak))
        )
        self.pixels, self.labels = data.uint8().to(o.device), torch.from_numpy(data.labels).to(o.device)
        self.eps, self.batch = o.eps, o.batch

    def step(self) -> None:
        rows = torch.randint(len(self.labels), (self.batch,), device=self.labels.device)
        x, y = self.pixels[rows].float() / 255, self.labels[rows]
        x = crop_and_flip(x)
        delta = torch.empty_like(x).uniform_(-self.eps, self.eps)
        for _ in range(7):
            delta.requires_grad_()
            loss = F.cross_entropy(self.model((x + delta).clamp(0, 1)), y)
            (g,) = torch.autograd.grad(loss, delta)
            delta = (delta.detach() + self.eps / 4 * g.sign()).clamp(-self.eps, self.eps)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model((x + delta).clamp(0, 1)), y).backward()
        self.optimizer.step()
        self.schedule.step()


def crop_and_flip(x: Tensor) -> Tensor:
    size, padded = x.shape[-1], F.pad(x, (4, 4, 4, 4))
    i, j = (int(v) for v in torch.randint(9, (2,)))
    x = padded[:, :, i : i + size, j : j + size]
    return torch.where(torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5, x.flip(3), x)


def fast_step(o: Options, data: ImageSet, name: str) -> tuple[Any, int, list[str]]:
    """The step of recarc's own loop, batch loading included; how many members it trains; what was switched off."""
    switches, changes, members = VARIANTS[name]
    problem = pose(
        "iat",
        data,
        o.arch,
        norm="linf",
        eps=o.eps,
        recipe="fast",
        changes={**changes, "batch": o.batch, "epochs": 1000, "validation": 0},
        members=members,
        seed=0,
        start=None,
        alpha=None,
        arch_options={},
        confirm=True,
    )
    machine = machine_for(o.device, Group(), switches)
    run = Run(problem, machine, switches, RunFolder(None, {}, 1e9, False), Progress(None), Board(None))
    lanes = [run.lane(stage) for stage in run.groups[0]]
    steps_per_epoch = len(run.data) // o.batch
    steps = 1000 * steps_per_epoch
    for lane in lanes:
        lane.load(0, steps, steps_per_epoch)
    advance = stepper(lanes, machine)
    position = iter(range(steps))

    def step() -> None:
        at = next(position)
        for lane in lanes:
            lane.load(at, steps, steps_per_epoch)
        advance()

    return step, len(lanes), machine.notes


def after_first_step(o: Options, data: ImageSet, name: str) -> tuple[Any, int, list[str]]:
    """`fast_step` with its first step taken."""
    step, members, notes = fast_step(o, data, name)
    step()
    return step, members, notes


def timed(step: Callable[[], None], o: Options) -> list[float]:
    """Milliseconds per step, one figure per block."""
    for _ in range(min(o.steps, 5)):
        step()

    def block() -> None:
        for _ in range(o.steps):
            step()

    return [1000 * seconds(block, o.device)[0] / o.steps for _ in range(o.blocks)]


def judged(model: nn.Module, test: ImageSet, o: Options) -> list[Figure]:
    """Clean accuracy and accuracy under PGD-20, by `evaluate`."""
    x, y = (t.to(o.device) for t in test.tensors())
    clean, robust = accuracies(RandomizedEnsemble([model.eval()]), PGD(steps=20), x, y, Ball("linf", o.eps))
    return [clean, replace(robust, column="PGD-20")]


def short_runs(o: Options, data: ImageSet, test: ImageSet) -> dict[str, list[Figure]]:
    """Both loops for the same few epochs with the same schedule; recarc with two seeds, to show what chance does."""
    steps = int(o.accuracy_epochs * (len(data) // o.batch))
    plain = PlainLoop(o, data, steps)
    for _ in range(steps):
        plain.step()
    found = {"plain loop": judged(plain.model, test, o)}
    changes = {"epochs": o.accuracy_epochs, "batch": o.batch, "lr": o.lr, "validation": 0, "weight_decay": 1e-4}
    for seed in (0, 1):
        ensemble = train(
            "at",
            data,
            o.arch,
            norm="linf",
            eps=o.eps,
            device=o.device,
            confirm=True,
            seed=seed,
            changes={**changes, "ema": 0.0, "label_smoothing": 0.0, "attack_mode": "eval"},
            say=None,
        )
        found[f"default, seed {seed}"] = judged(ensemble.modules_of_members[0], test, o)
    return found


def data_sets(name: str, images: int, test_images: int) -> tuple[ImageSet, ImageSet]:
    if name != MADE_UP:
        return load(name, "train"), load(name, "test", limit=test_images)
    sets = []
    for split, count, seed in (("train", images, 0), ("test", test_images, 1)):
        x, y = made_up(count, seed=seed)
        pixels = (x * 255).round().to(torch.uint8).numpy()
        names = tuple(str(i) for i in range(10))
        sets.append(ImageSet("cifar10", split, pixels, y.numpy().astype(np.int64), names, "made up"))
    return sets[0], sets[1]


def measure(o: Options, data: ImageSet, variants: list[str]) -> dict[str, tuple[Figure, str]]:
    """Milliseconds per step and member of every row, with what there is to note about it."""
    plain = PlainLoop(o, data, 10**6)
    before = timed(plain.step, o)
    found: dict[str, tuple[Figure, str]] = {}
    for name in variants:
        ready, (step, members, notes) = seconds(partial(after_first_step, o, data, name), o.device)
        times = [t / members for t in timed(step, o)]
        found[name] = timing("ms", times, "ms"), "; ".join([f"first step after {ready:.1f} s", *notes])
        del step
        if o.device.type == "cuda":
            torch.cuda.empty_cache()
    return {"plain loop": (timing("ms", before + timed(plain.step, o), "ms"), ""), **found}


def training(
    arch: Annotated[str, typer.Option(help="The architecture.")] = "resnet20",
    data: Annotated[str, typer.Option(help="cifar10, or made-up.")] = "cifar10",
    batch: Annotated[int, typer.Option(help="Images per step.")] = 128,
    blocks: Annotated[int, typer.Option(help="Timed blocks.")] = 7,
    steps: Annotated[int, typer.Option(help="Steps per block.")] = 30,
    variants: Annotated[str, typer.Option(help="Parts of the rows' names; all but compile by default.")] = "",
    accuracy_epochs: Annotated[float, typer.Option(help="Also train for so long and evaluate; 0: only time.")] = 0.0,
    images: Annotated[int, typer.Option(help="How many made-up images.")] = 50_000,
    test_images: Annotated[int, typer.Option(help="How many images the accuracy is judged on.")] = 10_000,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda" if torch.cuda.is_available() else "cpu",
    name: Annotated[str, typer.Option(help="The results file: NAME.json, beginning with training-.")] = "training-here",
    results: Annotated[Path, typer.Option(help="The folder of results files.")] = FOLDER,
) -> None:
    """Time a step of adversarial training against a plain loop.

    Example: `python -m paper bench training --variants fused,members --accuracy-epochs 1 --name training-h200`
    """
    o = Options(arch, batch, blocks, steps, accuracy_epochs, torch.device(device))
    parts = variants.split(",") if variants else []
    chosen = [v for v in VARIANTS if (any(part in v for part in parts) if parts else "compile" not in v)]
    train_set, test_set = data_sets(data, images, test_images)
    with kernel_settings(o.device, benchmark=True):
        times = measure(o, train_set, chosen)
        accuracy = short_runs(o, train_set, test_set) if accuracy_epochs else {}
    known = {"data": data, "norm": "linf", "eps": "8/255", "ensemble": arch}
    rows: list[RowResult] = []
    for row, (took, note) in times.items():
        ratio = Figure("ratio", times["plain loop"][0].measured / took.measured, unit="x")
        rows.append(measured_row(row, [took, ratio], len(train_set), o.device, note=note, **known))
    for row, figures in accuracy.items():
        label = f"{row}, {accuracy_epochs:g} epochs"
        rows.append(measured_row(label, figures, len(test_set), o.device, **known))
    title = f"Training, {arch}"
    write(name, title, rows, results, batch=batch)
    for grid in grids(ItemResult(name, title, tuple(rows))):
        grid.print(title)
