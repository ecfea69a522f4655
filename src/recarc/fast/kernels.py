"""The convolution of `fuse.FusedBlock` on GPUs: one Triton kernel for few channels, the library's for many.

The kernels of libraries are made for many channels and leave most of a GPU idle on the 16 of a ResNet-20. Images lie in
memory pixel by pixel (channels_last). A program computes all channels of BLOCK pixels as a sum of products over the
taps; neighbouring taps read neighbouring memory, so all but the first are served by the cache.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 128, 4  # pixels per program, and the warps that share them
LARGEST = 65504.0  # the largest float16 number
_noted: dict[tuple[Any, ...], tuple[Any, ...]] | None = None  # within `compile_ahead`: noted instead of launched


@triton.jit
def _convolve_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    add,
    mask,
    out,
    pixels,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SIZE: tl.constexpr,
    STRIDE: tl.constexpr,
    BACK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_ADD: tl.constexpr,
    HAS_MASK: tl.constexpr,
    RELU: tl.constexpr,
    CLAMPED: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = pixel % OUT_WIDTH
    row = (pixel // OUT_WIDTH) % OUT_HEIGHT
    image = pixel // (OUT_WIDTH * OUT_HEIGHT)
    inside = pixel < pixels
    channel = tl.arange(0, BLOCK_INPUTS)
    out_channel = tl.arange(0, BLOCK_OUTPUTS)
    valid_in = channel < INPUTS
    valid_out = out_channel < OUTPUTS
    total = tl.zeros((BLOCK, BLOCK_OUTPUTS), tl.float32)
    for r in tl.static_range(SIZE):
        for s in tl.static_range(SIZE):
            if BACK:  # x[i] was made from out[STRIDE * i + tap]
                i = row + SIZE // 2 - r
                j = column + SIZE // 2 - s
                in_image = (i >= 0) & (j >= 0) & (i % STRIDE == 0) & (j % STRIDE == 0)
                i = i // STRIDE
                j = j // STRIDE
                in_image = in_image & (i < HEIGHT) & (j < WIDTH) & inside
            else:
                i = row * STRIDE + r - SIZE // 2
                j = column * STRIDE + s - SIZE // 2
                in_image = (i >= 0) & (j >= 0) & (i < HEIGHT) & (j < WIDTH) & inside
            at = ((image * HEIGHT + i) * WIDTH + j).to(tl.int64) * INPUTS
            part = tl.load(x + at[:, None] + channel[None, :], mask=in_image[:, None] & valid_in[None, :], other=0.0)
            taps = weight + (r * SIZE + s) * INPUTS * OUTPUTS
            kernel = tl.load(
                taps + channel[:, None] * OUTPUTS + out_channel[None, :],
                mask=valid_in[:, None] & valid_out[None, :],
                other=0.0,
            )
            total = tl.dot(part, kernel, total)
    place = pixel.to(tl.int64)[:, None] * OUTPUTS + out_channel[None, :]
    valid = inside[:, None] & valid_out[None, :]
    if HAS_BIAS:
        total += tl.load(bias + out_channel, mask=valid_out, other=0.0)[None, :]
    if HAS_ADD:
        total += tl.load(add + place, mask=valid, other=0.0).to(tl.float32)
    if HAS_MASK:
        total = tl.where(tl.load(mask + place, mask=valid, other=0.0) > 0, total, 0.0)
    if RELU:
        total = tl.where(total < 0, 0.0, total)  # NaN stays NaN
    if CLAMPED:
        total = tl.where(total > LARGEST, LARGEST, tl.where(total < -LARGEST, -LARGEST, total))
    tl.store(out + place, total.to(out.dtype.element_ty), mask=valid)


def convolve(
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
    """`fuse.plain_convolve`; our kernel clamps activations too large for float16 to its largest number."""
    if taps.dim() == 4:
        return _by_library(x, taps, stride, bias, add, mask, relu, back_to, dtype or x.dtype)
    inputs, outputs = taps.shape[1:]
    height, width = x.shape[2:]
    shape = back_to or (-(-height // stride), -(-width // stride))
    out = torch.empty(
        (len(x), outputs, *shape), dtype=dtype or x.dtype, device=x.device, memory_format=torch.channels_last
    )
    pixels = len(x) * shape[0] * shape[1]
    if not pixels:
        return out
    arguments = (
        _channels_last(x),
        taps,
        x if bias is None else bias,
        x if add is None else _channels_last(add),
        x if mask is None else _channels_last(mask),
        out,
        pixels,
        height,
        width,
        *shape,
        inputs,
        outputs,
        math.isqrt(len(taps)),
        stride,
        back_to is not None,
        bias is not None,
        add is not None,
        mask is not None,
        relu,
        out.dtype == torch.float16,
        LARGEST,
        BLOCK,
        max(16, triton.next_power_of_2(inputs)),
        max(16, triton.next_power_of_2(outputs)),
    )
    if _noted is not None:
        key = (*(t.dtype for t in arguments[:6]), *arguments[7:])
        _noted[key] = arguments
        return out
    with torch.cuda.device_of(x):
        _convolve_kernel[(triton.cdiv(pixels, BLOCK),)](*arguments, num_warps=WARPS)
    return out


def compile_ahead(run: Callable[[], object]) -> None:
    """Compile the kernels that `run` launches, as many at a time as there are cores: one by one takes much longer."""
    global _noted
    _noted = {}
    try:
        run()
        wanted = list(_noted.values())
    finally:
        _noted = None

    def build(arguments: tuple[Any, ...]) -> None:
        with torch.cuda.device_of(arguments[0]):
            _convolve_kernel.warmup(*arguments, grid=(1,), num_warps=WARPS)

    with ThreadPoolExecutor(min(len(wanted), os.cpu_count() or 1) or 1) as pool:
        list(pool.map(build, wanted))


def _by_library(
    x: Tensor,
    weight: Tensor,
    stride: int,
    bias: Tensor | None,
    add: Tensor | None,
    mask: Tensor | None,
    relu: bool,
    back_to: tuple[int, int] | None,
    dtype: torch.dtype,
) -> Tensor:
    size, places = weight.shape[-1], (stride, stride)
    if back_to is not None:
        rest = [n - ((m - 1) * stride + size - 2 * (size // 2)) for n, m in zip(back_to, x.shape[2:])]
        out = torch.conv_transpose2d(x, weight, stride=stride, padding=size // 2, output_padding=rest)
        out = out if add is None else out + add
        return out if mask is None else torch.ops.aten.threshold_backward(out, mask, 0)
    geometry = (places, (size // 2, size // 2), (1, 1), 1)  # stride, padding, dilation, groups
    if not relu:
        out = torch.conv2d(x, weight, bias, places, size // 2)
        out = out if add is None else out + add
    elif add is None:
        out = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, *geometry)
    else:
        out = torch.ops.aten.cudnn_convolution_add_relu(x, weight, _channels_last(add), 1.0, bias, *geometry)
    return out.to(dtype)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
