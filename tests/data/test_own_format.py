"""A data format is one class: what CONTRIBUTING promises, executed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import data_files as files
import numpy as np
import pytest

from recarc.data import Format, Spec, available, check, formats, load, register
from recarc.data.formats import Block, in_blocks, known_formats
from recarc.errors import InputError


@dataclass(frozen=True)
class Npz(Format):
    """SPLIT.npz with the arrays `images` and `labels`; in the package it would be formats/npz.py."""

    path: Path

    @classmethod
    def layout(cls, spec: Spec) -> str:
        return " and ".join(f"{split}.npz" for split in spec.usual_splits)

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Npz | None:
        path = root / f"{split}.npz"
        return cls(path) if path.is_file() else None

    def files(self) -> list[Path]:
        return [self.path]

    def blocks(self) -> Iterator[Block]:
        with np.load(self.path, allow_pickle=False) as content:
            yield from in_blocks(content["images"], content["labels"])


@pytest.fixture
def npz(monkeypatch: pytest.MonkeyPatch) -> None:
    known_formats()
    monkeypatch.setattr(formats, "_registered", [*formats._registered])
    register(Npz)


def test_a_registered_format_is_loaded_listed_and_checked(npz: None, tmp_path: Path) -> None:
    images, labels = files.some_images(10)
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / "cifar10/test.npz", images=images, labels=labels)
    by_name, by_path = load("cifar10", data_dir=tmp_path), load(tmp_path / "cifar10")
    assert np.array_equal(by_name.images, images) and by_name.fingerprint == by_path.fingerprint
    assert load("cifar10", data_dir=tmp_path).source == f"cache of {tmp_path / 'cifar10/test.npz'}"
    rows = {row.name: row for row in available(tmp_path)}
    assert rows["cifar10"].state == "train missing, test cached"
    assert "train.npz and test.npz" in rows["mnist"].detail
    findings = check("cifar10", data_dir=tmp_path).findings
    assert [f.what for f in findings if not f.ok] == ["count"] and "official number is 10000" in findings[1].detail
    with pytest.raises(InputError, match=r"svhn test is not in .*, or train.npz and test.npz, or train/CLASS"):
        load("svhn", data_dir=tmp_path)


def test_without_it_nothing_is_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", images=np.zeros(1), labels=np.zeros(1))
    with pytest.raises(InputError, match="cifar10 test is not in") as error:
        load("cifar10", data_dir=tmp_path)
    assert "npz" not in str(error.value)
