"""Arrays and tensors in files as a data set: the same pixels from every kind of file, and what is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest
import torch

from recarc.data import load
from recarc.errors import InputError

IMAGES, LABELS = files.some_images(12)


def save(folder: Path, kind: str) -> Path:
    """The path to give to --data."""
    if kind == "npz":
        return files.write_arrays(folder / "mine.npz", IMAGES, LABELS)
    if kind == "pt":
        return files.write_arrays(folder / "mine.pt", IMAGES, LABELS)
    if kind == "floats":
        np.savez(folder / "mine.npz", x_test=IMAGES.astype(np.float32) / 255, y_test=LABELS, x_train=1, y_train=2)
        return folder / "mine.npz"
    if kind == "channels last":
        np.savez(folder / "mine.npz", data=IMAGES.transpose(0, 2, 3, 1), targets=LABELS.astype(np.float64))
        return folder / "mine.npz"
    if kind == "pair":
        torch.save((torch.from_numpy(IMAGES) / 255, torch.from_numpy(LABELS)), folder / "mine.pt")
        return folder / "mine.pt"
    if kind == "folder of files":
        files.write_arrays(folder / "train.npz", IMAGES[:3], LABELS[:3])
        files.write_arrays(folder / "test.npz", IMAGES, LABELS)
        return folder
    np.save(folder / "x_test.npy", IMAGES)
    np.save(folder / "y_test.npy", LABELS)
    return folder


@pytest.mark.parametrize("kind", ["npz", "pt", "floats", "channels last", "pair", "folder of files", "two arrays"])
def test_every_kind_of_file_holds_the_same_images(kind: str, tmp_path: Path) -> None:
    found = load(save(tmp_path, kind), "test")
    assert np.array_equal(found.images, IMAGES) and found.labels.tolist() == LABELS.tolist()
    x, _ = found.tensors()
    assert torch.equal(x, torch.from_numpy(IMAGES) / 255)


def test_the_split_must_be_there(tmp_path: Path) -> None:
    path = files.write_arrays(tmp_path / "mine.npz", IMAGES, LABELS)
    with pytest.raises(InputError, match=r"no images_train or images of the split 'train'; it holds images, labels"):
        load(path, "train")
    assert len(load(files.write_arrays(tmp_path / "my-train.npz", IMAGES, LABELS), "train")) == 12
    assert len(load(save(tmp_path, "folder of files"), "train")) == 3
    with pytest.raises(InputError, match="has no folder 'val'"):
        load(tmp_path, "val")


def bomb() -> bytes:
    """A small .npz that would unpack to 4 GB."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as file:
        for _ in range(600):
            file.write(b"\0" * 2**20)
    return sink.getvalue()


def claims_too_much() -> bytes:
    sink, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 3, 4, 4)})
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("images.npy", header.getvalue())
    return sink.getvalue()


def saved(value: Any, name: str) -> bytes:
    sink = io.BytesIO()
    torch.save(value, sink) if name.endswith("pt") else np.savez(sink, **value)
    return sink.getvalue()


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("a.npz", bomb, "unpack to too many"),
        ("a.npz", claims_too_much, "which it does not hold"),
        ("a.npz", lambda: b"not an archive", "is not a zip file"),
        ("a.npz", lambda: saved({"images": np.array([{}]), "labels": LABELS}, "npz"), "not one of plain numbers"),
        ("a.pt", lambda: saved({"x": Evil(), "y": 1}, "pt"), "no file of plain tensors"),
        ("a.pt", lambda: saved([1, 2, 3], "pt"), "or the pair of them"),
        ("a.pt", lambda: saved((torch.zeros(1).expand(10**9, 1, 2, 2), 1), "pt"), "repeats its values too often"),
        ("a.npz", lambda: saved({"x": IMAGES / 7.0, "y": LABELS}, "npz"), r"in steps of 1/255, not normalised"),
        (
            "a.npz",
            lambda: saved({"x": IMAGES, "y": LABELS[:3]}, "npz"),
            r"shape \(3,\); expected one class index per image",
        ),
        ("a.npz", lambda: saved({"x": IMAGES[:0], "y": LABELS[:0]}, "npz"), "holds no images: its array is empty"),
        (
            "a.npz",
            lambda: saved({"x": np.where(IMAGES > 9, np.nan, IMAGES / 255), "y": LABELS}, "npz"),
            "hold NaN or infinity",
        ),
        ("a.npz", lambda: saved({"x": IMAGES[0, 0], "y": LABELS}, "npz"), r"expected \(N, C, H, W\)"),
    ],
)
def test_what_is_refused(name: str, make: Any, message: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / name).write_bytes(make())
    with pytest.raises(InputError, match=message):
        load(tmp_path / name)
    assert "executed" not in capsys.readouterr().out
