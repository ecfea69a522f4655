"""Where the images of one split come from, before they are decoded."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from recarc.data.streaming import Reader
from recarc.errors import InputError

Block = tuple[np.ndarray, np.ndarray]  # images (n, C, H, W) uint8, labels (n,) int64
BLOCK = 1000  # images a block


class Source(ABC):
    """Files that hold one split. Making one touches names only; reading happens in the methods."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, as results and errors say it."""

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Every file that the contents depend on."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """The decoded images, some at a time, in order."""

    def class_names(self) -> tuple[str, ...] | None:
        """Class names found beside the images, if any."""
        return None

    def reader(self) -> tuple[Reader, np.ndarray] | None:
        """For images too large to be decoded into the cache: random access and all labels."""
        return None

    def broken(self) -> list[str]:
        """One line for every image that does not decode."""
        try:
            for _ in self.blocks():
                pass
        except InputError as error:
            return [str(error)]
        return []

    def key(self) -> str:
        """A hash of the files' paths, sizes and times of change."""
        digest = hashlib.sha256()
        for path in self.files():
            stat = path.stat()
            digest.update(f"{path.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def check_labels(labels: np.ndarray, classes: int, where: str, first: int = 0) -> None:
    """Labels must lie in 0..classes-1."""
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        raise InputError(
            f"label {int(labels[bad[0]])} of image {first + int(bad[0])} in {where} is out of range; "
            f"expected 0..{classes - 1}: is it another data set, or a split without labels?"
        )
