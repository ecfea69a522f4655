"""The memory-mapped cache: every split is decoded once.

A split is two files: pixels followed by labels in a `.bin`, and a `.json` that says what they are. Each is written
aside and renamed, the `.json` last, so that a reader never sees half an entry and two writers do no harm. The `.bin`
is named after its contents and carries a time of change made from its checksum: whoever edits it changes the time,
and the full checksum is then taken before it is trusted again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.data.imageset import ImageSet, content_hash, seal
from recarc.data.source import Block, check_labels
from recarc.errors import InputError

FORMAT = 1
STALE_AFTER = 24 * 3600  # seconds after which a file of an interrupted writer is removed


def cache_root() -> Path:
    """`RECARC_CACHE`, or `~/.cache/recarc`."""
    given = os.environ.get("RECARC_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "recarc"
    return base.expanduser() / "data"


@dataclass(frozen=True)
class Entry:
    """A cached split as its `.json` describes it."""

    path: Path  # of the .json
    name: str
    split: str
    key: str
    shape: tuple[int, int, int, int]
    levels: int
    classes: tuple[str, ...]
    checksum: str
    fingerprint: str
    source: str
    created: float

    @property
    def bin(self) -> Path:
        return _bin_path(self.path.parent, self.name, self.split, self.checksum)

    @property
    def size(self) -> int:
        return math.prod(self.shape) + 8 * self.shape[0]

    def intact(self, full: bool = False) -> bool:
        """The size fits and nobody touched the file since; if somebody did, or with `full`, the checksum fits."""
        try:
            stat = self.bin.stat()
            if stat.st_size != self.size:
                return False
            sealed = stat.st_mtime_ns == _sealed_time(self.checksum)
            if sealed and not full:
                return True
            if content_hash(*self._arrays()) != self.checksum:
                return False
            if not sealed:
                with contextlib.suppress(OSError):  # a read-only cache is checked again the next time
                    os.utime(self.bin, ns=(_sealed_time(self.checksum),) * 2)
            return True
        except (OSError, ValueError):
            return False

    def image_set(self, note: str) -> ImageSet:
        images, labels = self._arrays()
        return ImageSet(self.name, self.split, images, labels, self.classes, self.fingerprint, note, self.levels)

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        images = np.memmap(self.bin, dtype=np.uint8, mode="r", shape=self.shape)
        labels = np.fromfile(self.bin, dtype="<i8", offset=math.prod(self.shape)).astype(np.int64)
        return images, labels


def lookup(name: str, split: str, key: str) -> Entry | None:
    """The entry made from exactly these source files, if it is whole."""
    entry = _read(_json_path(name, split, key))
    return entry if entry and entry.key == key and entry.intact() else None


def newest(name: str, split: str, count: int) -> Entry | None:
    """The newest whole entry of an official size, whatever it was made from."""
    entries = [_read(path) for path in cache_root().glob(f"{_stem(name, split)}-*.json")]
    good = [e for e in entries if e and (e.name, e.split, e.shape[0]) == (name, split, count) and e.intact()]
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
    levels: int = 255,
) -> Entry:
    """Write an entry block by block; labels and shapes are checked on the way. `classes` None: 0..max label."""
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _aside(folder) as temporary:
            full_shape, labels, checksum = _write(temporary, blocks, source, classes, shape)
            os.utime(temporary, ns=(_sealed_time(checksum),) * 2)
            os.replace(temporary, _bin_path(folder, name, split, checksum))
        names = classes or tuple(str(i) for i in range(int(labels.max()) + 1))
        header: dict[str, Any] = {
            "format": FORMAT,
            "name": name,
            "split": split,
            "key": key,
            "shape": list(full_shape),
            "levels": levels,
            "classes": list(names),
            "checksum": checksum,
            "fingerprint": seal(checksum, full_shape, levels),
            "source": source,
            "created": time.time(),
        }
        path = _json_path(name, split, key)
        with _aside(folder) as temporary:
            temporary.write_text(json.dumps({**header, "seal": _header_seal(header)}, indent=1), encoding="utf-8")
            os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"cannot write the cache {folder}: {error.strerror or error}; "
            "make room, or set RECARC_CACHE to a folder that can be written"
        ) from None
    entry = _read(path)
    if entry is None:
        raise InputError(f"the cache {folder} does not keep what is written to it; set RECARC_CACHE to another folder")
    return entry


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
    """None for a header that is missing, torn, edited or of another format."""
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        sealed = header.pop("seal")
        if header["format"] != FORMAT or sealed != _header_seal(header):
            return None
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in header.items() if k != "format"}
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


def _json_path(name: str, split: str, key: str) -> Path:
    return cache_root() / f"{_stem(name, split)}-{key[:24]}.json"


def _bin_path(folder: Path, name: str, split: str, checksum: str) -> Path:
    return folder / f"{_stem(name, split)}-{checksum[:24]}.bin"


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    path = folder / f"{uuid.uuid4().hex}.part"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed long ago left behind."""
    for path in folder.glob("*.part"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE_AFTER:
                path.unlink()
