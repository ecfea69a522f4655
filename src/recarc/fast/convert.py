"""Members made over for speed: folded, laid out pixel by pixel, in the precision of the search."""

from __future__ import annotations

import copy
import warnings
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.errors import InputError, first_line
from recarc.fast.fold import fold_batch_norm
from recarc.fast.fuse import Convolve, Run, fuse_runs
from recarc.runtime import AUTOCAST


def folded_copy(member: nn.Module) -> nn.Module:
    """An evaluation copy, folded where it can be traced; no gradients to weights."""
    try:
        folded = fold_batch_norm(member)
    except InputError:
        folded = copy.deepcopy(member).eval()
    for parameter in folded.parameters():  # the module's own method is refused by scripts
        parameter.requires_grad_(False)
    return folded


def body_of(folded: nn.Module, precision: str, fuse: bool = True) -> nn.Module:
    """A copy that runs under `precision.in_precision(precision)`; float16 with fused convolutions where they can be."""
    body = copy.deepcopy(folded) if precision == "float32" else copy.deepcopy(folded).float()
    if precision == "float16":
        body = _with_full_logits(fused(body, torch.float16) if fuse else body)
    if any(p.dim() == 4 for p in body.parameters()):
        body = body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if precision in AUTOCAST:
        for module in body.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.to(AUTOCAST[precision])
    return body


def any_size(body: nn.Module) -> bool:
    """No convolution left whose library chooses a kernel by the size of the batch."""
    return any(isinstance(m, Run) for m in body.modules()) and not any(isinstance(m, nn.Conv2d) for m in body.modules())


def fused(body: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The body with its runs in our kernels; as it is where that cannot be."""
    convolve = kernel_convolve()
    if convolve is None:
        return body
    try:
        return fuse_runs(body, convolve, dtype)
    except InputError:
        return body


def kernel_convolve() -> Convolve | None:
    """The fused convolution for GPUs, tried before use; None, with a warning, where Triton cannot build it."""
    try:
        return _tried_convolve()
    except Exception as error:  # no Triton, no C compiler, a GPU it does not know, ...
        warnings.warn(f"running without fused convolutions: {first_line(error)}", stacklevel=2)
        return None


@lru_cache
def _tried_convolve() -> Convolve:
    from recarc.fast.kernels import convolve

    x = torch.ones(1, 16, 4, 4, dtype=torch.float16, device="cuda")
    taps = torch.full((9, 16, 16), 0.25, dtype=torch.float16, device="cuda")
    if float(convolve(x, taps, 1)[0, 0, 1, 1]) != 36.0:
        raise RuntimeError("the kernel computes something else")
    return convolve


class _FullLinear(nn.Module):
    """A linear layer that leaves half precision: logits that are rounded tie, and ties decide predictions."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight, self.bias)


def _with_full_logits(body: nn.Module) -> nn.Module:
    if isinstance(body, nn.Linear):
        return _FullLinear(body)
    for name, module in list(body.named_modules()):
        if isinstance(module, nn.Linear):
            body.set_submodule(name, _FullLinear(module))
    return body
