"""All four data sets in their official formats, tiny, and a setup that trains toy members once per worker."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from data_files import cifar_batch, write_mat, write_parquet

from paper import setup as home
from paper.scale import TOY
from paper.setup import Setup
from recarc import RandomizedEnsemble
from recarc.data.loading import load
from recarc.models import build

COUNTS = {"train": 40, "test": 8}


def digits(split: str, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits as colour images of this size."""
    found = load("digits", split, limit=COUNTS[split])
    grey = np.asarray(found.images) * 15
    return np.repeat(np.kron(grey, np.ones((1, 1, size // 8, size // 8), np.uint8)), 3, axis=1), found.labels


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for split in COUNTS:
        images, labels = digits(split)
        write_parquet(root / "cifar10" / f"{split}.parquet", images, labels)
        write_mat(root / "svhn" / f"{split}_32x32.mat", images, labels)
        folder = root / "cifar-100-python"
        folder.mkdir(exist_ok=True)
        (folder / split).write_bytes(cifar_batch(images, labels, "fine_labels"))
        photographs, labels = digits(split, 64)
        name = "validation" if split == "test" else "train"
        write_parquet(root / "imagenet" / f"{name}.parquet", photographs, labels, image="image")
    return root


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tests here only: the same process runs tests of other folders, which have their own data."""
    monkeypatch.setenv("RECARC_CACHE", str(cache_dir))
    monkeypatch.delenv("RECARC_DATA", raising=False)
    monkeypatch.setattr(home, "pretrained", three_small_members)


def three_small_members(recipe: object) -> RandomizedEnsemble:
    """In place of the pretrained ones, which need an optional package."""
    torch.manual_seed(0)
    return RandomizedEnsemble([build("cnn", 1000, 3, 16, width=2).eval() for _ in range(3)])


@pytest.fixture(scope="session")
def toy_setup(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tmp_path_factory.mktemp("out"), torch.device("cpu"), data_dir=data_dir, scale=TOY, report=None)
