"""What is evaluated: an image set, or tensors, arrays, a torch data set or loader that look like one."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from recarc.errors import InputError
from recarc.geometry import Ball


class Samples(Protocol):
    """Random access to inputs and labels, as `recarc.data.ImageSet` gives it."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]: ...


class TensorSamples:
    """(x, y) tensors or arrays as samples."""

    name = "tensors"

    def __init__(self, x: Tensor, y: Tensor) -> None:
        x, y = _tensor(x), _tensor(y)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise InputError(f"data is ({type(x).__name__}, {type(y).__name__}); expected two tensors (x, y)")
        if not x.is_floating_point():
            raise InputError(f"x is {x.dtype}; expected a floating-point tensor, 8-bit images divided by 255")
        if x.dim() < 2:
            raise InputError(f"x has shape {tuple(x.shape)}; expected a leading batch, e.g. (B, C, H, W) or (B, D)")
        if y.is_floating_point() or y.dtype == torch.bool or y.is_complex():
            raise InputError(f"y is {y.dtype}; expected a tensor of integer labels")
        if y.shape != x.shape[:1]:
            raise InputError(f"x has {len(x)} samples and y has shape {tuple(y.shape)}; expected one label a sample")
        self.x, self.y = x.detach(), y.detach().long()

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        return self.x[indices], self.y[indices]

    @property
    def fingerprint(self) -> str:
        return tensor_hash(self.x, self.y)

    def check(self, ball: Ball) -> None:
        """All inputs at once, since they are at hand: finite, and inside the ball's box."""
        bad = (~torch.isfinite(self.x.flatten(1)).all(1)).nonzero()
        if len(bad):
            raise InputError(f"x holds NaN or infinity in sample {int(bad[0])}")
        ball.check(self.x)


def as_samples(data: Any) -> Samples:
    """An image set as it is; a pair (x, y), a torch data set or a loader wrapped."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        data = TensorSamples(*data)
    elif isinstance(data, (Dataset, DataLoader)) and not hasattr(data, "fingerprint"):
        from recarc.evaluation.datasets import from_torch

        data = from_torch(data)
    if not hasattr(data, "batch") or not hasattr(data, "fingerprint"):
        raise InputError(
            f"data is a {type(data).__name__}; expected recarc.data.load(...), a pair (x, y) of tensors or arrays, "
            "a torch Dataset or a DataLoader that does not shuffle"
        )
    if len(data) == 0:
        raise InputError("data holds no samples")
    return data


def _tensor(value: Any) -> Any:
    """Arrays as tensors that share their memory, also one that is mapped from a file and cannot be written."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(np.ascontiguousarray(value))


def tensor_hash(*tensors: Tensor) -> str:
    """SHA-256 of dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
        flat = dense.cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()
