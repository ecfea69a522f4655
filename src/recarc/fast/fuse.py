"""Runs of convolutions with ReLU after each, and a shortcut before the last, as one function with its own gradient.

For input gradients through fixed weights. A run keeps its activations (the signs are all that a gradient needs) and
touches memory once a convolution: bias, shortcut and ReLU on the way forward, mask and shortcut on the way back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input

from recarc.errors import InputError
from recarc.fast.fold import traced

RELUS = (F.relu, torch.relu, "relu", "relu_")
SUMS = (operator.add, operator.iadd, torch.add)
IN_PLACE = ("iadd", "isub", "imul", "itruediv", "setitem")


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
        if other is not None:
            other = _laid_out(other.expand(self.shape_for(x)), self.dtype)
        return _Pull.apply(x, other, self)

    def shape_for(self, x: Tensor) -> tuple[int, ...]:
        """Of what comes out for x."""
        height, width = x.shape[2:]
        for stride in self.strides:
            height, width = -(-height // stride), -(-width // stride)
        return len(x), self.taps[-1].shape[2], height, width

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
    """A run as nodes of the graph; `nodes` are all that it replaces, in order."""

    convolutions: list[fx.Node]
    nodes: list[fx.Node]
    source: fx.Node
    other: fx.Node | None = None


def fuse_runs(
    module: nn.Module,
    convolve: Convolve = plain_convolve,
    dtype: torch.dtype = torch.float32,
    most_channels: int = 64,
) -> nn.Module:
    """A copy with its runs fused, or the module itself where there are none; its batch norms should be folded.

    The output of a run that only other operations read comes in float32. Raises InputError for what tracing
    cannot see, such as hooks on the module.
    """
    if _hooked(module) or "forward" in vars(module):
        raise InputError(f"{type(module).__name__} has hooks or a forward of its own; it is run as it is")
    graph = traced(module)
    whole = fx.GraphModule(module, graph)
    named = dict(whole.named_modules())
    runs = _runs(graph, named, most_channels)
    if not runs:
        return module
    read = {found.source for found in runs.values()}
    replaced: dict[fx.Node, fx.Node] = {}
    for number, (node, found) in enumerate(runs.items()):
        convolutions = [named[str(c.target)] for c in found.convolutions]
        shortcut = "none" if found.other is None else "input" if _is_identity(found, convolutions) else "other"
        run = Run(convolutions, shortcut, convolve, dtype)
        run.out_dtype = dtype if node in read else torch.float32
        name = f"fused_run_{number}"
        while hasattr(whole, name):
            name += "_"
        whole.add_submodule(name, run)
        inputs = [found.source] if found.other is None or shortcut == "input" else [found.source, found.other]
        with graph.inserting_before(node):
            replaced[node] = graph.call_module(name, tuple(replaced.get(n, n) for n in inputs))
            node.replace_all_uses_with(replaced[node])
    for found in reversed(runs.values()):
        for node in reversed(found.nodes):  # and nothing else: a statement in place may have no readers
            graph.erase_node(node)
    whole.delete_all_unused_submodules()
    whole.recompile()
    return whole


def _runs(graph: fx.Graph, named: dict[str, nn.Module], most_channels: int) -> dict[fx.Node, _Found]:
    """By the ReLU that ends each; one that only feeds the next convolution is part of the next run."""
    runs: dict[fx.Node, _Found] = {}
    for node in graph.nodes:
        found = _run_ending_at(node, named, most_channels) if _is_relu(node, named) else None
        if found is None:
            continue
        before = runs.get(found.source)
        if before is not None and before.other is None and len(found.source.users) == 1:
            del runs[found.source]
            found.convolutions = before.convolutions + found.convolutions
            found.nodes = before.nodes + found.nodes
            found.source = before.source
        runs[node] = found
    return runs


def _run_ending_at(node: fx.Node, named: dict[str, nn.Module], most_channels: int) -> _Found | None:
    tail = _through(node.args[0] if node.args else None, named)
    if not tail:
        return None
    found = None
    if _fits(tail[0], named, most_channels):
        found = _Found([tail[0]], [*tail, node], tail[0].args[0])  # type: ignore[arg-type]
    elif _is_sum(tail[0]):
        for one, other in (tail[0].args, tail[0].args[::-1]):
            branch = _through(one, named)
            if branch and _fits(branch[0], named, most_channels) and isinstance(other, fx.Node):
                nodes = [*branch, *tail, node]
                found = _Found([branch[0]], nodes, branch[0].args[0], other)  # type: ignore[arg-type]
                break
    if found is None or any(_written_over(read, found, named) for read in (found.source, found.other)):
        return None
    return found


def _is_sum(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in SUMS and len(node.args) == 2 and not node.kwargs


def _is_identity(found: _Found, convolutions: list[nn.Module]) -> bool:
    """The input itself is added, in the shape in which the run leaves it."""
    same_places = all(conv.stride == (1, 1) for conv in convolutions)
    same_channels = convolutions[0].in_channels == convolutions[-1].out_channels
    return found.other is found.source and same_places and bool(same_channels)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _written_over(node: fx.Node | None, found: _Found, named: dict[str, nn.Module]) -> bool:
    """Whether something outside the run changes this value in place: a run reads it later than its parts did."""
    return node is not None and any(
        user not in found.nodes and user.args and user.args[0] is node and _in_place(user, named) for user in node.users
    )


def _in_place(node: fx.Node, named: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(named[str(node.target)], "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in IN_PLACE or bool(node.kwargs.get("inplace"))


def _is_relu(node: fx.Node, named: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(named[str(node.target)], nn.ReLU)
    return node.op in ("call_function", "call_method") and node.target in RELUS


def _through(node: Any, named: dict[str, nn.Module]) -> list[fx.Node]:
    """The node behind identities (folded batch norms) and those, in order, if nobody else reads on the way."""
    passed: list[fx.Node] = []
    while isinstance(node, fx.Node) and len(node.users) == 1:
        passed.insert(0, node)
        if node.op != "call_module" or not isinstance(named[str(node.target)], nn.Identity):
            return passed
        node = node.args[0] if node.args else None
    return []


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
        and not _hooked(conv)
        and len(node.args) == 1
        and isinstance(node.args[0], fx.Node)
    )
