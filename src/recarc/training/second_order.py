"""Layers that are cheap to differentiate twice: convolutions, batch norm in training, ReLU.

A convolution y = w * x has two gradients, and all three are bilinear: y in (x, w), the gradient in x in (g, w), that in
w in (x, g). So the derivatives of each are again the other two. PyTorch instead computes the second derivative in the
weights as a convolution with the images of the batch as channels and kernels as large as an image, which is slow.

PyTorch composes the second derivative of batch norm from dozens of small operations. Here it is one formula, most of
which is a first derivative again. Of a ReLU it computes one that is always zero, and goes on to add that up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

# Per process, not per thread: the backward pass of a GPU runs in its own thread. So only one thread at a time may train
# a method that takes second derivatives.
_inputs_only = False


@contextmanager
def inputs_only() -> Iterator[None]:
    """For a backward pass that needs input gradients only: skips the weight gradients of `second_order` convolutions.

    The graph it creates is complete: later passes get every gradient.
    """
    global _inputs_only
    before, _inputs_only = _inputs_only, True
    try:
        yield
    finally:
        _inputs_only = before


class Shape(NamedTuple):
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def back(self, g: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        none = [0] * len(self.padding)
        return torch.ops.aten.convolution_backward(
            g, x, w, None, self.stride, self.padding, self.dilation, False, none, self.groups, wanted
        )


class _Output(Function):
    """y as a function of (x, w)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, shape: Shape) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.shape = shape
        return torch.conv2d(x, w, None, *shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1] and not _inputs_only  # the former is fixed by the forward pass
        in_x = _InputGradient.apply(g, w, x, ctx.shape) if ctx.needs_input_grad[0] else None
        in_w = _WeightGradient.apply(x, g, w, ctx.shape) if wanted else None
        return in_x, in_w, None


class _InputGradient(Function):
    """The gradient in x as a function of (g, w); of x only the shape matters."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, w: Tensor, x: Tensor, shape: Shape) -> Tensor:
        ctx.save_for_backward(g, w)
        ctx.shape = shape
        return shape.back(g, x, w, (True, False, False))[0]

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        in_g = _Output.apply(gg, w, ctx.shape) if ctx.needs_input_grad[0] else None
        in_w = _WeightGradient.apply(gg, g, w, ctx.shape) if ctx.needs_input_grad[1] else None
        return in_g, in_w, None, None


class _WeightGradient(Function):
    """The gradient in w as a function of (x, g); of w only the shape matters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, g: Tensor, w: Tensor, shape: Shape) -> Tensor:
        ctx.save_for_backward(x, g)
        ctx.shape = shape
        return shape.back(g, x, w, (False, True, False))[1]

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        x, g = ctx.saved_tensors
        in_x = _InputGradient.apply(g, gg, x, ctx.shape) if ctx.needs_input_grad[0] else None
        in_g = _Output.apply(x, gg, ctx.shape) if ctx.needs_input_grad[1] else None
        return in_x, in_g, None, None


class _Normalized(Function):
    """Batch norm in training, y = gamma x_hat + beta, as a function of (x, gamma, beta)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, norm: Norm) -> Tensor:
        y, mean, inverse = torch.ops.aten.native_batch_norm(
            x, gamma, beta, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps
        )
        ctx.save_for_backward(x, gamma, mean, inverse)
        ctx.norm = norm
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return *_NormalizedGradient.apply(g, *ctx.saved_tensors, ctx.norm), None


class _NormalizedGradient(Function):
    """Its gradients as functions of (g, x, gamma): with s = 1 / sqrt(var + eps), means over all but the channels,

        in x      gamma s (g - mean g - x_hat mean(g x_hat))
        in gamma  sum(g x_hat),    in beta  sum g.

    Only the first is differentiated again. With v in its place, f = <v, gradient in x> has the derivatives below.
    """

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor, norm: Norm
    ) -> tuple[Tensor, ...]:
        found = norm.back(g, x, gamma, mean, inverse)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, x, gamma, mean, inverse, *found[1:])
        ctx.norm = norm
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        if any(other is not None for other in others):
            raise RuntimeError("the weight gradients of a batch norm cannot be differentiated again here")
        if v is None:
            return (None,) * 6
        g, x, gamma, mean, s, g_x_hat, g_sum = ctx.saved_tensors
        in_g, v_x_hat, v_sum = ctx.norm.back(v, x, gamma, mean, s)
        n = x.numel() / len(gamma)
        a, b, c, d = torch.stack([g_sum, g_x_hat, v_x_hat, v_sum]) / n  # mean g, mean(g x_hat), mean(v x_hat), mean v
        zero = torch.zeros_like(mean)[:, None, None]  # in the precision of the means
        r, bc = torch.addcmul(zero, v, g).mean((0, 2, 3)).addcmul_(a, d, value=-1), b * c
        in_gamma = n * s * (r - bc)
        # -gamma s^2 (b (v - d) + c (g - a) + x_hat (r - 3 b c)), with x_hat = (x - mean) s
        k = s * torch.sub(r, bc, alpha=3)
        rest = (k * mean).addcmul_(b, d).addcmul_(c, a)
        b, c, k, rest = (gamma * s * s * torch.stack([b, c, k, rest]))[:, :, None, None]
        in_x = torch.addcmul(rest, b, v, value=-1).addcmul_(c, g, value=-1).addcmul_(k, x, value=-1)
        return in_g, in_x.to(x.dtype), in_gamma, None, None, None


class Norm(NamedTuple):
    running_mean: Tensor | None
    running_var: Tensor | None
    momentum: float
    eps: float

    def back(self, g: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.aten.native_batch_norm_backward(
            g, x, gamma, self.running_mean, self.running_var, mean, inverse, True, self.eps, (True, True, True)
        )


class _Rectified(Function):
    """relu(x). Its gradient, g where y > 0, is linear in g and does not vary with x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.relu(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _Masked.apply(g, *ctx.saved_tensors)


class _Masked(Function):
    """g where y > 0, as a function of g."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return torch.ops.aten.threshold_backward(g, y, 0)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor, None]:
        return _Masked.apply(gg, *ctx.saved_tensors), None


class second_order(TorchFunctionMode):
    """Inside, layers are cheap to differentiate twice. Other functions are left alone."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in INSTEAD:
            return INSTEAD[func](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _convolved(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | str | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    kind = input.device.type
    if torch.is_autocast_enabled(kind):
        input, weight = (t.to(torch.get_autocast_dtype(kind)) for t in (input, weight))
    y: Tensor = _Output.apply(input, weight, Shape(_pair(stride), _pair(padding), _pair(dilation), groups))
    return y if bias is None else y + bias.to(y.dtype)[:, None, None]


def _normalized(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    usual = training and input.dim() == 4 and input.numel() > input.shape[1]  # more than one value per channel
    if not usual or weight is None or bias is None or not (weight.is_leaf and bias.is_leaf):
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    y: Tensor = _Normalized.apply(input, weight, bias, Norm(running_mean, running_var, momentum, eps))
    return y


def _rectified(input: Tensor, inplace: bool = False) -> Tensor:
    y: Tensor = F.relu(input, inplace) if inplace else _Rectified.apply(input)
    return y


INSTEAD: dict[Callable[..., Any], Callable[..., Tensor]] = {
    torch.conv2d: _convolved,
    F.batch_norm: _normalized,
    F.relu: _rectified,
}


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
