"""Captured tiles without a GPU, with as much memory as a test wants them to have."""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakSet

import pytest
import torch

from recarc.fast import FastMember
from recarc.fast.execute import CapturedTile, Executor, padded_cotangent


class Recorded(CapturedTile):
    """Behaves like CUDA graphs, without a GPU: buffers of its own that the next forward pass overwrites."""

    made: ClassVar[list[tuple[int, bool]]] = []

    def __init__(self, executor: Executor, x: torch.Tensor, like: CapturedTile | None = None) -> None:
        self.executor, self.x = executor, x.detach()
        self.made.append((len(x), like is not None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.x = torch.cat([x, self.x[len(x) :]]).detach().requires_grad_()
        with torch.enable_grad():
            self.logits = self.executor(self.x)
        return self.logits.detach()[: len(x)]

    def pull_back(self, cotangent: torch.Tensor) -> torch.Tensor:
        return self.executor.pull_back(self.logits, self.x, padded_cotangent(cotangent, self.logits))


class Scarce(Recorded):
    """At most `room` of them exist at a time."""

    room: ClassVar[int] = 0
    alive: ClassVar[WeakSet[Scarce]] = WeakSet()

    def __init__(self, executor: Executor, x: torch.Tensor, like: CapturedTile | None = None) -> None:
        if len(self.alive) >= self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more lines")
        super().__init__(executor, x, like)
        self.alive.add(self)


def capture(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let accelerated members capture on any device, with room for so many tiles."""
    run_with = FastMember._run_with

    def capturing(member: FastMember, *arguments: Any) -> None:
        run_with(member, *arguments)
        member.capturing = True

    monkeypatch.setattr(FastMember, "_run_with", capturing)
    monkeypatch.setattr("recarc.fast.fast_member.CapturedTile", Scarce)
    monkeypatch.setattr(Scarce, "room", room)
    monkeypatch.setattr(Scarce, "made", [])
    monkeypatch.setattr(Scarce, "alive", WeakSet())
