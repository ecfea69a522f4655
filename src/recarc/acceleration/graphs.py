"""Passes of one tile as CUDA graphs: one launch instead of some hundred."""

from __future__ import annotations

import torch
from torch import Tensor

from recarc.acceleration.calls import Call, filled, laid_out

WARMUP = 3  # passes before capture: libraries choose their kernels and allocate their workspaces
AGREEMENT = 0.02  # relative difference of a captured pass from a plain one; rounding stays far below


class Slot:
    """Forward and backward pass of one tile as CUDA graphs over buffers of their own, checked before use.

    Each has a memory pool of its own: its activations outlive the forward passes of other tiles.
    """

    def __init__(self, call: Call, x: Tensor, gradient: bool) -> None:
        self.x = laid_out(x).detach().clone(memory_format=torch.preserve_format).requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            expected = self._rehearse(call, gradient)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.logits = call(self.x)
        self.back: torch.cuda.CUDAGraph | None = None
        if gradient:
            self.cotangent = torch.ones_like(self.logits)
            self.back = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.back, pool=self.graph.pool()):
                self.pulled = call.pull_back(self.logits, self.x, self.cotangent)
        self._check(expected)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.x.copy_(x)
        self.graph.replay()
        return self.logits.detach()

    def pull_back(self, gradient: Tensor) -> Tensor:
        assert self.back is not None
        self.cotangent.copy_(filled(gradient, self.logits))
        self.back.replay()
        return self.pulled

    def _rehearse(self, call: Call, gradient: bool) -> Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                found = call(self.x)
                if gradient:
                    found = call.pull_back(found, self.x, torch.ones_like(found))
        torch.cuda.current_stream().wait_stream(stream)
        return found.detach().clone()

    def _check(self, expected: Tensor) -> None:
        """Over buffers that were emptied, so that a graph which does nothing is found out."""
        self.logits.detach().zero_()
        found = self.forward(self.x.detach().clone())
        if self.back is not None:
            self.pulled.zero_()
            found = self.pull_back(torch.ones_like(self.logits))
        distance = (found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-12)
        if not float(distance) <= AGREEMENT:
            raise RuntimeError(f"a captured pass differs from a plain one by {float(distance):.2g}")
