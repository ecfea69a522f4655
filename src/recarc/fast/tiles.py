"""How many images go through a member at once, and how a batch is cut into tiles of a few sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

SMALLEST_CAPTURE = 16  # images in a captured tile, at least
SMALLEST_ON_CPU = 8  # images in a tile on a CPU, at least: fewer take as long
BUSY, SMALLEST_TILE = 1.5e11, 32  # floating-point operations that keep a GPU busy; images at once, at least


def work_on(net: nn.Module, x: Tensor) -> int:
    """Floating-point operations of the network's convolutions and matrices on one input like x; at least 1."""
    work = 1

    def count(module: nn.Module, _: Any, out: Tensor) -> None:
        nonlocal work
        weight: Any = module.weight
        work += 2 * out.numel() * weight.numel() // len(weight)

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    dtype = next((p.dtype for p in net.parameters() if p.is_floating_point()), x.dtype)
    try:
        with torch.no_grad():
            net(x[:1].to(dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return work


def tile_of_work(most: float, each: float) -> int:
    """The largest power of two whose images take at most so many operations, but at least 1."""
    return int(1 << max(0, int(math.log2(most / each))))


def busy_tile(net: nn.Module, x: Tensor) -> int:
    """How many images like x keep a GPU busy: fewer the more work the network does on each."""
    return tile_of_work(BUSY, work_on(net, x))


def captured_sizes(tile: int) -> tuple[int, ...]:
    """Few, since each costs a moment to capture and memory to keep."""
    return halves(tile, SMALLEST_CAPTURE)


def halves(tile: int, smallest: int) -> tuple[int, ...]:
    """At most five sizes, a factor of two apart, from small to large."""
    return tuple(sorted({max(min(tile, smallest), tile >> k) for k in range(5)}))


def tiles_for(count: int, sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """(samples, size of their tile) for a batch: full tiles first, at most a quarter is padding if smaller ones fit."""
    plan = []
    while count:
        fits = next((size for size in sizes if size >= count), sizes[-1])
        smaller = [size for size in sizes if size < fits]
        size = smaller[-1] if smaller and 4 * count <= 3 * fits else fits
        plan.append((min(count, size), size))
        count -= plan[-1][0]
    return plan
