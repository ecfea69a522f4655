"""Images that are decoded when they are asked for: ImageNet, and folders of large images."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from recarc.data.decode import CROP, cropped

THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes outside the interpreter lock


class Reader(Protocol):
    """Random access to encoded images."""

    def identity(self) -> str:
        """A hash of what the files hold, taken without reading all of it and without times or where they lie."""

    def read(self, rows: np.ndarray) -> list[tuple[bytes, str]]:
        """Encoded bytes and a name to put into an error, in the order of `rows`."""

    def __len__(self) -> int:
        """Number of images."""


class StreamedImages:
    """Looks like a uint8 array (N, 3, 224, 224); indexing reads and decodes just those images."""

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
        """The same images at these positions only, still undecoded."""
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
