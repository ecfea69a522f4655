"""A body run under its precision: plain, compiled, or captured as CUDA graphs (one launch instead of some hundred)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recarc.errors import first_line
from recarc.runtime import in_precision

HEADROOM = 64.0  # what a sample's cotangent is scaled to in float16: its small entries stay above 6e-8

WARMUP = 3  # passes before capture: libraries choose their kernels and allocate their workspaces
AGREEMENT = 0.02  # relative difference of a captured pass from a plain one; rounding stays far below


class Call:
    """A body under its precision, compiled on first use where asked; falls back to plain execution."""

    def __init__(self, body: nn.Module, precision: str, compile: bool) -> None:
        self.body, self.precision = body, precision
        self.compiled: Callable[[Tensor], Tensor] | None = torch.compile(body) if compile else None

    def __call__(self, x: Tensor) -> Tensor:
        """Logits in the precision that comes out; never float16, in which they would tie."""
        with in_precision(self.precision, x.device):
            logits = self._run(x)
        return logits.float() if logits.dtype == torch.float16 else logits

    def _run(self, x: Tensor) -> Tensor:
        if self.compiled is None:
            return self.body(x)
        try:
            torch._dynamo.maybe_mark_dynamic(x, 0)
            return self.compiled(x)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # the compiler raises whatever its backends raise
            warnings.warn(f"running uncompiled: {first_line(error)}", stacklevel=2)
            self.compiled = None
            return self.body(x.detach().requires_grad_(x.requires_grad))

    def pull_back(self, logits: Tensor, leaf: Tensor, gradient: Tensor) -> Tensor:
        with in_precision(self.precision, leaf.device):
            if self.precision != "float16":
                return torch.autograd.grad(logits, leaf, gradient, retain_graph=True)[0]
            # Per sample, since a loss that is nearly zero has a gradient below what float16 can hold.
            size = (gradient.abs().amax(1, keepdim=True) / HEADROOM).clamp(min=torch.finfo(gradient.dtype).tiny)
            pulled = torch.autograd.grad(logits, leaf, gradient / size, retain_graph=True)[0]
            return pulled * size.view(-1, *(1,) * (pulled.dim() - 1))


@dataclass
class Tile:
    leaf: Tensor
    logits: Tensor
    call: Call

    def pull_back(self, gradient: Tensor) -> Tensor:
        return self.call.pull_back(self.logits, self.leaf, filled(gradient, self.logits))


def laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def filled(gradient: Tensor, like: Tensor) -> Tensor:
    """The cotangent of a padded tile: zero on the padding."""
    gradient = gradient.to(like.dtype)
    missing = len(like) - len(gradient)
    return torch.cat([gradient, gradient.new_zeros(missing, *gradient.shape[1:])]) if missing else gradient


def prepare_compiler() -> None:
    """Several backward passes through one graph, and one variant each for members, precisions and modes."""
    import torch._dynamo
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), 64))


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
