"""The official Python archives of CIFAR-10 and CIFAR-100.

They are pickles, and a pickle can run code. This reader replaces the few globals that the official files use by inert
stand-ins and refuses every other one before anything is called.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.atomic import read_plain
from recarc.data.catalog import Spec
from recarc.data.formats import Block, Format, register, unpacked, whole_labels
from recarc.errors import InputError, first_line

FOLDER = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVE = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
MEMBERS: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar10": {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    "cifar100": {"train": ("train",), "test": ("test",)},
}
MOST_OPERATIONS = 1_000_000  # of the pickle of a batch; the official ones have some ten thousand
LABELS = {"cifar10": b"labels", "cifar100": b"fine_labels"}


@register
@dataclass(frozen=True)
class Cifar(Format):
    """The batch files of a split: in the official folder (or the folder that is it), else in the official .tar.gz."""

    spec: Spec
    place: Path
    members: tuple[str, ...]

    @classmethod
    def layout(cls, spec: Spec) -> str:
        return f"{FOLDER[spec.name]}/ or {ARCHIVE[spec.name]}" if spec.name in FOLDER else ""

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Cifar | None:
        members = MEMBERS.get(spec.name, {}).get(split) if spec else None
        if spec is None or members is None:
            return None
        for folder in (root / FOLDER[spec.name], root):
            if all((folder / name).is_file() for name in members):
                return cls(spec, folder, members)
        archive = root if root.name == ARCHIVE[spec.name] else root / ARCHIVE[spec.name]
        return cls(spec, archive, members) if archive.is_file() else None

    @property
    def where(self) -> str:
        return str(self.place)

    def files(self) -> Sequence[Path]:
        return (self.place,) if self.place.is_file() else [self.place / name for name in self.members]

    def blocks(self) -> Iterator[Block]:
        for name, raw in self._raw():
            yield read_batch(raw, f"{self.place}/{name}", LABELS[self.spec.name])

    def _raw(self) -> Iterator[tuple[str, bytes]]:
        if self.place.is_dir():
            for name in self.members:
                yield name, _plain(self.place / name)
            return
        try:
            with tarfile.open(fileobj=unpacked(self.place), mode="r:") as tar:
                for name in self.members:
                    member = tar.extractfile(f"{FOLDER[self.spec.name]}/{name}")
                    if member is None:
                        raise KeyError(f"{name} is not a plain file")
                    yield name, member.read()
        except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error) as error:
            reason = str(error).strip("'\"")
            raise InputError(
                f"cannot read {self.place}: {reason}; truncated or another archive, get it again"
            ) from None


def _plain(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; get it again") from None


def read_batch(raw: bytes, name: str, label_key: bytes) -> Block:
    """Images and labels of one batch file."""
    try:
        _check_operations(raw)
        content = _Unpickler(raw, name).load()
        data = _array(content[b"data"])
        labels = content[label_key]
        labels = _array(labels) if isinstance(labels, _Array) else np.array(_flat(labels))
    except InputError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"cannot read {name}: {reason}; truncated or not a CIFAR batch, get it again") from None
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072 or labels.shape != (len(data),):
        raise InputError(
            f"{name} holds {data.dtype} data of shape {data.shape} and labels of shape {labels.shape}; "
            "expected uint8 (N, 3072) and (N,): not a CIFAR batch"
        )
    return data.reshape(-1, 3, 32, 32), whole_labels(labels, name)


def _check_operations(raw: bytes) -> None:
    """Refuse a pickle that numbers more objects than it has bytes: the reader would make room for all of them."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(raw)):
        if operation.name in ("PUT", "LONG_BINPUT") and (argument or 0) > len(raw):
            raise ValueError(f"it numbers an object {argument}")
        if count > MOST_OPERATIONS:
            raise ValueError(f"it has more than {MOST_OPERATIONS} operations")


def _flat(labels: Any) -> list[Any]:
    """A list of numbers; lists that contain each other can be short to write and endless to read."""
    if not isinstance(labels, list) or not all(isinstance(label, (int, float)) for label in labels):
        raise ValueError("labels are not a list of numbers")
    return labels


class _Dtype:
    """Stands in for numpy.dtype: remembers its code."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else str(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: the codes below are read as little endian."""


class _Array:
    """Stands in for numpy.ndarray: remembers shape, type and bytes."""

    shape: tuple[int, ...] = ()
    code = ""
    fortran = False
    raw = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, dtype, self.fortran, raw = state
        self.code = dtype.code
        self.raw = raw.encode("latin1") if isinstance(raw, str) else raw


def _array(stand_in: Any) -> np.ndarray:
    if not isinstance(stand_in, _Array) or stand_in.code not in ("u1", "i4", "i8"):
        raise ValueError("data is not an array of whole numbers")
    flat = np.frombuffer(stand_in.raw, dtype="<" + stand_in.code)
    if flat.size != math.prod(stand_in.shape):
        raise ValueError(f"array of shape {stand_in.shape} holds {flat.size} values")
    return flat.reshape(stand_in.shape, order="F" if stand_in.fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _encode(text: str, encoding: str = "") -> bytes:
    return text.encode("latin1")  # how pickle protocol 2 spells bytes


def _refuse(*_: Any) -> Any:
    raise ValueError("an array where only its type is expected")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _refuse,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, raw: bytes, name: str) -> None:
        super().__init__(io.BytesIO(raw), encoding="bytes")
        self.name = name

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise InputError(
                f"{self.name} asks to call {module}.{name}, which the official files never do: refused, nothing "
                "was run; get the official archive"
            )
        return _ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise InputError(f"{self.name} refers to external objects, which the official files never do: refused")
