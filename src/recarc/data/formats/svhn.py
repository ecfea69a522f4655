"""SVHN's official cropped-digit files: train_32x32.mat, test_32x32.mat, extra_32x32.mat."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recarc.atomic import read_plain
from recarc.data.catalog import Spec
from recarc.data.formats import MOST_BYTES, Block, Format, in_blocks, register, whole_labels
from recarc.errors import InputError, first_line

HEADER, COMPRESSED = 128, 15  # of a .mat file: bytes before the first element, the kind of a compressed one


@register
@dataclass(frozen=True)
class Svhn(Format):
    """One .mat file with X (32, 32, 3, N) and y (N, 1), where label 10 means the digit 0."""

    path: Path

    @classmethod
    def layout(cls, spec: Spec) -> str:
        return " and ".join(f"{split}_32x32.mat" for split in spec.usual_splits) if spec.name == "svhn" else ""

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Svhn | None:
        path = root / f"{split}_32x32.mat"
        return cls(path) if spec is not None and spec.name == "svhn" and path.is_file() else None

    def files(self) -> Sequence[Path]:
        return (self.path,)

    def blocks(self) -> Iterator[Block]:
        import scipy.io

        try:
            raw = read_plain(self.path)
            _check_sizes(raw)
            content = scipy.io.loadmat(io.BytesIO(raw), variable_names=["X", "y"])
            images, labels = content["X"], np.asarray(content["y"]).reshape(-1)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(f"cannot read {self.path}: {reason}; truncated or not SVHN's file, get it again") from None
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
            raise InputError(
                f"{self.path} holds {images.dtype} X of shape {images.shape} and {len(labels)} labels; "
                f"expected uint8 (32, 32, 3, N): use the cropped digits (format 2), not the full numbers"
            )
        labels = whole_labels(labels, f"y of {self.path}")
        yield from in_blocks(images.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels))


def _check_sizes(raw: bytes) -> None:
    """Refuse elements that reach beyond the file, or that unpack to a great many bytes."""
    start, left = HEADER, max(MOST_BYTES, 16 * len(raw))
    while start + 8 <= len(raw):
        kind, size = (int.from_bytes(raw[at : at + 4], "little") for at in (start, start + 4))
        element = memoryview(raw)[start + 8 : start + 8 + size]
        if len(element) < size:
            raise ValueError(f"an element of {size} bytes in a file of {len(raw)}")
        if kind == COMPRESSED:
            inflate = zlib.decompressobj()
            part = inflate.decompress(element, 2**20)
            while part and left >= 0:
                left -= len(part)
                part = inflate.decompress(inflate.unconsumed_tail, 2**20)
        if left < 0:
            raise ValueError(f"{len(raw)} bytes unpack to more than {max(MOST_BYTES, 16 * len(raw))}")
        start += 8 + size
