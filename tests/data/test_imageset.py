from __future__ import annotations

import numpy as np
import pytest
import torch

from recarc.data import CATALOG, ImageSet, load, statistics
from recarc.data.loading import _digits_of_sklearn
from recarc.errors import InputError


@pytest.fixture
def digits() -> ImageSet:
    return load("digits")


def test_digits_are_exact(digits: ImageSet) -> None:
    from sklearn.datasets import load_digits

    official = load_digits()
    images, labels = _digits_of_sklearn()
    assert np.array_equal(images[:, 0], official.images) and np.array_equal(labels, official.target)
    x, y = digits.tensors()
    assert x.dtype == torch.float32 and y.dtype == torch.int64 and x.shape == (355, 1, 8, 8)
    assert torch.equal(x * 16, digits.uint8().float()) and x.min() == 0 and x.max() == 1


def test_digits_split_is_fixed_disjoint_and_stratified() -> None:
    train, test = load("digits", "train"), load("digits", "test")
    for part in (train, test):
        assert len(part) == CATALOG["digits"].splits[part.split]
        assert part.fingerprint == CATALOG["digits"].fingerprints[part.split]
    whole = np.concatenate([train.images, test.images]).reshape(1797, -1)
    original = _digits_of_sklearn()[0].reshape(1797, -1)
    assert sorted(map(bytes, whole)) == sorted(map(bytes, original))
    share = np.bincount(test.labels) / (np.bincount(test.labels) + np.bincount(train.labels))
    assert np.all(np.abs(share - 0.2) < 0.006)


@pytest.mark.parametrize("indices", [[3, 1, 2], np.array([3, 1, 2]), torch.tensor([3, 1, 2]), [-352, 1, 2]])
def test_batch_takes_any_kind_of_indices(digits: ImageSet, indices: object) -> None:
    x, y = digits.batch(indices)
    assert torch.equal(x, digits.tensors()[0][[3, 1, 2]]) and y.tolist() == digits.labels[[3, 1, 2]].tolist()


def test_batch_of_slice_and_of_nothing(digits: ImageSet) -> None:
    assert digits.batch(slice(2, 5))[0].shape == (3, 1, 8, 8)
    assert digits.batch([])[0].shape == (0, 1, 8, 8)


@pytest.mark.parametrize("indices", [[355], [-356], [0.5], [[1, 2]], ["a"]])
def test_bad_indices(digits: ImageSet, indices: object) -> None:
    with pytest.raises(InputError, match="ind"):
        digits.batch(indices)


def test_batches_can_be_changed_without_touching_the_set(digits: ImageSet) -> None:
    before = digits.batch([0])[0].clone()
    digits.batch([0])[0].zero_()
    digits.uint8().zero_()
    assert torch.equal(digits.batch([0])[0], before)


def test_fingerprint_follows_contents_and_order(digits: ImageSet) -> None:
    first = digits.limit(20)
    assert len(first) == 20 and first.fingerprint == digits.subset(range(20)).fingerprint
    assert first.fingerprint == digits.subset(range(50)).subset(slice(0, 20)).fingerprint
    assert first.fingerprint != digits.subset([1, 0, *range(2, 20)]).fingerprint
    assert first.fingerprint != digits.limit(19).fingerprint
    assert digits.subset(slice(None)).fingerprint == digits.fingerprint == digits.limit(1000).fingerprint


@pytest.mark.parametrize("limit", [0, -1, 2.5, True, "3"])
def test_bad_limit(limit: object) -> None:
    with pytest.raises(InputError, match="limit"):
        load("digits", limit=limit)  # type: ignore[arg-type]


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        load("cifar1")
    with pytest.raises(InputError, match=r"split of digits 'tset'.*did you mean 'test'.*train"):
        load("digits", "tset")
    with pytest.raises(InputError, match="unknown data set"):
        statistics("cifar")


def test_names_may_be_spelled_as_people_do() -> None:
    assert load("Digits").name == "digits"
    assert statistics("CIFAR-10")[0] == (0.4914, 0.4822, 0.4465)


def test_catalogue_is_consistent() -> None:
    for spec in CATALOG.values():
        assert len(set(spec.classes)) == len(spec.classes) and spec.evaluation in spec.splits
        assert spec.mean is not None and spec.std is not None
        assert len(spec.mean) == len(spec.std) == spec.shape[0]
    assert len(CATALOG["cifar100"].classes) == 100
    assert list(CATALOG["cifar100"].classes) == sorted(CATALOG["cifar100"].classes)


def test_import_is_light() -> None:
    import subprocess
    import sys

    code = (
        "import sys, types; package = types.ModuleType('recarc'); import importlib.util as u;"
        "package.__path__ = u.find_spec('recarc').submodule_search_locations; sys.modules['recarc'] = package;"
        "import recarc.data; recarc.data.load('digits');"
        "print([m for m in ('torch', 'pyarrow', 'PIL', 'sklearn', 'scipy', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
