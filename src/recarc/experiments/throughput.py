"""How many passes a second this machine does, and what full-size runs cost at that speed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from recarc.ensemble import Member
from recarc.experiments import results
from recarc.experiments.costs import attack_passes, training_passes
from recarc.experiments.results import Figure, ItemResult, RowResult
from recarc.experiments.tables import TABLES
from recarc.fast import accelerate
from recarc.models.registry import build
from recarc.provenance import commit, environment

NETS = {  # row: architecture, image size, classes, options, batch
    "resnet20-32": ("resnet20", 32, 10, {}, 512),
    "resnet18-224": ("resnet18", 224, 1000, {"stem": "imagenet"}, 256),
}
ATTACK, TRAINING = "attack: input gradients", "training: weight gradients"
GPUS = 8


def measure(row: str, device: torch.device, command: str, batches: int = 10, tiny: bool = False) -> RowResult:
    """Images a second, forward and backward: attacks as `reproduce` searches, training in bfloat16, channels_last."""
    arch, size, classes, options, batch = NETS[row]
    size, batch = (32, 2) if tiny else (size, batch)
    model = build(arch, classes, 3, size, (0.5,) * 3, (0.25,) * 3, **options).to(device)
    x, y = torch.rand(batch, 3, size, size, device=device), torch.zeros(batch, device=device).long()
    searched = accelerate(model.eval(), "tf32" if device.type == "cuda" else "float32").members[0]
    attack = _rate(lambda: _input_gradient(searched, x, y), len(x), batches, device)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = x.to(memory_format=torch.channels_last)
    training = _rate(lambda: _weight_gradient(model.train(), x, y), len(x), batches, device)
    figures = (Figure(ATTACK, attack, unit="images/s"), Figure(TRAINING, training, unit="images/s"))
    return RowResult(
        row,
        figures,
        images=len(x) * batches,
        data="random pixels",
        ensemble=f"one {arch} at {size} x {size}",
        command=command,
        commit=commit(),
        hardware=environment(device)["hardware"],
        date=results.now(),
    )


def _input_gradient(model: Member, x: Tensor, y: Tensor) -> None:
    inputs = x.detach().requires_grad_()
    torch.autograd.grad(nn.functional.cross_entropy(model(inputs), y), inputs)


def _weight_gradient(model: nn.Module, x: Tensor, y: Tensor) -> None:
    with torch.autocast(x.device.type, torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    torch.autograd.grad(loss, list(model.parameters()))


def _rate(step: Callable[[], None], images: int, batches: int, device: torch.device) -> float:
    for _ in range(2):
        step()
    _wait(device)
    start = time.perf_counter()
    for _ in range(batches):
        step()
    _wait(device)
    return round(images * batches / (time.perf_counter() - start), 1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def costs(measured: ItemResult) -> str:
    """A Markdown table of hours for the rows of Table 2 that need data of the user's own."""
    speeds = {row.row: row for row in measured.rows}
    if set(NETS) - set(speeds):
        return "Not measured yet: `recarc reproduce throughput` on the machine in question, then `--render`."
    lines = [
        "| row of table2 | training, one GPU [h] | training, 8 GPUs [h] | attacks, one GPU [h] |",
        "|---|---|---|---|",
    ]
    rows = next(item for item in TABLES if item.name == "table2").rows
    for row in rows:
        if row.data == "cifar10":
            continue
        speed = speeds["resnet18-224" if row.data == "imagenet" else "resnet20-32"]
        trained = training_passes(row.made, "paper") / _speed(speed, TRAINING) / 3600
        attacked = attack_passes(row) / _speed(speed, ATTACK) / 3600
        lines.append(f"| {row.name} | {trained:.1f} | {trained / GPUS:.1f} | {attacked:.2f} |")
    hardware = "; ".join(
        f"{r.row}: {_speed(r, ATTACK):,.0f} and {_speed(r, TRAINING):,.0f} images/s on {r.hardware}, {r.date}"
        for r in speeds.values()
    )
    note = "Attack and training passes (forward and backward): "
    return "\n".join(
        [*lines, "", f"{note}{hardware}. Eight GPUs are taken as eight times one, which is the best case."]
    )


def _speed(row: RowResult, column: str) -> float:
    figure = row.figure(column)
    assert figure is not None
    return figure.measured
