"""The weights of a callable that is affine, whatever it is made of."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from recarc.ensemble import Member
from recarc.errors import InputError

PROBES = 4  # random points at which f(x) = W x + b is verified


def affine_parameters(member: Member, x: Tensor) -> tuple[Tensor, Tensor]:
    """W (C, D) and b (C,) in float64 with member(x) = W x.flatten(1) + b, for inputs shaped like x (B, ...).

    b = f(0) and W is the Jacobian there, taken in float64 on a copy of the member in evaluation mode, or in the
    dtype of x where a callable knows no other. The member itself is neither changed nor differentiated. Raises
    InputError where f is not affine at random points.
    """
    failure: RuntimeError | None = None
    for dtype in dict.fromkeys((torch.float64, x.dtype)):
        try:
            with torch.inference_mode(False), torch.enable_grad():
                return _linearised(_twin(member, dtype), x.new_zeros((1, *x.shape[1:]), dtype=dtype))
        except RuntimeError as error:  # mixed dtypes
            failure = failure or error
    assert failure is not None
    raise failure


def _twin(member: Member, dtype: torch.dtype) -> Member:
    return copy.deepcopy(member).to(dtype).eval() if isinstance(member, nn.Module) else member


def _linearised(f: Member, origin: Tensor) -> tuple[Tensor, Tensor]:
    origin.requires_grad_()
    out = f(origin)
    if out.dim() != 2 or len(out) != 1:
        raise InputError(f"it maps {tuple(origin.shape)} to {tuple(out.shape)}; expected logits (B, classes)")
    rows = [_gradient(logit, origin) for logit in out[0]]
    w, b = torch.stack(rows).flatten(1).double(), out[0].detach().double()

    generator = torch.Generator().manual_seed(0)
    probes = torch.randn((PROBES, *origin.shape[1:]), generator=generator, dtype=torch.float64).to(origin)
    flat = probes.flatten(1).double()
    with torch.no_grad():
        error = (f(probes).double() - (flat @ w.T + b)).abs()
    allowed = math.sqrt(torch.finfo(out.dtype).eps) * (flat.abs() @ w.abs().T + b.abs())
    if not bool((error <= allowed).all()):
        raise InputError(
            f"it is not affine (off by {float(error.max()):.3g} at a random point) or hides its gradient; "
            "exact optima need linear members, e.g. nn.Linear(D, C)"
        )
    return w, b


def _gradient(logit: Tensor, origin: Tensor) -> Tensor:
    if not logit.requires_grad:
        return torch.zeros_like(origin)[0]
    (gradient,) = torch.autograd.grad(logit, origin, retain_graph=True, allow_unused=True)
    return torch.zeros_like(origin)[0] if gradient is None else gradient[0]
