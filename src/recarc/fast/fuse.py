"""Blocks of convolutions, each with its ReLU and the last with a shortcut, as one function with its own gradient.

For input gradients through fixed weights. A block keeps its activations (a gradient needs only their signs) and touches
memory once per convolution: bias, shortcut and ReLU on the way forward, mask and shortcut on the way back.
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
from recarc.fast.fold import trace

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

    `taps` is (size * size, input channels, output channels); size is 1 or 3, padded so that the image keeps its size.
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


class FusedBlock(nn.Module):
    """Convolutions, each followed by a ReLU; "none", the "input" or an "other" value is added before the last ReLU."""

    def __init__(self, convolutions: list[nn.Conv2d], shortcut: str, convolve: Convolve, dtype: torch.dtype) -> None:
        super().__init__()
        self.shortcut, self.convolve, self.dtype = shortcut, convolve, dtype
        self.out_dtype = dtype
        self.strides = [c.stride[0] for c in convolutions]
        self.sources = [(c.weight.detach(), None if c.bias is None else c.bias.detach()) for c in convolutions]
        weights = [weight.to(dtype) for weight, _ in self.sources]
        self.taps = nn.ParameterList(_forward_taps(w).contiguous() for w in weights)
        self.taps_back = nn.ParameterList(_backward_taps(w).contiguous() for w in weights)
        self.biases = nn.ParameterList(
            torch.zeros(w.shape[0], device=w.device) if b is None else b.float().clone() for w, b in self.sources
        )
        self.requires_grad_(False)

    def refresh(self) -> None:
        """Take over the weights that the convolutions have now."""
        for (weight, bias), taps, back, own in zip(self.sources, self.taps, self.taps_back, self.biases):
            taps.copy_(_forward_taps(weight))
            back.copy_(_backward_taps(weight))
            if bias is not None:
                own.copy_(bias)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        x = _channels_last(x, self.dtype)
        if other is not None:
            other = _channels_last(other.expand(self.shape_for(x)), self.dtype)
        return _FusedFunction.apply(x, other, self)

    def shape_for(self, x: Tensor) -> tuple[int, ...]:
        """The shape of the output for x."""
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
        gradient = _channels_last(torch.ops.aten.threshold_backward(gradient, values[-1], 0), self.dtype)
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


class _FusedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor | None, block: FusedBlock) -> Tensor:
        values = block.activations(x, other)
        ctx.block, ctx.size = block, tuple(x.shape[2:])
        ctx.save_for_backward(*values)
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_input, of_added = ctx.block.pull_back(gradient, list(ctx.saved_tensors), ctx.size)
        return of_input, of_added if ctx.needs_input_grad[1] else None, None


def _forward_taps(weight: Tensor) -> Tensor:
    """(outputs, inputs, size, size) -> (size * size, inputs, outputs)."""
    return weight.permute(2, 3, 1, 0).flatten(0, 1)


def _backward_taps(weight: Tensor) -> Tensor:
    """(outputs, inputs, size, size) -> (size * size, outputs, inputs)."""
    return weight.permute(2, 3, 0, 1).flatten(0, 1)


def _channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


@dataclass
class _Match:
    """A block in the graph: its convolutions, all the nodes that it replaces (in order), and what it reads."""

    convolutions: list[fx.Node]
    nodes: list[fx.Node]
    source: fx.Node
    other: fx.Node | None = None


def fuse_blocks(
    module: nn.Module,
    convolve: Convolve = plain_convolve,
    dtype: torch.dtype = torch.float32,
    most_channels: int = 64,
) -> nn.Module:
    """A copy with its blocks fused, or the module itself if it has none; its batch norms should be folded already.

    The output of a block is in float32 unless another block reads it. Raises InputError for what tracing cannot see,
    such as hooks on the module.
    """
    if _has_hooks(module) or "forward" in vars(module):
        raise InputError(f"{type(module).__name__} has hooks or a forward of its own; it is run unfused")
    graph = trace(module)
    whole = fx.GraphModule(module, graph)
    modules = dict(whole.named_modules())
    matches = _find_blocks(graph, modules, most_channels)
    if not matches:
        return module
    read_by_blocks = {match.source for match in matches.values()}
    replaced: dict[fx.Node, fx.Node] = {}
    for number, (node, match) in enumerate(matches.items()):
        convolutions = [modules[str(c.target)] for c in match.convolutions]
        shortcut = "none" if match.other is None else "input" if _adds_its_input(match, convolutions) else "other"
        block = FusedBlock(convolutions, shortcut, convolve, dtype)
        block.out_dtype = dtype if node in read_by_blocks else torch.float32
        name = f"fused_block_{number}"
        while hasattr(whole, name):
            name += "_"
        whole.add_submodule(name, block)
        inputs = [match.source] if match.other is None or shortcut == "input" else [match.source, match.other]
        with graph.inserting_before(node):
            replaced[node] = graph.call_module(name, tuple(replaced.get(n, n) for n in inputs))
            node.replace_all_uses_with(replaced[node])
    for match in reversed(matches.values()):
        for node in reversed(match.nodes):  # and nothing else: an in-place statement may have no readers
            graph.erase_node(node)
    whole.delete_all_unused_submodules()
    whole.recompile()
    return whole


def _find_blocks(graph: fx.Graph, modules: dict[str, nn.Module], most_channels: int) -> dict[fx.Node, _Match]:
    """Blocks by the ReLU that ends them; one that only feeds the next convolution becomes part of the next block."""
    matches: dict[fx.Node, _Match] = {}
    for node in graph.nodes:
        match = _block_ending_at(node, modules, most_channels) if _is_relu(node, modules) else None
        if match is None:
            continue
        before = matches.get(match.source)
        if before is not None and before.other is None and len(match.source.users) == 1:
            del matches[match.source]
            match.convolutions = before.convolutions + match.convolutions
            match.nodes = before.nodes + match.nodes
            match.source = before.source
        matches[node] = match
    return matches


def _block_ending_at(node: fx.Node, modules: dict[str, nn.Module], most_channels: int) -> _Match | None:
    tail = _behind_identities(node.args[0] if node.args else None, modules)
    if not tail:
        return None
    match = None
    if _can_fuse(tail[0], modules, most_channels):
        match = _Match([tail[0]], [*tail, node], tail[0].args[0])  # type: ignore[arg-type]
    elif _is_sum(tail[0]):
        for one, other in (tail[0].args, tail[0].args[::-1]):
            branch = _behind_identities(one, modules)
            if branch and _can_fuse(branch[0], modules, most_channels) and isinstance(other, fx.Node):
                nodes = [*branch, *tail, node]
                match = _Match([branch[0]], nodes, branch[0].args[0], other)  # type: ignore[arg-type]
                break
    if match is None or any(_overwritten(read, match, modules) for read in (match.source, match.other)):
        return None
    return match


def _is_sum(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in SUMS and len(node.args) == 2 and not node.kwargs


def _adds_its_input(match: _Match, convolutions: list[nn.Module]) -> bool:
    """Whether the input itself is added, in the shape of the output."""
    same_size = all(conv.stride == (1, 1) for conv in convolutions)
    same_channels = convolutions[0].in_channels == convolutions[-1].out_channels
    return match.other is match.source and same_size and bool(same_channels)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _overwritten(node: fx.Node | None, match: _Match, modules: dict[str, nn.Module]) -> bool:
    """Whether something outside the block changes this value in place: a block reads it later than its parts did."""
    if node is None:
        return False
    outside = [user for user in node.users if user not in match.nodes]
    return any(user.args and user.args[0] is node and _works_in_place(user, modules) for user in outside)


def _works_in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.endswith("_") or name in IN_PLACE or bool(node.kwargs.get("inplace"))


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.ReLU)
    return node.op in ("call_function", "call_method") and node.target in RELUS


def _behind_identities(node: Any, modules: dict[str, nn.Module]) -> list[fx.Node]:
    """The node behind identities (folded batch norms), then those in order; empty if another node reads one of them."""
    passed: list[fx.Node] = []
    while isinstance(node, fx.Node) and len(node.users) == 1:
        passed.insert(0, node)
        if node.op != "call_module" or not isinstance(modules[str(node.target)], nn.Identity):
            return passed
        node = node.args[0] if node.args else None
    return []


def _can_fuse(node: fx.Node, modules: dict[str, nn.Module], most_channels: int) -> bool:
    conv = modules.get(str(node.target)) if node.op == "call_module" else None
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size in ((1, 1), (3, 3))
        and conv.padding == (conv.kernel_size[0] // 2,) * 2
        and conv.padding_mode == "zeros"
        and conv.stride in ((1, 1), (2, 2))
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and max(conv.in_channels, conv.out_channels) <= most_channels
        and not _has_hooks(conv)
        and len(node.args) == 1
        and isinstance(node.args[0], fx.Node)
    )
