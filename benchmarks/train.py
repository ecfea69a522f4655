"""Adversarial training with PGD-7: `recarc train`'s step against a plain eager loop written the usual way.

Claim: at least 5 x the plain loop for ResNet-20 and 3 x for ResNet-18 at batch 128 on one H200;
`--accuracy-epochs` compares the accuracies too.
Every row is the median of several blocks of steps with the spread (fastest-slowest); the plain loop runs before and
after the others, so that a machine that slows down shows. Hardware and versions are printed with the figures. cuDNN may
try its algorithms for all rows, the plain loop included; the time from nothing to the first step is given for each.

    python benchmarks/train.py --arch resnet20 --device cuda --data cifar10 --accuracy-epochs 3 --json speed-train.json
    python benchmarks/train.py --arch resnet20 --device cuda --data cifar10 --variants fused,members \
        --blocks 5 --steps 12 --accuracy-epochs 1 --test-images 5000        # about a minute
    python benchmarks/train.py --tiny          # made-up images and a small net, for a look at the output on a CPU
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import hardware, made_up, median, record, seconds, spread
from torch import Tensor, nn

from recarc import PGD, Ball
from recarc.data.imageset import ImageSet
from recarc.data.loading import load
from recarc.models.registry import build
from recarc.training.checkpoint import CheckpointFolder
from recarc.training.config import configure
from recarc.training.cuda_graph import step_function
from recarc.training.distributed import Group
from recarc.training.progress import Progress
from recarc.training.run import TrainingRun, train
from recarc.training.speed_options import SpeedOptions, make_execution

OFF = SpeedOptions(False, False, False, False, False, False, False)
VARIANTS: dict[str, tuple[SpeedOptions, dict[str, Any], int]] = {
    # name: speed options, recipe changes, members trained at the same time
    "recarc, everything off": (OFF, {"attack_mode": "train"}, 1),
    "bf16, channels_last": (replace(OFF, bf16=True, channels_last=True), {"attack_mode": "train"}, 1),
    "+ CUDA graph": (SpeedOptions(fold=False), {"attack_mode": "train"}, 1),
    "+ attack in evaluation mode": (SpeedOptions(fold=False), {"attack_mode": "eval"}, 1),
    "+ batch norm folded": (SpeedOptions(fuse=False), {"attack_mode": "eval"}, 1),
    "+ convolutions fused (default)": (SpeedOptions(), {"attack_mode": "eval"}, 1),
    "default + compile": (SpeedOptions(compile=True), {"attack_mode": "eval"}, 1),
    "default, 2 members side by side": (SpeedOptions(), {"attack_mode": "eval"}, 2),
    "default, 4 members side by side": (SpeedOptions(), {"attack_mode": "eval"}, 4),
}


class PlainLoop:
    """What everybody writes: eager, torch.optim, the model in training mode while it is attacked."""

    def __init__(self, args: argparse.Namespace, data: ImageSet, device: torch.device, steps: int) -> None:
        torch.manual_seed(0)
        self.model = build(args.arch, 10, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.2435, 0.2616)).to(device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        peak = max(1, steps // 4)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda s: min((s + 1) / peak, (steps - s) / max(1, steps - peak))
        )
        self.pixels, self.labels = data.uint8().to(device), torch.from_numpy(data.labels).to(device)
        self.eps, self.batch = args.eps, args.batch

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


def fast_step(args: argparse.Namespace, data: ImageSet, device: torch.device, name: str) -> tuple[Any, int, list[str]]:
    """The loop's own step, its batch loading included; how many members it trains; what was switched off."""
    speed, changes, members = VARIANTS[name]
    config = configure(
        "iat",
        data,
        args.arch,
        norm="linf",
        eps=args.eps,
        recipe="fast",
        changes={**changes, "batch": args.batch, "epochs": 1000, "validation": 0},
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
    steps_per_epoch = len(run.data) // args.batch
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


def begun(args: argparse.Namespace, data: ImageSet, device: torch.device, name: str) -> tuple[Any, int, list[str]]:
    """`fast_step` with its first step taken."""
    step, members, notes = fast_step(args, data, device, name)
    step()
    return step, members, notes


def timed(step: Callable[[], None], device: torch.device, blocks: int, size: int) -> list[float]:
    """Milliseconds a step, one figure a block."""
    for _ in range(min(size, 5)):
        step()

    def block() -> None:
        for _ in range(size):
            step()

    return [1000 * seconds(block, device)[0] / size for _ in range(blocks)]


def accuracy(model: nn.Module, test: ImageSet, args: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """Clean and PGD-20 accuracy in percent, float32, evaluation mode."""
    model.eval()
    clean = robust = 0
    for start in range(0, len(test), 1000):
        x, y = (t.to(device) for t in test.batch(slice(start, start + 1000)))
        attacked = PGD(steps=20)(model, x, y, Ball("linf", args.eps))
        with torch.no_grad():
            clean += int((model(x).argmax(1) == y).sum())
            robust += int((model(attacked).argmax(1) == y).sum())
    return 100 * clean / len(test), 100 * robust / len(test)


def short_run(args: argparse.Namespace, data: ImageSet, test: ImageSet, device: torch.device) -> dict[str, Any]:
    """Both loops for the same few epochs with the same schedule, judged on the test set: clean, PGD-20, seconds.

    The plain loop runs once; recarc's with two seeds, which shows what chance does.
    """
    epochs, figures = args.accuracy_epochs, {}
    steps = int(epochs * (len(data) // args.batch))
    plain = PlainLoop(args, data, device, steps)

    def whole() -> None:
        for _ in range(steps):
            plain.step()

    took, _ = seconds(whole, device)
    figures["plain loop"] = [(*accuracy(plain.model, test, args, device), took)]
    changes = {"epochs": epochs, "batch": args.batch, "lr": args.lr, "validation": 0, "weight_decay": 1e-4, "ema": 0.0}
    for name, mode in (("recarc, attack in training mode", "train"), ("recarc, default", "eval")):
        runs = []
        for seed in (0, 1):
            began = time.perf_counter()
            ensemble = train(
                "at",
                data,
                args.arch,
                norm="linf",
                eps=args.eps,
                device=device,
                confirm=True,
                seed=seed,
                changes={**changes, "attack_mode": mode, "label_smoothing": 0.0},
                say=None,
            )
            took = time.perf_counter() - began
            runs.append((*accuracy(ensemble.members[0], test, args, device), took))  # type: ignore[arg-type]
        figures[name] = runs
    return figures


def agreement(figures: dict[str, list[tuple[float, float, float]]], images: int) -> dict[str, str]:
    """recarc's mean accuracy minus the plain loop's, in points, beside two standard errors of that difference.

    The error is that of so many test images and that of the seeds, which is the same for both loops.
    """
    lines, plain = {}, figures["plain loop"][0]
    for name, runs in figures.items():
        if name == "plain loop":
            continue
        words = []
        for what, k in (("clean", 0), ("PGD-20", 1)):
            ours, theirs = [run[k] for run in runs], plain[k]
            chance = statistics.variance(ours) + theirs * (100 - theirs) / images
            noise = 2 * (chance * (1 + 1 / len(ours))) ** 0.5
            apart = statistics.mean(ours) - theirs
            within = "within noise" if abs(apart) <= noise else "better" if apart > 0 else "WORSE"
            words.append(f"{what} {apart:+.2f} (noise {noise:.2f}: {within})")
        lines[name] = ", ".join(words)
    return lines


def data_sets(args: argparse.Namespace) -> tuple[ImageSet, ImageSet]:
    if args.data is not None:
        test = load(args.data, "test", data_dir=args.data_dir, limit=args.test_images)
        return load(args.data, "train", data_dir=args.data_dir), test
    sets = []
    for split, count, seed in (("train", args.images, 0), ("test", min(args.images, args.test_images), 1)):
        x, y = made_up(count, seed=seed)
        pixels = (x * 255).round().to(torch.uint8).numpy()
        names = tuple(str(i) for i in range(10))
        sets.append(ImageSet("cifar10", split, pixels, y.numpy().astype(np.int64), names, "made up"))
    return sets[0], sets[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--arch", default="resnet20")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", help="cifar10; without it, made-up images")
    parser.add_argument("--data-dir")
    parser.add_argument("--images", type=int, default=50_000, help="how many made-up images")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--eps", type=float, default=8 / 255)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="steps a block")
    parser.add_argument("--variants", help="comma-separated parts of the rows' names; by default all but compile")
    parser.add_argument("--accuracy-epochs", type=float, default=0.0, help="0: timing alone")
    parser.add_argument("--test-images", type=int, default=10_000, help="how many judge the accuracy")
    parser.add_argument("--json", type=Path, help="append the figures to this file")
    parser.add_argument("--tiny", action="store_true", help="a small net and few images, for a CPU")
    args = parser.parse_args()
    if args.tiny:
        args.arch, args.images, args.batch, args.blocks, args.steps = "cnn", 600, 32, 3, 2
        args.test_images = min(args.test_images, 600)
        args.accuracy_epochs = args.accuracy_epochs or 1.0
    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = device.type == "cuda"
    data, test = data_sets(args)
    epoch = len(data) // args.batch
    print(f"{args.arch}, batch {args.batch}, PGD-7, {data.name} ({data.fingerprint[:12]}), {hardware(device)}")
    plain = PlainLoop(args, data, device, 10**6)
    before = timed(plain.step, device, args.blocks, args.steps)
    rows = {}
    for name in VARIANTS:
        if not any(part in name for part in args.variants.split(",")) if args.variants else "compile" in name:
            continue
        ready, (step, members, notes) = seconds(partial(begun, args, data, device, name), device)
        rows[name] = timed(step, device, args.blocks, args.steps), members, [f"first step after {ready:.1f} s", *notes]
        del step
        if device.type == "cuda":
            torch.cuda.empty_cache()
    after = timed(plain.step, device, args.blocks, args.steps)
    base, range_ = median(before + after), spread(before + after)
    print(f"{'plain eager loop':36} {base:8.2f} ms a step ({range_}), {base * epoch / 1000:.2f} s an epoch")
    figures: dict[str, Any] = {
        "arch": args.arch,
        "batch": args.batch,
        "plain_ms": base,
        "plain_spread": range_,
    }
    for name, (times, members, notes) in rows.items():
        each = median(times) / members
        print(
            f"{name:36} {each:8.2f} ms a step and member ({spread([t / members for t in times])}), "
            f"{each * epoch / 1000:.2f} s an epoch, ratio {base / each:.2f}"
            + "".join(f"\n    {note}" for note in notes)
        )
        figures[name] = {
            "ms": each,
            "spread": spread([t / members for t in times]),
            "ratio": base / each,
            "notes": notes,
        }
    if args.accuracy_epochs:
        found = short_run(args, data, test, device)
        figures["accuracy"], figures["against_plain"] = found, agreement(found, len(test))
        for name, runs in found.items():
            for clean, robust, took in runs:
                after_ = f"after {args.accuracy_epochs:g} epochs in {took:.1f} s"
                print(f"{name:36} clean {clean:.2f}, PGD-20 {robust:.2f} {after_}")
        for name, line in figures["against_plain"].items():
            print(f"{name} against the plain loop, in points: {line}")
    if args.json:
        record("training", figures, device, args.json)


if __name__ == "__main__":
    main()
