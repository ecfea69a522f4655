"""MNIST's idx files, gzipped or not."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recarc.data.catalog import Spec
from recarc.data.formats import Block, Format, in_blocks, register, unpacked
from recarc.errors import InputError

SETS = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}  # and what torchvision calls their folders
PREFIX = {"train": "train", "test": "t10k"}
IMAGES, LABELS = 0x00000803, 0x00000801  # unsigned bytes in three dimensions, in one


@register
@dataclass(frozen=True)
class Idx(Format):
    """A pair of idx files, in a folder or in its `raw` folder, where torchvision puts them."""

    images: Path
    labels: Path

    @classmethod
    def layout(cls, spec: Spec) -> str:
        if spec.name not in SETS:
            return ""
        names = [f"{word}-{kind}-ubyte" for word in PREFIX.values() for kind in ("images-idx3", "labels-idx1")]
        return f"{', '.join(names[:-1])} and {names[-1]} (.gz or not, also in {SETS[spec.name]}/raw)"

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Idx | None:
        if spec is None or spec.name not in SETS or split not in PREFIX:
            return None
        for folder in (root, root / "raw"):
            images = _file(folder, f"{PREFIX[split]}-images", "idx3")
            labels = _file(folder, f"{PREFIX[split]}-labels", "idx1")
            if images and labels:
                return cls(images, labels)
        return None

    def files(self) -> Sequence[Path]:
        return self.images, self.labels

    def blocks(self) -> Iterator[Block]:
        images = read_idx(self.images, IMAGES)
        labels = read_idx(self.labels, LABELS)
        if len(images) != len(labels):
            raise InputError(
                f"{self.images} holds {len(images)} images but {self.labels.name} {len(labels)} labels; "
                "expected the same number: the two files belong to different sets"
            )
        yield from in_blocks(images[:, None], labels)


def _file(folder: Path, stem: str, kind: str) -> Path | None:
    names = (f"{stem}{dot}{kind}-ubyte{end}" for end in ("", ".gz") for dot in ("-", "."))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(path: Path, magic: int) -> np.ndarray:
    """The array in an idx file of unsigned bytes whose first four bytes must be `magic`."""
    try:
        raw = unpacked(path).getbuffer()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}; the file is truncated or damaged, get it again") from None
    if len(raw) < 4 or int.from_bytes(raw[:4], "big") != magic:
        raise InputError(
            f"{path} starts with {raw[:4].hex() or 'nothing'}; expected the idx magic {magic:08x}: "
            "not an idx file of this kind, or damaged: get it again"
        )
    dimensions = magic & 0xFF
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    size = start + math.prod(shape)
    if len(raw) != size:
        raise InputError(f"{path} holds {len(raw)} bytes; its header says {size}: truncated or damaged, get it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)
