"""Arrays and tensors in files: .npz, .npy and .pt, as people save their own images.

In a folder: test.npz, test.pt, or test_images.npy with test_labels.npy (or x_test, y_test). A single file holds one
split, or several under names such as x_train and x_test. Pixels are uint8, or floats of [0, 1] that are k/255 exactly.
Nothing in a file is executed, and headers that claim more than the file holds are refused.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.atomic import read_plain
from recarc.data.catalog import Spec
from recarc.data.formats import MOST_BYTES, Block, Format, in_blocks, register, whole_labels
from recarc.errors import InputError, first_line

SUFFIXES = (".npz", ".pt", ".pth")
HEADER = re.compile(
    rb"\{'descr': '([<>|=][biuf][1248])', 'fortran_order': (True|False), "
    rb"'shape': \((\d{0,15}(?:, ?\d{1,15})*),?\), \}\s*"
)
UNREADABLE = (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError)
IMAGES, LABELS = ("images", "x", "data", "inputs"), ("labels", "y", "targets", "label")


@register
@dataclass(frozen=True)
class Arrays(Format):
    """The images and labels of a split, in one file or in two."""

    paths: tuple[Path, ...]
    split: str

    @classmethod
    def layout(cls, spec: Spec) -> str:
        return ""  # named sets come in their own formats

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Arrays | None:
        if spec is not None:
            return None
        if root.is_file():
            return cls((root,), split) if root.suffix in SUFFIXES else None
        for suffix in SUFFIXES:
            if (root / f"{split}{suffix}").is_file():
                return cls((root / f"{split}{suffix}",), split)
        pairs = [(f"{split}_{x}.npy", f"{split}_{y}.npy") for x, y in zip(IMAGES, LABELS)]
        for x, y in [*pairs, (f"x_{split}.npy", f"y_{split}.npy")]:
            if (root / x).is_file() and (root / y).is_file():
                return cls((root / x, root / y), split)
        return None

    def files(self) -> list[Path]:
        return list(self.paths)

    def blocks(self) -> Iterator[Block]:
        try:
            images, labels = self._pair()
        except UNREADABLE as error:
            raise InputError(f"cannot read {self.where}: {first_line(error)}") from None
        pixels = as_pixels(images, self.where)
        if labels.ndim != 1 or len(labels) != len(pixels):
            counted = f"{self.where} holds {len(pixels)} images and labels of shape {labels.shape}"
            raise InputError(f"{counted}; expected one class index per image")
        yield from in_blocks(pixels, whole_labels(labels, self.where))

    def _pair(self) -> tuple[np.ndarray, np.ndarray]:
        if len(self.paths) == 2:
            x, y = (parsed_npy(read_plain(path)) for path in self.paths)
            return x, y
        raw = read_plain(self.paths[0])
        content = _npz(raw) if self.paths[0].suffix == ".npz" else _tensors(raw)
        if isinstance(content, (tuple, list)) and len(content) == 2:
            content = dict(zip(("images", "labels"), content))
        if not isinstance(content, Mapping):
            raise ValueError("expected images and labels under these names, or the pair of them")
        own = self.split in self.paths[0].stem or self.split == "test"
        return self._named(content, IMAGES, own), self._named(content, LABELS, own)

    def _named(self, content: Mapping[Any, Any], names: tuple[str, ...], own: bool) -> np.ndarray:
        """The array of this split; one without the name of a split is the test split, or that of the file's name."""
        wanted = [text for name in names for text in (f"{name}_{self.split}", f"{self.split}_{name}")]
        for name in [*wanted, *(names if own else ())]:
            if name in content:
                return _as_array(content[name])
        held = ", ".join(map(str, content)) or "nothing"
        raise ValueError(f"it has no {wanted[0]} or {names[0]} of the split {self.split!r}; it holds {held:.100}")


def as_pixels(images: np.ndarray, where: str) -> np.ndarray:
    """(N, C, H, W) uint8 from images with the channels in front, behind, or none."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim and not len(images):
        raise InputError(f"{where} holds no images: its array is empty, of shape {images.shape}")
    if images.ndim != 4 or not images.size:
        raise InputError(f"{where} holds images of shape {images.shape}; expected (N, C, H, W)")
    if images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if images.dtype.kind == "f":
        with np.errstate(all="ignore"):  # of infinities
            scaled = 255 * images.astype(np.float64)
            whole = np.round(scaled)
            near = bool((np.abs(scaled - whole) < 1e-3).all())
        if near and whole.min() >= 0 and whole.max() <= 255:
            return np.ascontiguousarray(whole.astype(np.uint8))
        if not np.isfinite(images).all():
            raise InputError(f"the images of {where} hold NaN or infinity; expected values in [0, 1]")
    low, high = float(images.min()), float(images.max())
    raise InputError(
        f"the images of {where} are {images.dtype} from {low:.3g} to {high:.3g}; expected uint8, or "
        "floats in [0, 1] in steps of 1/255, not normalised (that belongs in the model); other tensors can be "
        "evaluated in Python"
    )


def parsed_npy(raw: bytes) -> np.ndarray:
    """The array of an .npy file; ValueError where it holds objects or is shorter than it says.

    The header is read here, not by numpy, whose parser fails in many ways on damaged ones.
    """
    wide = 4 if raw[6:7] > b"\x01" else 2  # bytes of the header's length, from version 2.0 on
    start = 8 + wide + int.from_bytes(raw[8 : 8 + wide], "little")
    found = HEADER.fullmatch(raw[8 + wide : start]) if raw.startswith(b"\x93NUMPY") else None
    if found is None:
        raise ValueError("an array in it is not one of plain numbers")
    dtype, shape = np.dtype(found[1].decode()), tuple(int(n) for n in found[3].split(b",") if n.strip())
    count = math.prod(shape)
    if count * dtype.itemsize > len(raw) - start:
        raise ValueError(f"its header claims {count} values of {dtype}, which it does not hold")
    return np.frombuffer(raw, dtype, count, start).reshape(shape, order="F" if found[2] == b"True" else "C")


def _npz(raw: bytes) -> dict[str, np.ndarray]:
    with _zip(raw) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name.removesuffix(".npy"): parsed_npy(archive.read(name)) for name in names}


def _tensors(raw: bytes) -> Any:
    import torch

    with _zip(raw):  # older files are not archives: save them again
        try:
            return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
        except Exception as error:  # of many kinds, where a file is damaged or asks for more than tensors
            raise ValueError(f"it is no file of plain tensors ({first_line(error)})") from None


def _zip(raw: bytes) -> zipfile.ZipFile:
    """The archive; refused where a few bytes unpack to a great many."""
    archive = zipfile.ZipFile(io.BytesIO(raw))
    if sum(entry.file_size for entry in archive.infolist()) > max(MOST_BYTES, 16 * len(raw)):
        raise ValueError(f"{len(raw)} bytes unpack to too many")
    return archive


def _as_array(value: Any) -> np.ndarray:
    """Of an array or a tensor; ValueError for anything else, and for a view that repeats a few values many times."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "untyped_storage"):
        raise ValueError(f"it holds a {type(value).__name__} where an array was expected")
    if value.numel() * value.element_size() > max(MOST_BYTES, 16 * value.untyped_storage().nbytes()):
        raise ValueError("a tensor repeats its values too often")
    array: np.ndarray = value.detach().contiguous().numpy()
    return array
