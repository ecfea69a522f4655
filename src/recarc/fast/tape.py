"""The forward pass of a batch through an accelerated member, tile by tile, and the gradients taken from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recarc.fast.execute import CapturedTile

if TYPE_CHECKING:
    from recarc.fast.fast_member import FastMember


class Tape:
    """The forward pass of a batch, from which gradients may be taken several times."""

    def __init__(self, member: FastMember, x: Tensor) -> None:
        self.member, self.x = member, x.detach()
        self._run()

    def _run(self) -> None:
        with torch.cuda.device_of(self.x):
            self.tiles, self.counts = self.member.differentiable_tiles(self.x)
        self.passes = self.member.passes.value

    def logits(self) -> Tensor:
        parts = zip(self.tiles, self.counts)
        return torch.cat([tile.logits.detach()[:count].to(self.x.dtype) for tile, count in parts])

    def pull_back(self, cotangent: Tensor) -> Tensor:
        """The gradient of <logits, cotangent> in x."""
        if self.passes != self.member.passes.value and any(isinstance(tile, CapturedTile) for tile in self.tiles):
            self._run()  # the member has run again since, over the same buffers
        gradient = torch.empty_like(self.x)
        with torch.cuda.device_of(self.x):
            for tile, part, place in zip(self.tiles, cotangent.split(self.counts), gradient.split(self.counts)):
                place.copy_(tile.pull_back(part)[: len(part)])
        return gradient


class Differentiable(torch.autograd.Function):
    """The tiles of a batch as one differentiable function; each is pulled back under the member's settings."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, member: FastMember) -> Tensor:
        ctx.tape = Tape(member, x)
        logits: Tensor = ctx.tape.logits()
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return ctx.tape.pull_back(cotangent), None
