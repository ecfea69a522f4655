"""How many forward and backward passes this machine makes per second; docs/full_size.md computes hours from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from paper import results
from paper.bench.common import seconds
from paper.recipe import measured_item
from paper.results import Figure, RowResult
from paper.setup import Setup
from recarc.ensemble import Member
from recarc.fast import accelerate
from recarc.models.registry import build
from recarc.provenance import environment

NETS = {  # row: architecture, image size, classes, options, batch
    "resnet20-32": ("resnet20", 32, 10, {}, 512),
    "resnet18-224": ("resnet18", 224, 1000, {"stem": "imagenet"}, 256),
}
ATTACK, TRAINING = "attack: input gradients", "training: weight gradients"


@measured_item("throughput", "Passes per second on this machine, from which docs/full_size.md computes costs")
def throughput(setup: Setup, folder: Path, parts: list[str]) -> Iterator[RowResult]:
    for row in NETS:
        yield measure(row, setup.device, setup.scale.name == "toy")


def measure(row: str, device: torch.device, tiny: bool = False) -> RowResult:
    """Images per second, forward and backward: attacks as items search, training in bfloat16 and channels_last."""
    arch, size, classes, options, batch = NETS[row]
    size, batch, batches = (32, 2, 1) if tiny else (size, batch, 10)
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
        command=f"python -m paper throughput --device {device.type}",
        commit=results.commit(),
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
    def several(times: int) -> None:
        for _ in range(times):
            step()

    several(2)  # warm-up
    took, _ = seconds(lambda: several(batches), device)
    return round(images * batches / took, 1)
