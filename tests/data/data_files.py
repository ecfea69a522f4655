"""Small files in the layouts that the data package reads."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def some_images(count: int, channels: int = 3, size: int = 32, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Random images (N, C, H, W) and labels that hit every class in turn."""
    random = np.random.default_rng(count)
    images = random.integers(0, 256, (count, channels, size, size), dtype=np.uint8)
    return images, np.arange(count) % classes


def encoded(image: np.ndarray, kind: str = "PNG") -> bytes:
    planes = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(planes).save(buffer, kind)
    return buffer.getvalue()


def write_arrays(path: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """Images and labels as .npz or .pt, as people save them."""
    if path.suffix == ".npz":
        np.savez_compressed(path, images=images, labels=labels)
    else:
        import torch

        torch.save({"x": torch.from_numpy(images), "y": torch.from_numpy(labels)}, path)
    return path


def write_parquet(
    path: Path,
    images: np.ndarray,
    labels: np.ndarray,
    image: str = "img",
    label: str = "label",
    names: list[str] | None = None,
    group: int = 4,
) -> Path:
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"bytes": encoded(x), "path": f"{i:05d}.png"} for i, x in enumerate(images)]
    table = pa.table({image: rows, label: pa.array(labels.tolist(), pa.int64())})
    if names:
        info = {"info": {"features": {label: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)
    return path


def write_idx(folder: Path, prefix: str, images: np.ndarray, labels: np.ndarray, gz: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    count, _, height, width = images.shape
    contents = {
        f"{prefix}-images-idx3-ubyte": struct.pack(">IIII", 0x803, count, height, width) + images.tobytes(),
        f"{prefix}-labels-idx1-ubyte": struct.pack(">II", 0x801, count) + labels.astype(np.uint8).tobytes(),
    }
    for name, raw in contents.items():
        (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(raw) if gz else raw)


def cifar_batch(images: np.ndarray, labels: np.ndarray, key: str = "labels") -> bytes:
    """A batch as the official ones are: protocol 2, with byte-string keys."""
    content = {b"data": images.reshape(len(images), -1), key.encode(): labels.tolist(), b"batch_label": b"a batch"}
    return pickle.dumps(content, protocol=2)


def python2_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The very opcodes that Python 2 wrote into the official files: short byte strings, `numpy.core.multiarray`."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = images.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
        b"(K\x01" + number(len(images)) + number(3072) + b"\x86"
        b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels.tolist()) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    return path


def write_mat(path: Path, images: np.ndarray, labels: np.ndarray) -> Path:
    """SVHN's layout: X (32, 32, 3, N), y (N, 1) with 10 for the digit 0."""
    import scipy.io

    path.parent.mkdir(parents=True, exist_ok=True)
    y = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    scipy.io.savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": y}, do_compression=True)
    return path


def write_folder(root: Path, images: np.ndarray, labels: np.ndarray, names: Any = None, kind: str = "png") -> Path:
    for i, (image, label) in enumerate(zip(images, labels)):
        folder = root / (names[label] if names else f"class{label}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:04d}.{kind}").write_bytes(encoded(image, "JPEG" if kind in ("jpg", "JPEG") else "PNG"))
    return root
