"""Copies of a member in the form that runs fastest: folded, channels last, in the precision of the search."""

from __future__ import annotations

import copy
import warnings
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from recarc.errors import InputError, first_line
from recarc.fast.choice import FIXED, Way
from recarc.fast.fold import fold_batch_norm, trace
from recarc.fast.fuse import Convolve, FusedBlock, fuse_blocks
from recarc.fast.match import FEW_CHANNELS
from recarc.geometry import total
from recarc.runtime import AUTOCAST

SMALL_LAYER = 2**13  # weights of a linear layer that is cheap to run without a library


def folded_copy(member: nn.Module) -> nn.Module:
    """A copy for evaluation without gradients to weights, folded if it can be traced."""
    try:
        folded = fold_batch_norm(member)
    except InputError:
        folded = copy.deepcopy(member).eval()
    for parameter in folded.parameters():  # scripted modules refuse requires_grad_ on the module itself
        parameter.requires_grad_(False)
    return folded


def in_search_precision(folded: nn.Module, precision: str, fuse: bool = True, way: Way = FIXED) -> nn.Module:
    """A copy to be run under `runtime.in_precision(precision)`; float16 with fused convolutions where possible."""
    net = copy.deepcopy(folded) if precision == "float32" else copy.deepcopy(folded).float()
    if precision == "float16":
        net = fuse_if_possible(net, torch.float16, every=True) if fuse else net
        net = _with_float32_logits(net, row_by_row=is_fully_fused(net))
        _scale_instead_of_norm(net)
    if way.channels_last and any(p.dim() == 4 for p in net.parameters()):
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if precision in AUTOCAST:
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(AUTOCAST[precision])
    return net


def is_traceable(net: nn.Module) -> bool:
    """Whether it performs the same operations at every call, as far as symbols can tell."""
    try:
        trace(net)
    except InputError:
        return False
    return True


def is_fused(net: nn.Module) -> bool:
    """Whether some of its convolutions are fused."""
    return any(isinstance(m, FusedBlock) for m in net.modules())


def is_fully_fused(net: nn.Module) -> bool:
    """Whether no convolution is left for which a library chooses the kernel by the size of the batch."""
    blocks = [m for m in net.modules() if isinstance(m, FusedBlock)]
    return bool(blocks) and all(all(m.own) for m in blocks) and not any(isinstance(m, nn.Conv2d) for m in net.modules())


def fuse_if_possible(net: nn.Module, dtype: torch.dtype, every: bool = False) -> nn.Module:
    """The network with its blocks run by our Triton kernels, or the network itself where that is impossible."""
    convolve = kernel_convolve()
    if convolve is None:
        return net
    try:
        widest = max((max(m.in_channels, m.out_channels) for m in net.modules() if isinstance(m, nn.Conv2d)), default=0)
        # In networks with wide layers the images are still large where there are 64 channels: there the library wins.
        few = FEW_CHANNELS // 2 if every and widest > FEW_CHANNELS else FEW_CHANNELS
        return fuse_blocks(net, convolve, dtype, few, every)
    except InputError:
        return net


def kernel_convolve() -> Convolve | None:
    """The fused convolution for GPUs, tested before use; None, with a warning, where Triton cannot build it."""
    try:
        return _tested_convolve()
    except Exception as error:  # no Triton, no C compiler, a GPU it does not support, ...
        warnings.warn(f"running without fused convolutions: {first_line(error)}", stacklevel=2)
        return None


@lru_cache
def _tested_convolve() -> Convolve:
    from recarc.fast.kernels import convolve

    x = torch.ones(1, 16, 4, 4, dtype=torch.float16, device="cuda")
    taps = torch.full((9, 16, 16), 0.25, dtype=torch.float16, device="cuda")
    if float(convolve(x, taps, 1)[0, 0, 1, 1]) != 36.0:
        raise RuntimeError("the Triton kernel gives a wrong result")
    return convolve


class _Scale(nn.Module):
    """A batch norm in evaluation mode: x times a number per channel, plus another. Its gradient is one pass."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        scale = (norm.running_var.double() + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight.double()
        shift = -norm.running_mean.double() * scale
        shift = shift if norm.bias is None else shift + norm.bias.double()
        self.register_buffer("scale", scale.float()[:, None, None])
        self.register_buffer("shift", shift.float()[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift.to(x.dtype), x, self.scale.to(x.dtype))


def _scale_instead_of_norm(net: nn.Module) -> None:
    """Batch norms that could not be folded, such as the first of a pre-activation block."""
    for name, module in list(net.named_modules()):
        if name and type(module) is nn.BatchNorm2d and not module.training and module.running_mean is not None:
            net.set_submodule(name, _Scale(module))


class _Float32Linear(nn.Module):
    """A linear layer that leaves half precision: rounded logits tie, and ties decide predictions.

    `row_by_row`: adds in an order that does not depend on the number of samples, as libraries do.
    """

    def __init__(self, linear: nn.Linear, row_by_row: bool = False) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.row_by_row = row_by_row and self.weight.numel() <= SMALL_LAYER

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            if not self.row_by_row or x.dim() != 2:
                return F.linear(x.float(), self.weight, self.bias)
            out: Tensor = _RowByRow.apply(x.float(), self.weight)
            return out if self.bias is None else out + self.bias


class _RowByRow(torch.autograd.Function):
    """x W^T, and its gradient in x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight.detach()
        return _row_sums(x[:, None] * ctx.weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _row_sums(gradient[:, None] * ctx.weight.T), None


def _row_sums(products: Tensor) -> Tensor:
    """(B, m, n) -> (B, m)."""
    return total(products.flatten(0, 1)).view(products.shape[:2])


def _with_float32_logits(net: nn.Module, row_by_row: bool = False) -> nn.Module:
    """Its last linear layers in float32; with `row_by_row` all of them, or their rounding would depend on the batch."""
    if isinstance(net, nn.Linear):
        return _Float32Linear(net, row_by_row)
    linear = {name: module for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    for name in linear if row_by_row else _heads(net, linear):
        net.set_submodule(name, _Float32Linear(linear[name], row_by_row))
    return net


def _heads(net: nn.Module, linear: dict[str, nn.Linear]) -> set[str]:
    """Names of the linear layers that no other layer with weights follows; untraced, of those as wide as the last."""
    if not linear:
        return set()
    try:
        graph = net.graph if isinstance(net, fx.GraphModule) else trace(net)
    except InputError:
        width = list(linear.values())[-1].out_features
        return {name for name, layer in linear.items() if layer.out_features == width}
    weighted = {name for name, module in net.named_modules() if isinstance(module, nn.Conv2d | nn.Linear | FusedBlock)}
    followed: set[fx.Node] = set()  # what a layer with weights reads, directly or not
    for node in reversed(list(graph.nodes)):
        reads_on = node.op == "call_module" and node.target in weighted
        if reads_on or node in followed:
            followed.update(node.all_input_nodes)
    return {str(n.target) for n in graph.nodes if n.op == "call_module" and n.target in linear and n not in followed}
