"""How a converted member is run: plainly, compiled, or captured as CUDA graphs (one launch instead of hundreds)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recarc.errors import first_line
from recarc.fast.choice import FIXED, Way
from recarc.runtime import in_precision, out_of_memory

HEADROOM = 64.0  # what a sample's cotangent is scaled to in float16, so that its small entries stay above 6e-8
WARMUP = 2  # passes before capture: libraries choose their kernels and allocate their workspaces
AGREEMENT = 0.02  # allowed relative difference between a captured and a plain pass; rounding stays far below
RECOMPILE_LIMIT = 64  # one variant for each combination of member, precision and mode


class Executor:
    """Runs a network in its precision, compiled on first use if asked; falls back to plain execution."""

    def __init__(self, net: nn.Module, precision: str, compile: bool = False, way: Way = FIXED) -> None:
        self.net, self.precision, self.way = net, precision, way
        self.compiled: Callable[[Tensor], Tensor] | None = torch.compile(net) if compile else None

    def __call__(self, x: Tensor) -> Tensor:
        """Logits in the precision of the network, but never in float16, in which they would tie."""
        with in_precision(self.precision, x.device, self.way.tuned):
            logits = self._run(x)
        return logits.float() if logits.dtype == torch.float16 else logits

    def _run(self, x: Tensor) -> Tensor:
        if self.compiled is None:
            return self.net(x)
        try:
            with compiler_settings():
                torch._dynamo.maybe_mark_dynamic(x, 0)
                return self.compiled(x)
        except Exception as error:  # the compiler raises whatever its backends raise
            if out_of_memory(error):
                raise
            warnings.warn(f"running uncompiled: {first_line(error)}", stacklevel=2)
            self.compiled = None
            return self.net(x)

    def laid_out(self, x: Tensor) -> Tensor:
        """Images in the layout of this executor; other inputs as they are."""
        if x.dim() != 4:
            return x
        return x.contiguous(memory_format=torch.channels_last if self.way.channels_last else torch.contiguous_format)

    def pull_back(self, logits: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
        """The gradient of <logits, cotangent> in x; the graph is kept for further gradients."""
        with in_precision(self.precision, x.device, self.way.tuned), self._settings():
            if self.precision != "float16":
                return _gradient(logits, x, cotangent)
            # Scaled per sample, since a loss that is nearly zero has a gradient below what float16 can represent.
            size = (cotangent.abs().amax(1, keepdim=True) / HEADROOM).clamp(min=torch.finfo(cotangent.dtype).tiny)
            gradient = _gradient(logits, x, cotangent / size)
            return gradient * size.view(-1, *(1,) * (gradient.dim() - 1))

    def _settings(self) -> AbstractContextManager[None]:
        return nullcontext() if self.compiled is None else compiler_settings()


def _gradient(logits: Tensor, x: Tensor, cotangent: Tensor) -> Tensor:
    """Of a sum, since torch imports sympy, which takes a second or more, when it is given a cotangent."""
    with torch.enable_grad():
        value = (logits * cotangent).sum()
    return torch.autograd.grad(value, x, retain_graph=True)[0]


@contextmanager
def compiler_settings() -> Iterator[None]:
    """The compiler's global switches as compiled members need them, restored at the end.

    Buffers are not donated, since several backward passes go through one graph, and more variants may be compiled.
    """
    import torch._dynamo
    import torch._functorch.config

    functorch, dynamo = torch._functorch.config, torch._dynamo.config
    limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # older torch
    before = functorch.donated_buffer, getattr(dynamo, limit)
    functorch.donated_buffer = False
    setattr(dynamo, limit, max(before[1], RECOMPILE_LIMIT))
    try:
        yield
    finally:
        functorch.donated_buffer = before[0]
        setattr(dynamo, limit, before[1])


def padded_cotangent(cotangent: Tensor, logits: Tensor) -> Tensor:
    """The cotangent of a padded tile: zero for the padding, in the dtype of the logits."""
    cotangent = cotangent.to(logits.dtype)
    missing = len(logits) - len(cotangent)
    return torch.cat([cotangent, cotangent.new_zeros(missing, *cotangent.shape[1:])]) if missing else cotangent


@dataclass
class PlainTile:
    """One tile after its forward pass, with the autograd graph to differentiate it."""

    x: Tensor
    logits: Tensor
    executor: Executor

    def pull_back(self, cotangent: Tensor) -> Tensor:
        return self.executor.pull_back(self.logits, self.x, padded_cotangent(cotangent, self.logits))


class CapturedTile:
    """The forward and backward pass of one tile as CUDA graphs over buffers of their own.

    The first of a size warms up and is checked; others `like` it need neither. Each has its own memory pool, because
    its activations outlive the forward passes of other tiles.
    """

    def __init__(self, executor: Executor, x: Tensor, like: CapturedTile | None = None) -> None:
        self.x = executor.laid_out(x).detach().clone(memory_format=torch.preserve_format).requires_grad_()
        with torch.enable_grad():
            expected = self._warm_up(executor) if like is None else None
        with torch.cuda.stream(torch.cuda.current_stream()):  # a failed capture may leave its own stream in place
            self._capture(executor)
        if expected is not None:
            self._check(expected)

    def _capture(self, executor: Executor) -> None:
        self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.enable_grad(), torch.cuda.graph(self.forward_graph):
            self.logits = executor(self.x)
        self.cotangent = torch.ones_like(self.logits)
        with torch.cuda.graph(self.backward_graph, pool=self.forward_graph.pool()):
            self.gradient = executor.pull_back(self.logits, self.x, self.cotangent)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of x, at most as many images as the tile holds; the rest of the tile stays as it was."""
        with torch.no_grad():
            self.x[: len(x)].copy_(x)
        self.forward_graph.replay()
        return self.logits.detach()[: len(x)]

    def pull_back(self, cotangent: Tensor) -> Tensor:
        self.cotangent[: len(cotangent)].copy_(cotangent)
        self.backward_graph.replay()
        return self.gradient[: len(cotangent)]

    def _warm_up(self, executor: Executor) -> Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                logits = executor(self.x)
                gradient = executor.pull_back(logits, self.x, torch.ones_like(logits))
        torch.cuda.current_stream().wait_stream(stream)
        return gradient.detach().clone()

    def _check(self, expected: Tensor) -> None:
        """Compare with a plain pass, over buffers that were emptied, so that a graph which does nothing is noticed."""
        self.logits.detach().zero_()
        self.gradient.zero_()
        self.forward(self.x.detach().clone())
        found = self.pull_back(torch.ones_like(self.logits))
        distance = (found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-12)
        if not float(distance) <= AGREEMENT:
            raise RuntimeError(f"a captured pass differs from a plain one by {float(distance):.2g}")
