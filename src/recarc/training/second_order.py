"""Convolutions whose second derivatives are convolutions of the same size.

A convolution y = w * x has two gradients, and all three are bilinear: y in (x, w), the gradient in x in (g, w), that in
w in (x, g). So the derivatives of each are again the other two. PyTorch instead computes the second derivative in the
weights as a convolution with the images of the batch as channels and kernels as large as an image, which is slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
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


class second_order(TorchFunctionMode):
    """Inside, `torch.conv2d` is one that is cheap to differentiate twice. Other functions are left alone."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.conv2d:
            return _convolved(*args, **(kwargs or {}))
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


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)
