"""Parquet files in the Hub's layout: a struct of encoded bytes and path, and a label.

They are read with pyarrow alone, which starts faster than the `datasets` library; that one is only used to download.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from recarc.data.catalog import Spec, owner
from recarc.data.decode import CROP, GREY_MODES, open_image, pixels
from recarc.data.formats import BLOCK, MOST_BYTES, Block, Format, block_size, register, whole_labels
from recarc.data.imageset import Reader
from recarc.data.parquet_pages import longest_value
from recarc.errors import InputError, first_line

KEPT = 256 * 2**20  # bytes of encoded images that a reader keeps in memory
SPLIT_WORD = re.compile(r"(?:^|[-_.])(train|test|validation|val|extra)(?=[-_.]|$)")
IMAGE_COLUMNS = ("img", "image", "images")
LABEL_COLUMNS = ("label", "labels", "fine_label")


@register
@dataclass(frozen=True)
class Parquet(Format):
    """The Parquet files of a split, in the order of their names. `spec` None: shape and classes are read from them."""

    preference = 0
    paths: tuple[Path, ...]
    spec: Spec | None

    @classmethod
    def layout(cls, spec: Spec) -> str:
        return " and ".join(f"{split}*.parquet" for split in spec.usual_splits) + " in the Hub's layout"

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Parquet | None:
        """Files named after the split, or in a folder named after it; `root` may be one such file."""
        if spec is None:
            words = {"val": ("val", "validation"), "validation": ("validation", "val")}.get(split, (split,))
            paths = _find_paths(root, words, None, split in ("test", "all"))
        else:
            paths = _find_paths(root, spec.split_words(split), spec, split == spec.evaluation)
        return cls(tuple(paths), spec) if paths else None

    @property
    def where(self) -> str:
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    def files(self) -> Sequence[Path]:
        return self.paths

    def blocks(self) -> Iterator[Block]:
        shape = self.spec.shape if self.spec else self._first_shape()
        for path in self.paths:
            with _Table(path, self.spec) as table:
                row = 0
                table.check_pixels(shape)
                for data, labels in table.batches(block_size(shape)):
                    images = [
                        pixels(item, _row_name(path, row + i, name), shape) for i, (item, name) in enumerate(data)
                    ]
                    row += len(images)
                    if images:
                        yield np.stack(images), labels

    def class_names(self) -> tuple[str, ...] | None:
        with _Table(self.paths[0], self.spec) as table:
            return table.class_names()

    def reader(self) -> tuple[Reader, np.ndarray] | None:
        large = self.spec.streamed if self.spec else min(self._first_shape()[1:]) >= CROP
        if not large:
            return None
        reader = ParquetReader(self.paths, self.spec)
        return reader, reader.labels

    def _first_shape(self) -> tuple[int, int, int]:
        with _Table(self.paths[0], self.spec) as table:
            for data, _ in table.batches(1):
                image = open_image(data[0][0], _row_name(self.paths[0], 0, data[0][1]))
                return (1 if image.mode in GREY_MODES else 3), image.height, image.width
        raise InputError(f"{self.paths[0]} holds no rows; expected images and labels")


class ParquetReader:
    """Random access by row group, from any thread; recent groups stay in memory, up to `KEPT` bytes of images."""

    def __init__(self, paths: Sequence[Path], spec: Spec | None) -> None:
        self.paths, self.spec = tuple(paths), spec
        labels, groups, digest = [], [], hashlib.sha256()
        for number, path in enumerate(self.paths):
            with _Table(path, spec) as table:
                labels.append(table.all_labels())
                groups += [(number, group, rows) for group, rows in enumerate(table.group_rows())]
                digest.update(table.footer_hash().encode())
        self.labels = np.concatenate(labels)
        self._groups = groups
        self._first_groups = {number: i - group for i, (number, group, _) in enumerate(groups)}
        self._starts = np.cumsum([0] + [rows for _, _, rows in groups])
        self._identity = digest.hexdigest()
        self._recent = _Recent()

    def __len__(self) -> int:
        return len(self.labels)

    def identity(self) -> str:
        return self._identity

    def read(self, rows: np.ndarray) -> list[tuple[bytes, str]]:
        out: list[tuple[bytes, str]] = [(b"", "")] * len(rows)
        groups = np.searchsorted(self._starts, rows, side="right") - 1
        for group in np.unique(groups):
            encoded = self._group(int(group))
            for position in np.flatnonzero(groups == group):
                out[position] = encoded[int(rows[position] - self._starts[group])]
        return out

    def _group(self, index: int) -> list[tuple[bytes, str]]:
        recent = self._recent.get(index)
        if recent is not None:
            return recent
        number, group, _ = self._groups[index]
        path = self.paths[number]
        first = int(self._starts[index] - self._starts[self._first_groups[number]])
        with _Table(path, self.spec) as table:
            encoded = table.group(group)
        named = [(data, _row_name(path, first + i, name)) for i, (data, name) in enumerate(encoded)]
        self._recent.put(index, named)
        return named


class _Recent:
    """The most recently used row groups: up to `KEPT` bytes, or a single group. Safe to share between threads."""

    def __init__(self) -> None:
        self._groups: OrderedDict[int, list[tuple[bytes, str]]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[_Recent], tuple[()]]:
        return _Recent, ()  # another process starts with none

    def get(self, index: int) -> list[tuple[bytes, str]] | None:
        with self._lock:
            if index in self._groups:
                self._groups.move_to_end(index)
            return self._groups.get(index)

    def put(self, index: int, group: list[tuple[bytes, str]]) -> None:
        with self._lock:
            if index not in self._groups:
                self._bytes += _size(group)
            self._groups[index] = group
            while self._bytes > KEPT and len(self._groups) > 1:
                self._bytes -= _size(self._groups.popitem(last=False)[1])


def _size(group: list[tuple[bytes, str]]) -> int:
    return sum(len(data) for data, _ in group)


class _Table:
    """An open Parquet file whose image and label columns are known. Arrow's errors become one line."""

    def __init__(self, path: Path, spec: Spec | None) -> None:
        import pyarrow.parquet as pq

        self.path = path
        with _one_line_errors(path):
            self.file = pq.ParquetFile(path)
        columns = self.file.schema_arrow.names
        wanted = (spec.label_column, *LABEL_COLUMNS[:2]) if spec else LABEL_COLUMNS
        self.image = next((name for name in IMAGE_COLUMNS if name in columns), "")
        self.label = next((name for name in wanted if name in columns), "")
        if not self.image or not self.label:
            raise InputError(
                f"{path} has the columns {', '.join(columns)}; expected img or image (a struct of bytes and path) "
                f"and {wanted[0]}, as on the Hub"
            )
        stat = path.stat()
        self.left = max(MOST_BYTES, 16 * stat.st_size)  # bytes of images that may still come out of this file
        with _one_line_errors(path):
            longest = longest_value(path, (stat.st_size, stat.st_mtime_ns), (self.image, self.label))
        self.rows_at_once = max(1, KEPT // 4 // max(1, longest))

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def batches(self, size: int) -> Iterator[tuple[list[tuple[bytes, str]], np.ndarray]]:
        for batch in self._record_batches(size, [self.image, self.label]):
            yield self._encoded(batch.column(self.image)), self._labels(batch.column(self.label))

    def group(self, index: int) -> list[tuple[bytes, str]]:
        batches = self._record_batches(BLOCK, [self.image], row_groups=[index])
        return [item for batch in batches for item in self._encoded(batch.column(self.image))]

    def _record_batches(self, size: int, columns: list[str], **which: Any) -> Iterator[Any]:
        iterator = self.file.iter_batches(batch_size=min(size, self.rows_at_once), columns=columns, **which)
        while True:
            with _one_line_errors(self.path):
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    def all_labels(self) -> np.ndarray:
        with _one_line_errors(self.path):
            column = self.file.read(columns=[self.label]).column(self.label)
        return self._labels(column)

    def check_pixels(self, shape: tuple[int, int, int]) -> None:
        """Refuse images of this shape that a file of this size can hold only if they are nearly empty."""
        rows, size = self.file.metadata.num_rows, self.path.stat().st_size
        if rows * math.prod(shape) > max(MOST_BYTES, 64 * size):
            raise InputError(f"{self.path} has {size} bytes and says that it holds {rows} images of {shape}: refused")

    def group_rows(self) -> list[int]:
        meta = self.file.metadata
        return [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]

    def footer_hash(self) -> str:
        """Of size and footer; the footer holds the offset, size and range of every column of every row group."""
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            file.seek(size - 8)
            length = int.from_bytes(file.read(4), "little")
            file.seek(max(0, size - 8 - length))
            return hashlib.sha256(str(size).encode() + file.read(length)).hexdigest()

    def class_names(self) -> tuple[str, ...] | None:
        try:
            info = json.loads((self.file.schema_arrow.metadata or {})[b"huggingface"])
            return tuple(str(name) for name in info["info"]["features"][self.label]["names"])
        except (KeyError, TypeError, ValueError):
            return None

    def _encoded(self, column: Any) -> list[tuple[bytes, str]]:
        try:
            data = column.field("bytes").to_pylist()
            names = column.field("path").to_pylist()
        except (KeyError, AttributeError, ValueError):
            raise InputError(
                f"column {self.image} of {self.path} is not a struct of bytes and path as on the Hub"
            ) from None
        if any(item is None for item in data):
            raise InputError(f"{self.path} holds paths without image bytes; write it with embedded images")
        self.left -= sum(len(item) for item in data)
        if self.left < 0:
            raise InputError(f"{self.path} unpacks to far more than its size: refused")
        return list(zip(data, (name or "" for name in names)))

    def _labels(self, column: Any) -> np.ndarray:
        with _one_line_errors(self.path):
            values = np.asarray(column)
        return whole_labels(values, f"column {self.label} of {self.path}")


@contextmanager
def _one_line_errors(path: Path) -> Iterator[None]:
    """Replace what Arrow raises on a damaged file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise InputError(
            f"cannot read {path}: {first_line(error).rstrip('. ')}; truncated or not a Parquet file, get it again"
        ) from None


def _row_name(path: Path, row: int, name: str) -> str:
    return f"{path} row {row}" + (f" ({name})" if name else "")


def _find_paths(root: Path, words: Sequence[str], spec: Spec | None, evaluation: bool) -> list[Path]:
    """Parquet files for these names of a split. Files that name no split at all serve as the evaluation split."""
    if root.suffix == ".parquet" and root.is_file():
        named_split = SPLIT_WORD.findall(root.stem.lower())
        return [root] if (named_split[-1] in words if named_split else evaluation) else []
    folders = [root, root / "data", *([root / spec.hub_config] if spec and spec.hub_config else [])]
    for folder in folders:
        files = [p for p in _parquet(folder) if spec is None or owner(p.stem) in (None, spec)]
        split_of = {path: SPLIT_WORD.findall(path.stem.lower()) for path in files}
        chosen = [path for path in files if split_of[path] and split_of[path][-1] in words]
        if chosen:
            return chosen
        if files and evaluation and not any(split_of.values()):
            return files
        for word in words:
            if chosen := _parquet(folder / word):
                return chosen
    return []


def _parquet(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.parquet") if path.is_file()) if folder.is_dir() else []
