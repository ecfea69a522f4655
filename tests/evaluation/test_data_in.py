"""Arrays, torch data sets and loaders give the figures of the tensors they hold; or they are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, QUICK, problem, records_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from recarc import InputError, RandomizedEnsemble, evaluate
from recarc.data import ImageSet
from recarc.evaluation.samples import as_samples

ENSEMBLE, (X, Y) = problem()


class Items(Dataset[Any]):
    """Counts what is read."""

    def __init__(self, x: Any = X, y: Any = Y) -> None:
        self.x, self.y, self.read = x, y, 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        self.read += 1
        return self.x[i], self.y[i]


def mapped(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    np.save(folder / "x.npy", X.numpy())
    return np.load(folder / "x.npy", mmap_mode="r"), Y.numpy()


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: (X.numpy(), Y.numpy().astype(np.int32)),
        mapped,
        lambda folder: TensorDataset(X, Y),
        lambda folder: Subset(TensorDataset(X, Y), range(len(X))),
        lambda folder: Items(X.numpy(), Y.tolist()),
        lambda folder: DataLoader(TensorDataset(X, Y), batch_size=7, drop_last=True),
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_same_records_as_tensors(make: Any, tmp_path: Path) -> None:
    evaluate(ENSEMBLE, QUICK, (X, Y), BALL, out=tmp_path / "tensors", progress=False)
    evaluate(ENSEMBLE, QUICK, make(tmp_path), BALL, out=tmp_path / "other", progress=False)
    assert records_of(tmp_path / "tensors") == records_of(tmp_path / "other")


def test_a_data_set_is_read_when_it_is_needed() -> None:
    x = torch.zeros(10_000, 6)
    items = Items(x, torch.zeros(10_000, dtype=torch.long))
    samples = as_samples(items)
    assert len(samples.fingerprint) == 64 and items.read < 50
    other = Items(x.clone(), torch.zeros(10_000, dtype=torch.long))
    other.x[-1] += 0.5
    assert as_samples(other).fingerprint != samples.fingerprint


class Noisy(Items):
    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.x[i] + torch.rand(6), self.y[i]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def stacked(items: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


@pytest.mark.parametrize(
    "data, says",
    [
        (DataLoader(TensorDataset(X, Y), shuffle=True), "shuffle=False"),
        (DataLoader(TensorDataset(X, Y), batch_sampler=[[0, 1], [2]]), "shuffles or samples"),
        (DataLoader(TensorDataset(X, Y), collate_fn=stacked), "its own collate_fn"),
        (Stream(), "without random access"),
        (Noisy(), "random transforms"),
        (Items((255 * X).byte()), r"uint8; expected floats.* ToTensor\(\)"),
        (Items(X, Y.float()), "expected an integer label"),
        (TensorDataset(X), "expected a pair"),
        (Items([X[0], X[1, :4]], [0, 1]), "different shapes"),
        (TensorDataset(X, Y + 5), r"labels span .*; the members know 0\.\.4"),
        (X, "a Tensor; expected recarc.data.load"),
        ((np.array(["a"]), np.array([1])), r"\(ndarray, Tensor\); expected two tensors"),
    ],
)
def test_refused(data: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        evaluate(ENSEMBLE, QUICK, data, BALL, progress=False)


def test_the_device_can_be_named() -> None:
    plain = evaluate(ENSEMBLE, QUICK, (X, Y), BALL, progress=False)
    for device in ("cpu", torch.device("cpu"), "auto"):
        named = evaluate(ENSEMBLE, QUICK, (X, Y), BALL, progress=False, device=device)
        assert named.robust == plain.robust
    member = ENSEMBLE.members[0]
    assert evaluate(lambda x: member(x), QUICK, (X, Y), BALL, progress=False, device="cpu").complete
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        evaluate(ENSEMBLE, QUICK, (X, Y), BALL, progress=False, device="gpu")


def test_classes_without_names_may_be_fewer_than_the_members_know() -> None:
    """A Parquet set without names is taken to have as many classes as its largest label says."""
    ensemble, (x, y) = problem()
    labels = y.numpy() % 3

    def images(*names: str) -> ImageSet:
        pixels = (255 * x).round().clamp(0, 255).to(torch.uint8).reshape(len(x), 1, 1, 6).numpy()
        return ImageSet("own", "test", pixels, labels, names, "fingerprint")

    flat = RandomizedEnsemble([nn.Sequential(nn.Flatten(), m) for m in ensemble.members])
    assert evaluate(flat, QUICK, images("0", "1", "2"), BALL).complete
    with pytest.raises(InputError, match="has 5 classes, own has 3"):
        evaluate(flat, QUICK, images("cat", "dog", "bird"), BALL)
    with pytest.raises(InputError, match="has 5 classes, own has 6"):
        evaluate(flat, QUICK, images(*"012345"), BALL)
