"""Blocks of convolutions, each with its ReLU and the last with a shortcut, as one function with its own gradient.

For input gradients through fixed weights. A block keeps its activations (a gradient needs only their signs) and touches
memory once per convolution: bias, shortcut and ReLU on the way forward, mask and shortcut on the way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable
from torch.nn.grad import conv2d_input

from recarc.errors import InputError
from recarc.fast.fold import trace
from recarc.fast.match import (
    FEW_CHANNELS,
    Match,
    Rules,
    adds_its_input,
    drop_identities,
    few_channels,
    find_blocks,
    has_hooks,
)

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

    `taps` is (size * size, input channels, output channels), for our own kernel, or a weight as libraries expect it,
    (output channels, input channels, size, size), the same in both directions. Padded so that the image keeps its size.
    """
    if taps.dim() == 4:
        weight = taps
    else:
        kernel = taps.unflatten(0, (math.isqrt(len(taps)),) * 2)
        weight = kernel.permute(3, 2, 0, 1) if back_to is None else kernel.permute(2, 3, 0, 1)
    size = weight.shape[-1]
    if back_to is None:
        out = F.conv2d(x, weight, stride=stride, padding=size // 2)
    else:
        out = conv2d_input((len(x), weight.shape[1], *back_to), weight, x, stride=stride, padding=size // 2)
    if bias is not None:
        out = out + bias[:, None, None]
    if add is not None:
        out = out + add
    if mask is not None:
        out = torch.where(mask > 0, out, 0)
    return (F.relu(out) if relu else out).to(dtype or x.dtype)


class FusedBlock(nn.Module):
    """Convolutions, each followed by a ReLU; "none", the "input" or an "other" value is added before the last ReLU.

    With `relu` False it is a single convolution and nothing else.
    """

    def __init__(
        self,
        convolutions: list[nn.Conv2d],
        shortcut: str,
        convolve: Convolve,
        dtype: torch.dtype,
        *,
        relu: bool = True,
        most_channels: int = FEW_CHANNELS,
    ) -> None:
        super().__init__()
        self.shortcut, self.convolve, self.dtype, self.relu = shortcut, convolve, dtype, relu
        self.out_dtype = dtype
        self.masks_input = False  # its input comes out of a ReLU whose mask is left to this block, on the way back
        self.masked_by_readers = False  # the blocks that read its output mask their gradients with it
        self.outputs = convolutions[-1].out_channels
        self.strides = [c.stride[0] for c in convolutions]
        self.sources = [(c.weight.detach(), None if c.bias is None else c.bias.detach()) for c in convolutions]
        weights = [weight.to(dtype) for weight, _ in self.sources]
        self.own = [few_channels(c, most_channels) for c in convolutions]  # by our kernel; otherwise by the library's
        self.taps = nn.ParameterList(_form(w, own, _forward_taps) for w, own in zip(weights, self.own))
        self.taps_back = nn.ParameterList(
            _form(w, own, _backward_taps) if own else forward for w, own, forward in zip(weights, self.own, self.taps)
        )
        self.biases = nn.ParameterList(
            torch.zeros(len(w), device=w.device, dtype=kept) if b is None else b.to(kept, copy=True)
            for (w, b), kept in zip(self.sources, (torch.float32 if own else dtype for own in self.own))
        )
        self.requires_grad_(False)

    def refresh(self) -> None:
        """Take over the weights that the convolutions have now."""
        for (weight, bias), taps, back, own, kept in zip(
            self.sources, self.taps, self.taps_back, self.own, self.biases
        ):
            taps.copy_(_forward_taps(weight) if own else weight)
            back.copy_(_backward_taps(weight) if own else weight)
            if bias is not None:
                kept.copy_(bias)

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
        return len(x), self.outputs, height, width

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
                relu=self.relu,
                dtype=self.out_dtype if k == last else self.dtype,
            )
            values.append(x)
        return values

    def pull_back(
        self, gradient: Tensor, values: list[Tensor], size: tuple[int, int], x: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the input, masked with x where given, and of what was added."""
        if self.relu and not self.masked_by_readers:
            gradient = torch.ops.aten.threshold_backward(gradient, values[-1], 0)
        added = gradient = _channels_last(gradient, self.dtype)
        for k in reversed(range(len(self.strides))):
            gradient = self.convolve(
                gradient,
                self.taps_back[k],
                self.strides[k],
                add=added if k == 0 and self.shortcut == "input" else None,
                mask=values[k - 1] if k else x,
                back_to=tuple(values[k - 1].shape[2:]) if k else size,
            )
        return gradient, added


class _FusedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, other: Tensor | None, block: FusedBlock) -> Tensor:
        values = block.activations(x, other)
        ctx.block, ctx.size = block, tuple(x.shape[2:])
        ctx.save_for_backward(*values if block.relu else (), *(x,) if block.masks_input else ())
        return values[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values = list(ctx.saved_tensors)
        x = values.pop() if ctx.block.masks_input else None
        of_input, of_added = ctx.block.pull_back(gradient, values, ctx.size, x)
        return of_input, of_added if ctx.needs_input_grad[1] else None, None


def _form(weight: Tensor, own: bool, taps_of: Callable[[Tensor], Tensor]) -> Tensor:
    """As the kernel reads it: ours tap by tap, the library's channels last."""
    return taps_of(weight).contiguous() if own else weight.contiguous(memory_format=torch.channels_last)


def _forward_taps(weight: Tensor) -> Tensor:
    """(outputs, inputs, size, size) -> (size * size, inputs, outputs)."""
    return weight.permute(2, 3, 1, 0).flatten(0, 1)


def _backward_taps(weight: Tensor) -> Tensor:
    """(outputs, inputs, size, size) -> (size * size, outputs, inputs)."""
    return weight.permute(2, 3, 0, 1).flatten(0, 1)


def _channels_last(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def _mask_where_read(matches: dict[fx.Node, Match], blocks: dict[fx.Node, FusedBlock]) -> None:
    """Leave the mask of a block's last ReLU to the blocks that read it, whose kernel touches that memory anyway.

    Only if nothing else reads it, and if all of them run our own kernel: a library would need a pass for it.
    """
    for node, match in matches.items():
        readers = [(other, blocks[end]) for end, other in matches.items() if other.source is node]
        reading = [c for other, _ in readers for c in other.convolutions[:1]]
        adding = [n for other, block in readers if block.shortcut == "input" for n in other.nodes]
        own = all(block.own[0] for _, block in readers)
        if match.relu and own and readers and all(user in reading or user in adding for user in node.users):
            blocks[node].masked_by_readers = True
            for _, block in readers:
                block.masks_input = True


def fuse_blocks(
    module: nn.Module,
    convolve: Convolve = plain_convolve,
    dtype: torch.dtype = torch.float32,
    most_channels: int = FEW_CHANNELS,
    every: bool = False,
) -> nn.Module:
    """A copy with its blocks fused, or the module itself if it has none; its batch norms should be folded already.

    The output of a block is in float32 unless another block reads it. With `every`, convolutions of more channels or
    larger windows too, and those without a ReLU; then only the last output is in float32. Raises InputError for what
    tracing cannot see, such as hooks on the module.
    """
    if has_hooks(module) or "forward" in vars(module):
        raise InputError(f"{type(module).__name__} has hooks or a forward of its own; it is run unfused")
    graph = trace(module)
    whole = fx.GraphModule(module, graph)
    modules = dict(whole.named_modules())
    drop_identities(graph, modules)
    rules = Rules(modules, most_channels, every)
    matches = find_blocks(graph, rules)
    if not matches:
        return module
    read_by_blocks = {node for match in matches.values() for node in (match.source, match.other)}
    blocks: dict[fx.Node, FusedBlock] = {}
    for node, match in matches.items():
        convolutions = [modules[str(c.target)] for c in match.convolutions]
        shortcut = "none" if match.other is None else "input" if adds_its_input(match, convolutions) else "other"
        blocks[node] = FusedBlock(convolutions, shortcut, convolve, dtype, relu=match.relu, most_channels=most_channels)
    _mask_where_read(matches, blocks)
    replaced: dict[fx.Node, fx.Node] = {}
    for number, (node, match) in enumerate(matches.items()):
        block = blocks[node]
        last = number + 1 == len(matches) if every else node not in read_by_blocks
        block.out_dtype = torch.float32 if last else dtype
        name = f"fused_block_{number}"
        while hasattr(whole, name):
            name += "_"
        whole.add_submodule(name, block)
        inputs = [match.source] if match.other is None or block.shortcut == "input" else [match.source, match.other]
        with graph.inserting_before(node):
            replaced[node] = graph.call_module(name, tuple(replaced.get(n, n) for n in inputs))
            node.replace_all_uses_with(replaced[node])
    for match in reversed(matches.values()):
        for node in reversed(match.nodes):  # and nothing else: an in-place statement may have no readers
            graph.erase_node(node)
    whole.delete_all_unused_submodules()
    whole.recompile()
    return whole
