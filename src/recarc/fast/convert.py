"""Copies of a member in the form that runs fastest: folded, channels last, in the precision of the search."""

from __future__ import annotations

import copy
import warnings
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.errors import InputError, first_line
from recarc.fast.fold import fold_batch_norm
from recarc.fast.fuse import Convolve, FusedBlock, fuse_blocks
from recarc.runtime import AUTOCAST


def folded_copy(member: nn.Module) -> nn.Module:
    """A copy for evaluation without gradients to weights, folded if it can be traced."""
    try:
        folded = fold_batch_norm(member)
    except InputError:
        folded = copy.deepcopy(member).eval()
    for parameter in folded.parameters():  # scripted modules refuse requires_grad_ on the module itself
        parameter.requires_grad_(False)
    return folded


def in_search_precision(folded: nn.Module, precision: str, fuse: bool = True) -> nn.Module:
    """A copy to be run under `runtime.in_precision(precision)`; float16 with fused convolutions where possible."""
    net = copy.deepcopy(folded) if precision == "float32" else copy.deepcopy(folded).float()
    if precision == "float16":
        net = _with_float32_logits(fuse_if_possible(net, torch.float16) if fuse else net)
    if any(p.dim() == 4 for p in net.parameters()):
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if precision in AUTOCAST:
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(AUTOCAST[precision])
    return net


def is_fused(net: nn.Module) -> bool:
    """Whether some of its convolutions are fused."""
    return any(isinstance(m, FusedBlock) for m in net.modules())


def is_fully_fused(net: nn.Module) -> bool:
    """Whether no convolution is left for which a library chooses the kernel by the size of the batch."""
    return is_fused(net) and not any(isinstance(m, nn.Conv2d) for m in net.modules())


def fuse_if_possible(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The network with its blocks run by our Triton kernel, or the network itself where that is impossible."""
    convolve = kernel_convolve()
    if convolve is None:
        return net
    try:
        return fuse_blocks(net, convolve, dtype)
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


class _Float32Linear(nn.Module):
    """A linear layer that leaves half precision: rounded logits tie, and ties decide predictions."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight, self.bias)


def _with_float32_logits(net: nn.Module) -> nn.Module:
    if isinstance(net, nn.Linear):
        return _Float32Linear(net)
    for name, module in list(net.named_modules()):
        if isinstance(module, nn.Linear):
            net.set_submodule(name, _Float32Linear(module))
    return net
