"""File formats that image sets come in, one per file of this folder.

A format is a subclass of `Format` with the decorator `@register`. `load`, `recarc data` and the errors that say what
to put where follow from the class.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import math
import os
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from recarc.atomic import read_plain
from recarc.data.catalog import Spec
from recarc.data.imageset import Reader
from recarc.errors import InputError

Block = tuple[np.ndarray, np.ndarray]  # images (n, C, H, W) uint8, labels (n,) int64
BLOCK = 1000  # images per block
MOST_BYTES = 2**29  # that a compressed file may unpack to, or 16 times its own size
MOST_CLASSES = 2**15  # records keep labels in 16 bits


class Format(ABC):
    """The files of one split. Creating one looks at names only; files are read by the methods."""

    preference: ClassVar[int] = 1  # lower is tried first if a set is present in several formats
    file_per_image: ClassVar[bool] = False  # many files to look at, each of which can be broken

    @classmethod
    @abstractmethod
    def layout(cls, spec: Spec) -> str:
        """What to put into the folder of this set, as errors say it; "" if it does not come in this format."""

    @classmethod
    @abstractmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Format | None:
        """The files of a split in a folder (or file), if there are any. Without `spec`: of a set without a name."""

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """Every file that the contents depend on."""

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """The decoded images and their labels, in order, some at a time."""

    @property
    def where(self) -> str:
        """The location, as results and errors name it."""
        return str(self.files()[0])

    def class_names(self) -> tuple[str, ...] | None:
        """The class names stored with the images, if any."""
        return None

    def reader(self) -> tuple[Reader, np.ndarray] | None:
        """For images too large to be decoded into the cache: random access and all labels."""
        return None

    def broken(self) -> list[str]:
        """One line for each image that cannot be decoded, for a format with a file per image."""
        return []

    def key(self) -> str:
        """A hash of the files' paths, sizes and modification times."""
        digest = hashlib.sha256()
        for path in self.files():
            stat = path.stat()
            digest.update(os.fsencode(path.absolute()) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def unpacked(path: Path) -> io.BytesIO:
    """A plain or gzipped file in memory; refused with an OSError where a few bytes unpack to a great many."""
    raw = read_plain(path)
    if not raw.startswith(b"\x1f\x8b"):
        return io.BytesIO(raw)
    most = max(MOST_BYTES, 16 * len(raw))
    with gzip.open(io.BytesIO(raw)) as file:
        out = io.BytesIO()
        while part := file.read(2**20):
            out.write(part)
            if out.tell() > most:
                raise OSError(f"{len(raw)} bytes unpack to more than {most}")
    out.seek(0)
    return out


F = TypeVar("F", bound=type[Format])
_registered: list[type[Format]] = []


def register(kind: F) -> F:
    """Class decorator: make a format known to `load` and `recarc data`."""
    _registered.append(kind)
    return kind


@cache
def _import_formats() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def known_formats() -> list[type[Format]]:
    """Every registered format, in the order in which they are tried."""
    _import_formats()
    return sorted(_registered, key=lambda kind: kind.preference)


def layouts(spec: Spec) -> str:
    """What to put into the folder of a set: the alternatives, one for each of its formats."""
    return ", or ".join(layout for kind in known_formats() if (layout := kind.layout(spec)))


def block_size(shape: tuple[int, int, int]) -> int:
    """How many decoded images of this shape to hold at once."""
    return max(1, min(BLOCK, 2**28 // math.prod(shape)))


def in_blocks(images: np.ndarray, labels: np.ndarray) -> Iterator[Block]:
    """Images (N, C, H, W) and labels (N,) that are in memory already."""
    for start in range(0, len(labels), BLOCK):
        part = slice(start, start + BLOCK)
        yield images[part], labels[part].astype(np.int64)


def whole_labels(values: np.ndarray, where: str) -> np.ndarray:
    """Labels (N,) int64; refuses fractions, gaps and text rather than rounding them."""
    if values.dtype.kind not in "iub" and not (values.dtype.kind == "f" and bool((values == np.floor(values)).all())):
        raise InputError(f"{where} does not hold integers; expected class indices")
    if values.size and not -(2**31) <= float(values.min()) <= float(values.max()) < 2**31:
        raise InputError(f"{where} holds the label {values.max()}; expected 0..{MOST_CLASSES - 1}")
    return values.astype(np.int64)


def check_labels(labels: np.ndarray, classes: int, where: str, first: int = 0) -> None:
    """Labels must lie in 0..classes-1, and below the most classes that records hold."""
    classes = min(classes, MOST_CLASSES)
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if bad.size:
        raise InputError(
            f"label {int(labels[bad[0]])} of image {first + int(bad[0])} in {where} is out of range; "
            f"expected 0..{classes - 1}: is it another data set, or a split without labels?"
        )
