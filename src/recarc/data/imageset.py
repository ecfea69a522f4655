"""An image set: stored pixels (or large images, decoded on demand), labels, class names and a fingerprint."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from recarc.data.decode import CROP, cropped
from recarc.errors import InputError

if TYPE_CHECKING:
    import torch

STREAM_LIMIT = 4 * 2**30  # bytes of float32 above which a streamed set is not turned into one tensor
THREADS = min(8, os.cpu_count() or 1)  # Pillow releases the interpreter lock while it decodes
Indices = Any  # an int, a slice, or a sequence, array or tensor of ints


class Reader(Protocol):
    """Random access to encoded images."""

    def identity(self) -> str:
        """A hash of the contents of the files, independent of their times and paths, without reading all of them."""

    def read(self, rows: np.ndarray) -> list[tuple[bytes, str]]:
        """Encoded bytes and a name for errors, in the order of `rows`."""

    def __len__(self) -> int:
        """Number of images."""


class StreamedImages:
    """Behaves like a uint8 array (N, 3, 224, 224); indexing reads and decodes just the images asked for."""

    dtype = np.dtype(np.uint8)

    def __init__(self, reader: Reader, rows: np.ndarray | None = None) -> None:
        self.reader = reader
        self.rows = np.arange(len(reader)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return len(self.rows), 3, CROP, CROP

    def take(self, positions: np.ndarray) -> StreamedImages:
        """The images at these positions, still not decoded."""
        return StreamedImages(self.reader, self.rows[positions])

    def identity(self) -> str:
        """A hash of the files and of which of their images these are."""
        rows = np.ascontiguousarray(self.rows, dtype="<i8").tobytes()
        return hashlib.sha256(self.reader.identity().encode() + rows).hexdigest()

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = np.atleast_1d(self.rows[index])
        out = np.empty((len(rows), *self.shape[1:]), dtype=np.uint8)
        encoded = self.reader.read(rows)
        if len(encoded) < 4 or THREADS == 1:
            for i, (data, name) in enumerate(encoded):
                out[i] = cropped(data, name)
        else:
            with ThreadPoolExecutor(THREADS) as pool:
                for i, planes in enumerate(pool.map(lambda item: cropped(*item), encoded)):
                    out[i] = planes
        return out[0] if np.ndim(index) == 0 and not isinstance(index, slice) else out


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images as stored and their labels.

    `images` is (N, C, H, W) uint8: a memory-mapped array, or a `StreamedImages` that decodes on demand. The value
    that means 1.0 is `levels` (255; 16 for `digits`), so `batch` is exact: stored value / levels in float32.
    `fingerprint` depends only on pixels, labels and their order: equal contents from two sources share it.
    """

    name: str
    split: str
    images: np.ndarray | StreamedImages
    labels: np.ndarray
    classes: tuple[str, ...]
    fingerprint: str
    source: str = ""
    levels: int = 255

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(str(n) for n in self.shape)
        return f"ImageSet({self.name} {self.split}: {len(self)} images {shape}, {len(self.classes)} classes)"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def streamed(self) -> bool:
        """Whether images are decoded on demand, so that the set is never in memory as a whole."""
        return isinstance(self.images, StreamedImages)

    def batch(self, indices: Indices) -> tuple[torch.Tensor, torch.Tensor]:
        """Images (B, C, H, W) float32 in [0, 1] and labels (B,) int64 at these positions."""
        import torch

        rows = self._rows(indices)
        x = torch.from_numpy(np.asarray(self.images[rows])).float().div_(self.levels)
        return x, torch.from_numpy(self.labels[rows].astype(np.int64))

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole set, as `batch` returns it."""
        self._refuse_if_huge(4)
        return self.batch(slice(None))

    def uint8(self) -> torch.Tensor:
        """The stored pixels (N, C, H, W) uint8, to keep on a device; divide by `levels` for [0, 1]."""
        import torch

        self._refuse_if_huge(1)
        return torch.from_numpy(np.array(self.images[:], order="C"))

    def subset(self, indices: Indices) -> ImageSet:
        """The images at these positions, in this order. A slice of a memory-mapped set stays mapped."""
        images: np.ndarray | StreamedImages
        rows = self._rows(indices)
        if isinstance(self.images, StreamedImages):
            images = self.images.take(rows)
        elif isinstance(indices, slice):
            images = self.images[indices]
        else:
            images = self.images[rows]
        labels = self.labels[rows]
        return replace(self, images=images, labels=labels, fingerprint=fingerprint(images, labels, self.levels))

    def limit(self, count: int | None) -> ImageSet:
        """The first `count` images (all of them if there are fewer, or if `count` is None)."""
        if count is None:
            return self
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise InputError(f"limit is {count!r}; expected an integer, at least 1")
        return self if count >= len(self) else self.subset(slice(0, int(count)))

    def _rows(self, indices: Indices) -> np.ndarray:
        count = len(self)
        if isinstance(indices, slice):
            return np.arange(count)[indices]
        rows = np.atleast_1d(np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices))
        if rows.size == 0:
            return np.zeros(0, dtype=np.int64)
        if rows.dtype.kind not in "iu" or rows.ndim != 1:
            raise InputError(
                f"indices of type {rows.dtype} and shape {rows.shape}; expected a one-dimensional sequence of integers"
            )
        outside = rows[(rows < -count) | (rows >= count)]
        if outside.size:
            raise InputError(f"index {int(outside[0])} is outside {self.name} {self.split}, which has {count} images")
        return np.where(rows < 0, rows + count, rows).astype(np.int64)

    def _refuse_if_huge(self, bytes_per_value: int) -> None:
        size = math.prod(self.images.shape) * bytes_per_value
        if self.streamed and size > STREAM_LIMIT:
            raise InputError(
                f"{self.name} {self.split} as one tensor takes {size / 2**30:.0f} GiB; use batch(indices) or a limit"
            )


def content_hash(images: np.ndarray, labels: np.ndarray) -> str:
    """SHA-256 of the pixels followed by the labels (int64, little endian): what the cache file contains."""
    digest = hashlib.sha256()
    step = max(1, 2**24 // max(1, math.prod(images.shape[1:])))
    for start in range(0, len(images), step):
        digest.update(np.ascontiguousarray(images[start : start + step]).data)
    digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


def seal(content: str, shape: Sequence[int], levels: int) -> str:
    """The fingerprint of contents with this hash."""
    return hashlib.sha256(f"{content} {'x'.join(str(n) for n in shape)} {levels}".encode()).hexdigest()


def fingerprint(images: np.ndarray | StreamedImages, labels: np.ndarray, levels: int) -> str:
    """A hash of pixels, labels and order; for a streamed set, of the identity of its files instead of the pixels."""
    if isinstance(images, StreamedImages):
        content = hashlib.sha256(images.identity().encode() + np.ascontiguousarray(labels, "<i8").tobytes()).hexdigest()
    else:
        content = content_hash(images, labels)
    return seal(content, images.shape, levels)
