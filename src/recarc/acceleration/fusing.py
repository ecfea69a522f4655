"""Runs of convolutions with ReLU after each, and a shortcut before the last, as one function with its own gradient.

For input gradients through fixed weights. A run keeps its activations (the signs are all that a gradient needs) and
touches memory once a convolution: bias, shortcut and ReLU on the way forward, mask and shortcut on the way back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input

from recarc.models.folding import traced

RELUS = (F.relu, torch.relu, "relu", "relu_")
SUMS = (operator.add, operator.iadd, torch.add)


Convolve = Callable[..., Tensor]


def plain_convolve(
    x: Tensor,
    taps: Tensor,
    stride: int,
    *,
    bias: Tensor | None = None,
    add: Tensor | None = None,
    mask: Tensor | None = None,
    relu: bool = False,
    back_to: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """relu(conv(x) + bias + add), or with `back_to` (the size of the image) the pull-back of x; zero where mask is.

    `taps` is (size * size, channels read, channels made); size is 1 or 3, with the padding that keeps places.
    """
    size = math.isqrt(len(taps))
    weight = taps.unflatten(0, (size, size))
    if back_to is None:
        out = F.conv2d(x, weight.permute(3, 2, 0, 1), stride=stride, padding=size // 2)
    else:
        shape = (len(x), taps.shape[2], *back_to)
        out = conv2d_input(shape, weight.permute(2, 3, 0, 1), x, stride=stride, padding=size // 2)
    if bias is not None:
        out = out + bias[:, None, None]
    if add is not None:
        out = out + add
    if mask is not None:
        out = torch.where(mask > 0, out, 0)
    return (F.relu(out) if relu else out).to(dtype or x.dtype)


class Run(nn.Module):
    """The convolutions in order; `shortcut` is what is added before the last ReLU: "none", the "input", an "other"."""

    def __init__(self, convolutions: list[nn.Conv2d], shortcut: str, convolve: Convolve, dtype: torch.dtype) -> None:
        super().__init__()
        self.shortcut, self.convolve, self.dtype = shortcut, convolve, dtype
        self.out_dtype = dtype
        self.strides = [c.stride[0] for c in convolutions]
        self.sources = [(c.weight.detach(), None if c.bias is None else c.bias.detach()) for c in convolutions]
        weights = [weight.to(dtype) for weight, _ in self.sources]
        self.taps = nn.ParameterList(_forward(w).contiguous() for w in weights)
        self.taps_back = nn.ParameterList(_backward(w).contiguous() for w in weights)
        self.biases = nn.ParameterList(
            torch.zeros(w.shape[0], device=w.device) if b is None else b.float().clone() for w, b in self.sources
        )
        self.requires_grad_(False)

    def refresh(self) -> None:
        """Takes over the weights that the convolutions have now."""
        for (weight, bias), taps, back, own in zip(self.sources, self.taps, self.taps_back, self.biases):
            taps.copy_(_forward(weight))
            back.copy_(_backward(weight))
            if bias is not None:
                own.copy_(bias)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = _laid_out(x, self.dtype)
        return _Pull.apply(x, None if other is None else _laid_out(other, self.dtype), self)

    def activations(self, x: Tensor, other: Tensor | None) -> list[Tensor]:
        added = x if self.shortcut == "input" else other
        values, last = [], len(self.strides) - 1
        for k, (taps, stride, bias) in enumerate(zip(self.taps, self.strides, self.biases)):
            x = self.convolve(
                x,
                taps,
                stride,
                bias=bias,
                add=added if k == last else None,
                relu=True,
                dtype=self.out_dtype if k == last else self.dtype,
            )
            values.append(x)
        return values

    def pull_back(self, gradient: Tensor, values: list[Tensor], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Gradients of the input and of what was added."""
        gradient = _laid_out(torch.ops.aten.threshold_backward(gradient, values[-1], 0), self.dtype)
        added = gradient
        for k in reversed(range(len(values))):
            gradient = self.convolve(
                gradient,
                self.taps_back[k],
                self.strides[k],
                add=added if k == 0 and self.shortcut == "input" else None,
                mask=values[k - 1] if k else None,
                back_to=tuple(values[k - 1].shape[2:]) if k else size,
            )
        return gradient, added


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor | None, run: Run) -> Tensor:
        values = run.activations(x, other)
        ctx.run, ctx.size = run, tuple(x.shape[2:])
        ctx.save_for_backward(*values)
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_input, of_added = ctx.run.pull_back(gradient, list(ctx.saved_tensors), ctx.size)
        return of_input, of_added if ctx.needs_input_grad[1] else None, None


def _forward(weight: Tensor) -> Tensor:
    """(made, read, size, size) by tap."""
    return weight.permute(2, 3, 1, 0).flatten(0, 1)


def _backward(weight: Tensor) -> Tensor:
    return weight.permute(2, 3, 0, 1).flatten(0, 1)


def _laid_out(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


@dataclass
class _Found:
    """A run as nodes of the graph."""

    convolutions: list[fx.Node]
    source: fx.Node
    other: fx.Node | None = None
    swallowed: bool = field(default=False)


def fuse_runs(
    module: nn.Module,
    convolve: Convolve = plain_convolve,
    dtype: torch.dtype = torch.float32,
    most_channels: int = 64,
) -> nn.Module:
    """A copy with its runs fused; the module must be traceable and in evaluation mode, its batch norms folded.

    The output of a run that only other operations read comes in float32.
    """
    graph = traced(module)
    whole = fx.GraphModule(module, graph)
    named = dict(whole.named_modules())
    runs: dict[fx.Node, _Found] = {}
    for node in graph.nodes:
        if _is_relu(node, named):
            found = _run_ending_at(node, named, most_channels)
            if found is not None:
                first = found.source
                before = runs.get(first)
                if before is not None and before.other is None and len(first.users) == 1:
                    found.convolutions = before.convolutions + found.convolutions
                    found.source, before.swallowed = before.source, True
                runs[node] = found
    kept = {node: found for node, found in runs.items() if not found.swallowed}
    read = {found.source for found in kept.values()}
    replaced: dict[fx.Node, fx.Node] = {}
    for number, (node, found) in enumerate(kept.items()):
        shortcut = "none" if found.other is None else "input" if found.other is found.source else "other"
        run = Run([named[str(c.target)] for c in found.convolutions], shortcut, convolve, dtype)
        run.out_dtype = dtype if node in read else torch.float32
        name = f"run{number}"
        whole.add_submodule(name, run)
        inputs = [found.source] if found.other is None or shortcut == "input" else [found.source, found.other]
        with graph.inserting_before(node):
            replaced[node] = graph.call_module(name, tuple(replaced.get(n, n) for n in inputs))
            node.replace_all_uses_with(replaced[node])
    graph.eliminate_dead_code()
    whole.delete_all_unused_submodules()
    whole.recompile()
    return whole


def _run_ending_at(node: fx.Node, named: dict[str, nn.Module], most_channels: int) -> _Found | None:
    last = _through(node.args[0], named)
    if last is None:
        return None
    if _fits(last, named, most_channels):
        return _Found([last], last.args[0])  # type: ignore[arg-type]
    if last.op != "call_function" or last.target not in SUMS or len(last.args) != 2 or len(last.users) != 1:
        return None
    for one, other in (last.args, last.args[::-1]):
        branch = _through(one, named)
        if branch is not None and _fits(branch, named, most_channels) and isinstance(other, fx.Node):
            return _Found([branch], branch.args[0], other)  # type: ignore[arg-type]
    return None


def _is_relu(node: fx.Node, named: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(named[str(node.target)], nn.ReLU)
    return node.op in ("call_function", "call_method") and node.target in RELUS


def _through(node: Any, named: dict[str, nn.Module]) -> fx.Node | None:
    """The node behind identities (folded batch norms), if nobody else reads on the way."""
    while isinstance(node, fx.Node) and len(node.users) == 1:
        if node.op != "call_module" or not isinstance(named[str(node.target)], nn.Identity):
            return node
        node = node.args[0]
    return None


def _fits(node: fx.Node, named: dict[str, nn.Module], most_channels: int) -> bool:
    conv = named.get(str(node.target)) if node.op == "call_module" else None
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size in ((1, 1), (3, 3))
        and conv.padding == (conv.kernel_size[0] // 2,) * 2
        and conv.padding_mode == "zeros"
        and conv.stride in ((1, 1), (2, 2))
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and max(conv.in_channels, conv.out_channels) <= most_channels
        and isinstance(node.args[0], fx.Node)
    )
