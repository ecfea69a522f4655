"""What is evaluated: an image set, or tensors, arrays, a torch data set or loader wrapped to look like one."""

from __future__ import annotations

import hashlib
import warnings
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, default_collate

from recarc.errors import InputError
from recarc.geometry import Ball
from recarc.inputs import check_finite, check_scale, check_x, check_y

PROBED = 32  # items of a torch data set that go into its fingerprint


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
        check_x(x)
        check_y(y, x)
        self.x, self.y = x.detach(), y.detach().long()

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        return self.x[indices], self.y[indices]

    @cached_property
    def fingerprint(self) -> str:
        return tensor_hash(self.x, self.y)

    def check(self, ball: Ball) -> None:
        """Check all inputs at once, since they are in memory: finite, and inside the ball's box."""
        check_finite(self.x)
        check_scale(self.x, ball.box)
        ball.check(self.x)


class DatasetSamples:
    """A map-style data set of items (x, y), x a floating-point tensor or array, y a whole number."""

    def __init__(self, dataset: Any) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise InputError(f"data is a {type(dataset).__name__} without random access; use a map-style Dataset")
        self.dataset = dataset
        self.name = type(dataset).__name__
        if len(dataset):
            first, again = self._item(0), self._item(0)
            if not (torch.equal(first[0], again[0]) and first[1] == again[1]):
                raise InputError(f"item 0 of the {self.name} differs between two reads; remove its random transforms")

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: Any) -> tuple[Tensor, Tensor]:
        items = [self._item(int(i)) for i in np.asarray(indices)]
        shapes = {tuple(x.shape) for x, _ in items}
        if len(shapes) > 1:
            raise InputError(f"items of the {self.name} have different shapes: {sorted(shapes)[:2]}; resize them")
        return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items], dtype=torch.long)

    @cached_property
    def fingerprint(self) -> str:
        """Of the number of items and some of them, evenly spread: reading all would cost as much as an epoch."""
        indices = np.unique(np.linspace(0, len(self) - 1, PROBED).astype(int))
        digest = hashlib.sha256(f"{len(self)} {indices.tolist()}".encode())
        for x, y in (self._item(int(i)) for i in indices):
            digest.update(f"{tensor_hash(x)} {y}".encode())
        return digest.hexdigest()

    def _item(self, i: int) -> tuple[Tensor, int]:
        item = self.dataset[i]
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise InputError(f"item {i} of the {self.name} is a {type(item).__name__}; expected a pair (x, y)")
        x, y = (torch.as_tensor(part) if isinstance(part, np.ndarray) else part for part in item)
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"x of item {i} of the {self.name} is {kind}; expected floats: add ToTensor()")
        try:
            return x.detach(), int(y.__index__())
        except (AttributeError, TypeError):
            raise InputError(f"y of item {i} of the {self.name} is {y!r:.40}; expected an integer label") from None


def from_torch(data: Dataset[Any] | DataLoader[Any]) -> DatasetSamples:
    """A data set, or that of a loader that reads it in order and only stacks items."""
    if not isinstance(data, DataLoader):
        return DatasetSamples(data)
    batches = data.batch_sampler
    if not isinstance(data.sampler, SequentialSampler) or type(batches) not in (BatchSampler, type(None)):
        raise InputError("the DataLoader shuffles or samples; pass one with shuffle=False, or its dataset")
    if batches is not None and data.collate_fn is not default_collate:
        raise InputError("the DataLoader has its own collate_fn; do that work in the data set, and pass the set")
    return DatasetSamples(data.dataset)


def as_samples(data: Any) -> Samples:
    """An image set as it is; a pair (x, y), a torch data set or a loader, wrapped."""
    if isinstance(data, (tuple, list)) and len(data) == 2:
        data = TensorSamples(*data)
    elif isinstance(data, (Dataset, DataLoader)) and not hasattr(data, "fingerprint"):
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
    """Arrays as tensors that share their memory, including one that is mapped read-only from a file."""
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
