"""The real CIFAR-10, where RECARC_DATA holds it."""

from __future__ import annotations

import os
import time

import pytest

from recarc.data import CATALOG, load
from recarc.data.loading import locate


@pytest.fixture
def real_data() -> None:
    if not os.environ.get("RECARC_DATA"):
        pytest.skip("RECARC_DATA is not set; it names the folder that holds the real CIFAR-10")
    if locate(CATALOG["cifar10"], "test", None) is None:
        pytest.skip(f"no CIFAR-10 in RECARC_DATA={os.environ['RECARC_DATA']}")


def test_real_test_split(real_data: None) -> None:
    images = load("cifar10")
    assert images.fingerprint == CATALOG["cifar10"].fingerprints["test"]
    assert images.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    start = time.perf_counter()
    again = load("cifar10", limit=200)
    assert time.perf_counter() - start < 1 and len(again) == 200
    x, _ = again.tensors()
    assert x.shape == (200, 3, 32, 32) and x.min() >= 0 and x.max() <= 1
