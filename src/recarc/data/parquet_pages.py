"""What a Parquet file will take in memory, from the headers of its pages: the footer may say anything.

A page of a few bytes can announce, and unpack to, 2 GB; so all that a reader asks for is added up before it reads.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from recarc.errors import InputError

MOST_BYTES = 2**29  # that the pages of a file may unpack to, or 16 times its own size
MOST_PAGE = 2**26  # the same for one page, or twice the size of the file
MOST_ROWS = 10_000  # images in a small file; in others a row for every 32 bytes
DICTIONARY = 2
STOP, TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12  # of Thrift's compact protocol
DEEPEST = 8


def check_pages(data: bytes | mmap.mmap, metadata: Any, columns: tuple[str, ...] | None = None) -> int:
    """ValueError if the pages of these columns (or of all) would unpack to far more than the size of the file.

    Returns the size of the largest dictionary of a column of text or bytes: each value can be as long.
    """
    size, cost, pages, largest = len(data), 0, 0, 0
    for chunk in _chunks(metadata, columns):
        cost += 8 * max(0, chunk.num_values)
        for page in _pages(data, chunk):
            pages += 1
            cost += page.unpacked + 8 * page.values
            if page.unpacked > max(MOST_PAGE, 2 * size):
                raise ValueError(f"a page of its {size} bytes unpacks to {page.unpacked}")
            if pages > 1000 + size // 8:
                raise ValueError(f"its {size} bytes are to be read again and again")
            if page.kind == DICTIONARY and chunk.physical_type == "BYTE_ARRAY":
                largest = max(largest, page.unpacked)
        if cost > max(MOST_BYTES, 16 * size):
            raise ValueError(f"its {size} bytes unpack to more than {max(MOST_BYTES, 16 * size)}")
    return largest


@lru_cache(maxsize=1024)
def longest_value(path: Path, version: tuple[int, int], columns: tuple[str, ...]) -> int:
    """What `check_pages` returns for a file of images; `version` is its size and time."""
    import pyarrow.parquet as pq

    size = version[0]
    with pq.ParquetFile(path) as file, path.open("rb") as raw:
        rows = file.metadata.num_rows
        if rows > max(MOST_ROWS, size // 32):
            raise InputError(f"{path} has {size} bytes and says that it holds {rows} images: refused")
        try:
            with mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return check_pages(data, file.metadata, columns)
        except ValueError as error:
            raise InputError(f"{path} is refused: {error}") from None


def _chunks(metadata: Any, columns: tuple[str, ...] | None) -> Iterator[Any]:
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            chunk = group.column(j)
            if columns is None or chunk.path_in_schema.partition(".")[0] in columns:
                yield chunk


@dataclass
class _Page:
    kind: int = 0
    unpacked: int = 0  # bytes
    packed: int = 0
    values: int = 0


def _pages(data: bytes | mmap.mmap, chunk: Any) -> Iterator[_Page]:
    """The headers of a column chunk, up to the value at which Arrow stops reading."""
    at, first = chunk.data_page_offset, chunk.dictionary_page_offset
    if first is not None and 0 < first < at:
        at = first
    end, left = min(len(data), at + chunk.total_compressed_size), chunk.num_values
    while at < end and left > 0:
        try:
            header = _Header(data, at)
            page = header.page()
        except IndexError:
            raise ValueError("a page has no end") from None
        if min(page.unpacked, page.packed, page.values) < 0:
            raise ValueError("a page has a negative size")
        at = header.at + page.packed
        left -= page.values if page.kind != DICTIONARY else 0
        yield page


class _Header:
    """Just enough of Thrift's compact protocol for the header of a page."""

    def __init__(self, data: bytes | mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def page(self) -> _Page:
        page = _Page()
        for number, kind in self._fields():
            if number in (1, 2, 3) and kind == 5:
                setattr(page, ("kind", "unpacked", "packed")[number - 1], self._integer())
            elif number in (5, 7, 8) and kind == STRUCT:  # of a data page, a dictionary, a data page of version 2
                for inner, inner_kind in self._fields():
                    if inner == 1 and inner_kind == 5:
                        page.values = self._integer()
                    else:
                        self._skip(inner_kind)
            else:
                self._skip(kind)
        return page

    def _fields(self) -> Iterator[tuple[int, int]]:
        number = 0
        while (byte := self._byte()) != STOP:
            number = number + (byte >> 4) if byte >> 4 else self._integer()
            yield number, byte & 15

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a page has a damaged header")
        return value | byte << shift

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _skip(self, kind: int, depth: int = 0) -> None:
        if depth > DEEPEST:
            raise ValueError("a page has a damaged header")
        if kind in (TRUE, FALSE):
            return
        if kind == BYTE:
            self.at += 1
        elif kind in (4, 5, 6):
            self._varint()
        elif kind == DOUBLE:
            self.at += 8
        elif kind == BINARY:
            length = self._varint()
            self.at += length
        elif kind in (LIST, SET):
            head = self._byte()
            for _ in range(self._varint() if head >> 4 == 15 else head >> 4):
                self._byte() if head & 15 in (TRUE, FALSE) else self._skip(head & 15, depth + 1)
        elif kind == STRUCT:
            for _, inner in self._fields():
                self._skip(inner, depth + 1)
        else:
            raise ValueError("a page has a damaged header")
