"""scikit-learn's digits: the image set that is always available.

1797 images of 8x8 grey values 0..16, stored unchanged with `levels` 16, so that [0, 1] is exact. The split is fixed
here: in a permutation drawn with SEED, the first fifth of every class is the test split. Both splits keep the order of
the permutation, so the first n images of a split are a fair sample of it.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from recarc.data.catalog import CATALOG
from recarc.data.imageset import ImageSet, fingerprint

SEED = 20220613
TEST_SHARE = 5  # one in five


def load_digits(split: str) -> ImageSet:
    """The train or test split."""
    spec = CATALOG["digits"]
    images, labels = _embedded()
    order = np.random.RandomState(SEED).permutation(len(labels))  # this generator's stream is frozen by numpy
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(len(spec.classes)):
        members = order[labels[order] == digit]
        is_test[members[: len(members) // TEST_SHARE]] = True
    rows = order[is_test[order] == (split == "test")]
    images, labels = np.ascontiguousarray(images[rows]), labels[rows]
    mark = fingerprint(images, labels, spec.levels)
    return ImageSet("digits", split, images, labels, spec.classes, mark, "scikit-learn", spec.levels)


def _embedded() -> tuple[np.ndarray, np.ndarray]:
    """Read from scikit-learn's own file, which is quick; if a release keeps it elsewhere, with its function."""
    package = importlib.util.find_spec("sklearn")
    for place in (package.submodule_search_locations or []) if package else []:
        path = Path(place, "datasets", "data", "digits.csv.gz")
        if path.is_file():
            with gzip.open(path, "rt") as file:
                table = np.loadtxt(file, delimiter=",", dtype=np.int64)
            return table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8), table[:, -1]
    from sklearn.datasets import load_digits as embedded

    bunch = embedded()
    return bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)
