"""Small files that ask for much memory, much time or a pipe's end: refused in one line."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
from PIL import Image

from recarc.data import decode, formats, load, parquet_pages
from recarc.data.formats import parquet, svhn
from recarc.errors import InputError


@pytest.fixture(autouse=True)
def low_limit(monkeypatch: Any) -> None:
    """So that a bomb of a few MB stands for one of gigabytes."""
    for module in (formats, svhn, parquet, parquet_pages):
        monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    monkeypatch.setattr(parquet_pages, "MOST_PAGE", 2**17)


def zip_bomb_idx(folder: Path) -> str:
    files.write_idx(folder, "t10k", *files.some_images(3, 1, 28))
    zeros = gzip.compress(struct.pack(">IIII", 0x803, 6000, 28, 28) + bytes(6000 * 784))
    (folder / "t10k-images-idx3-ubyte").unlink()
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(zeros)
    return "mnist"


def zip_bomb_mat(folder: Path) -> str:
    content = {"X": np.zeros((32, 32, 3, 2000), np.uint8), "y": np.ones((2000, 1), np.uint8)}
    scipy.io.savemat(folder / "test_32x32.mat", content, do_compression=True)
    return "svhn"


def mat_with_an_element_beyond_its_end(folder: Path) -> str:
    files.write_mat(folder / "test_32x32.mat", *files.some_images(3))
    with (folder / "test_32x32.mat").open("ab") as file:
        file.write(struct.pack("<II", 14, 2**31))
    return "svhn"


def zip_bomb_tar(folder: Path) -> str:
    files.write_tar(folder / "cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": bytes(5_000_000)})
    return "cifar10"


def tar_with_a_long_name(folder: Path) -> str:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2**33
    raw = header.tobuf(tarfile.GNU_FORMAT) + bytes(5_000_000)
    (folder / "cifar-10-python.tar.gz").write_bytes(gzip.compress(raw))
    return "cifar10"


def batch(folder: Path, raw: bytes) -> str:
    (folder / "cifar-10-batches-py").mkdir(exist_ok=True)
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(raw)
    return "cifar10"


def pickle_with_a_large_memo(folder: Path) -> str:
    return batch(folder, b"\x80\x02}r" + struct.pack("<I", 2**32 - 1) + b".")


def pickle_of_lists_in_lists(folder: Path) -> str:
    labels: list[Any] = [0] * 10
    for _ in range(30):
        labels = [labels] * 10
    return batch(folder, pickle.dumps({b"data": np.zeros((10, 3072), np.uint8), b"labels": labels}, 2))


def pickle_of_many_operations(folder: Path) -> str:
    return batch(folder, b"\x80\x02" + b"N0" * 600_000 + b"N.")


def parquet_file(folder: Path, encoded: list[bytes], labels: list[int] | None = None) -> str:
    images = {"bytes": pa.array(encoded), "path": pa.array(["a"] * len(encoded))}
    columns = {
        "img": pa.StructArray.from_arrays(list(images.values()), list(images)),
        "label": labels or [0] * len(encoded),
    }
    (folder / "cifar10").mkdir()
    pq.write_table(pa.table(columns), folder / "cifar10" / "test.parquet", compression="zstd")
    return "cifar10"


def parquet_with_a_page_that_the_footer_belittles(folder: Path) -> str:
    """62 kB of this kind took 7.5 GB: the sizes in the footer are small, those in the pages are not."""
    name = parquet_file(folder, [files.encoded(files.some_images(1)[0][0]) + bytes(2**20)])
    path = folder / "cifar10" / "test.parquet"
    raw, group = path.read_bytes(), pq.read_metadata(path).row_group(0)
    footer = raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8]
    told = footer
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        told = told.replace(varint(size), b"\x80\x88\x80\x00")  # 512, in four bytes too
    assert len(varint(group.total_byte_size)) == 4 and told != footer
    path.write_bytes(raw[: -8 - len(footer)] + told + raw[-8:])
    assert pq.read_metadata(path).row_group(0).total_byte_size == 512
    return name


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes a positive number."""
    number, out = 2 * number, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def parquet_that_repeats_a_value(folder: Path) -> str:
    return parquet_file(folder, [files.encoded(files.some_images(1)[0][0]) + bytes(50_000)] * 100)


HOSTILE: list[Callable[[Path], str]] = [
    zip_bomb_idx,
    zip_bomb_mat,
    mat_with_an_element_beyond_its_end,
    zip_bomb_tar,
    tar_with_a_long_name,
    pickle_with_a_large_memo,
    pickle_of_lists_in_lists,
    pickle_of_many_operations,
    parquet_with_a_page_that_the_footer_belittles,
    parquet_that_repeats_a_value,
]


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_a_hostile_file_is_refused_in_one_line(make: Callable[[Path], str], tmp_path: Path) -> None:
    name = make(tmp_path)
    with pytest.raises(InputError) as caught:
        load(name, "test", data_dir=tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def png_header(width: int, height: int) -> bytes:
    """An image of which only the beginning is there."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = b"IDAT" + zlib.compress(b"")
    chunks = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (chunk, end))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")  # Pillow warns, and recarc refuses
def test_a_huge_image_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(InputError, match=r"huge\.png is 9000x9000; expected at most"):
        decode.open_image(png_header(9_000, 9_000), "huge.png")


def test_a_line_of_pixels_is_not_blown_up() -> None:
    buffer = io.BytesIO()
    Image.new("L", (200_000, 1)).save(buffer, "PNG")
    with pytest.raises(InputError, match=r"line\.png is 200000x1"):
        decode.cropped(buffer.getvalue(), "line.png")


def test_formats_that_start_other_programs_are_refused() -> None:
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n%%EOF\n"
    assert Image.open(io.BytesIO(script)).format == "EPS"
    with pytest.raises(InputError, match="not an image that Pillow can read"):
        decode.open_image(script, "x.png")


def test_pipes_are_refused(tmp_path: Path) -> None:
    images, labels = files.some_images(2)
    files.write_folder(tmp_path / "test", images, labels)
    os.mkfifo(tmp_path / "test" / "class0" / "a.png")
    with pytest.raises(InputError, match=r"a\.png: not a plain file"):
        load(tmp_path)


def test_more_rows_than_a_file_can_hold_are_refused(tmp_path: Path) -> None:
    parquet_file(tmp_path, [b"x"] * 20_000)
    with pytest.raises(InputError, match="says that it holds 20000 images: refused"):
        load("cifar10", "test", data_dir=tmp_path)


def test_headers_of_pages_are_read_as_arrow_writes_them(tmp_path: Path) -> None:
    """For every version and compression: as many values as the footer says, in pages of the sizes that Arrow knows."""
    names = files.write_parquet(tmp_path / "a.parquet", *files.some_images(30))
    for version, compression in (("1.0", "none"), ("2.0", "zstd"), ("2.0", "snappy")):
        sink = io.BytesIO()
        small = {"data_page_size": 500, "dictionary_pagesize_limit": 800}
        pq.write_table(pq.read_table(names), sink, compression=compression, data_page_version=version, **small)
        data, metadata = sink.getvalue(), pq.read_metadata(sink)
        for chunk in parquet_pages._chunks(metadata, None):
            pages = list(parquet_pages._pages(data, chunk))
            assert sum(page.values for page in pages if page.kind != parquet_pages.DICTIONARY) == 30
            headers = chunk.total_compressed_size - sum(page.packed for page in pages)
            assert 0 < headers < 60_000 and (chunk.path_in_schema != "img.bytes" or len(pages) > 5)


def test_names_that_are_not_utf_8_are_names(tmp_path: Path) -> None:
    images, labels = files.some_images(4, size=224)
    root = files.write_folder(tmp_path / "test", images, labels)
    (root / "class0" / "0000.png").rename(root / "class0" / os.fsdecode(b"caf\xe9.png"))
    assert len(load(tmp_path)) == 4 and len(load(tmp_path).fingerprint) == 64
