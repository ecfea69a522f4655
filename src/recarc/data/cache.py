"""The memory-mapped cache: every split is decoded once.

A split is two files of one name: pixels followed by labels in a `.bin`, and a `.json` that describes them. The `.json`
is written last, so that a reader never sees half an entry and two writers do no harm. The checksum is verified at every
load, except for very large files: the modification time of the `.bin` is set to one derived from its checksum, and as
long as nobody has changed that time, a large file is trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.atomic import cache_home, replacing, sweep, write_bytes
from recarc.data.formats import Block, check_labels
from recarc.data.imageset import ImageSet, content_hash, seal
from recarc.errors import InputError

ALWAYS_VERIFIED = 2**31  # bytes of a .bin, a few seconds of hashing
STALE_AFTER = 24 * 3600  # seconds after which the leftovers of an interrupted writer are removed


def cache_root() -> Path:
    """Where decoded splits and downloads are kept."""
    return cache_home() / "data"


def downloads(name: str) -> Path:
    """Where `recarc.data.hub` stores the files of a set."""
    return cache_root() / "downloads" / name


@dataclass(frozen=True)
class Entry:
    """A cached split, as its `.json` describes it."""

    path: Path  # of the .json
    name: str
    split: str
    key: str
    shape: tuple[int, int, int, int]
    classes: tuple[str, ...]
    checksum: str
    source: str
    created: float

    @property
    def bin(self) -> Path:
        return self.path.with_suffix(".bin")

    @property
    def size(self) -> int:
        return math.prod(self.shape) + 8 * self.shape[0]

    def intact(self, full: bool = False) -> bool:
        """Size and checksum are right; without `full`, a large file that nobody has touched since is trusted."""
        try:
            stat = self.bin.stat()
            if stat.st_size != self.size:
                return False
            untouched = stat.st_mtime_ns == _sealed_time(self.checksum)
            if untouched and not full and self.size > ALWAYS_VERIFIED:
                return True
            if content_hash(*self._arrays()) != self.checksum:
                return False
            if not untouched:
                with contextlib.suppress(OSError):  # a read-only cache is verified again next time
                    os.utime(self.bin, ns=(_sealed_time(self.checksum),) * 2)
            return True
        except (OSError, ValueError):
            return False

    def image_set(self, note: str) -> ImageSet:
        fingerprint = seal(self.checksum, self.shape, 255)
        return ImageSet(self.name, self.split, *self._arrays(), self.classes, fingerprint, note)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        images = np.memmap(self.bin, dtype=np.uint8, mode="r", shape=self.shape)
        labels = np.fromfile(self.bin, dtype="<i8", offset=math.prod(self.shape)).astype(np.int64)
        return images, labels


def lookup(name: str, split: str, key: str, verify: bool = True) -> Entry | None:
    """The entry made from exactly these source files, if it is whole; without `verify`, also a damaged one."""
    entry = _read(_path(name, split, key))
    return entry if entry and entry.key == key and (not verify or entry.intact()) else None


def newest(name: str, split: str, count: int, verify: bool = True) -> Entry | None:
    """The newest whole entry of the official size, whatever it was made from; without `verify`, also a damaged one."""
    entries = [_read(path) for path in cache_root().glob(f"{_stem(name, split)}-*.json")]
    found = [e for e in entries if e and (e.name, e.split, e.shape[0]) == (name, split, count)]
    good = [e for e in found if not verify or e.intact()]
    return max(good, key=lambda entry: entry.created, default=None)


def store(
    name: str,
    split: str,
    key: str,
    blocks: Iterator[Block],
    *,
    source: str,
    classes: tuple[str, ...] | None,
    shape: tuple[int, int, int] | None = None,
) -> Entry:
    """Write an entry block by block, checking labels and shapes. `classes` None: 0 up to the largest label."""
    folder, path = cache_root(), _path(name, split, key)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder, STALE_AFTER)
        with replacing(path.with_suffix(".bin")) as part:
            full_shape, labels, checksum = _write(part, blocks, source, classes, shape)
            os.utime(part, ns=(_sealed_time(checksum),) * 2)
        names = classes or tuple(str(i) for i in range(int(labels.max()) + 1))
        entry = Entry(path, name, split, key, full_shape, names, checksum, source, time.time())
        header = {field: value for field, value in vars(entry).items() if field != "path"}
        write_bytes(path, json.dumps({**header, "seal": _header_seal(header)}, indent=1).encode())
        return entry
    except OSError as error:
        raise cannot_write(folder, error) from None


def cannot_write(folder: Path, error: OSError) -> InputError:
    reason = error.strerror or error
    return InputError(
        f"cannot write the cache {folder}: {reason}; free some space, or set RECARC_CACHE to a writable folder"
    )


def _write(
    path: Path,
    blocks: Iterator[Block],
    source: str,
    classes: tuple[str, ...] | None,
    shape: tuple[int, int, int] | None,
) -> tuple[tuple[int, int, int, int], np.ndarray, str]:
    digest = hashlib.sha256()
    labels: list[np.ndarray] = []
    count = 0
    with path.open("wb") as file:
        for images, block_labels in blocks:
            shape = shape or images.shape[1:]
            if images.shape[1:] != shape:
                raise InputError(
                    f"{source} holds images of shape {images.shape[1:]}; expected {shape}: another data set?"
                )
            check_labels(block_labels, len(classes) if classes else 2**31, source, count)
            data = np.ascontiguousarray(images, dtype=np.uint8).data
            file.write(data)
            digest.update(data)
            labels.append(block_labels)
            count += len(block_labels)
        if not count or shape is None:
            raise InputError(f"{source} holds no images; expected some")
        every = np.concatenate(labels).astype("<i8")
        file.write(every.data)
        digest.update(every.data)
        file.flush()
        os.fsync(file.fileno())
    return (count, *shape), every, digest.hexdigest()


def _read(path: Path) -> Entry | None:
    """None for a header that is missing, incomplete or edited."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if header.pop("seal") != _header_seal(header):
            return None
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in header.items()}
        return Entry(path=path, **fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _header_seal(header: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _sealed_time(checksum: str) -> int:
    return (1_600_000_000 + int(checksum[:6], 16)) * 10**9


def _stem(name: str, split: str) -> str:
    plain = "".join(c if c.isalnum() or c in "_." else "_" for c in name)[-40:]
    return f"{plain}-{split}"


def _path(name: str, split: str, key: str) -> Path:
    return cache_root() / f"{_stem(name, split)}-{key[:20]}.json"
