"""Every layout gives the same pixels and labels; every damaged file gives one line."""

from __future__ import annotations

import pickle
from pathlib import Path

import data_files as files
import numpy as np
import pytest

from recarc.data import CATALOG, load
from recarc.errors import InputError


def check_same(got: object, images: np.ndarray, labels: np.ndarray) -> None:
    assert np.array_equal(got.images, images) and np.array_equal(got.labels, labels)  # type: ignore[attr-defined]
    assert got.labels.dtype == np.int64  # type: ignore[attr-defined]


@pytest.fixture
def ten() -> tuple[np.ndarray, np.ndarray]:
    return files.some_images(10)


def one_line(error: pytest.ExceptionInfo[InputError], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


# Parquet


@pytest.mark.parametrize(
    ("place", "data_dir"),
    [
        ("cifar10/test.parquet", "."),
        ("cifar10/test.parquet", "cifar10"),
        ("cifar10/test.parquet", "cifar10/test.parquet"),
        ("cifar10/data/test-00000-of-00001.parquet", "."),
        ("CIFAR-10/plain_text/test-00000-of-00001.parquet", "."),
        ("cifar10/plain_text/test/0000.parquet", "cifar10"),
        ("cifar10-test.parquet", "."),
        ("cifar10.parquet", "."),
    ],
)
def test_parquet_layouts(tmp_path: Path, ten: tuple, place: str, data_dir: str) -> None:
    files.write_parquet(tmp_path / place, *ten)
    got = load("cifar10", data_dir=tmp_path / data_dir)
    check_same(got, *ten)
    assert got.classes == CATALOG["cifar10"].classes and place.split("/")[-1] in got.source


def test_parquet_shards_in_order_and_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = files.some_images(30)
    for i in range(3):
        part = slice(10 * i, 10 * i + 10)
        files.write_parquet(
            tmp_path / f"svhn/train-0000{i}-of-00003.parquet", images[part], labels[part], image="image"
        )
    monkeypatch.setenv("RECARC_DATA", str(tmp_path))
    check_same(load("svhn", "train"), images, labels)
    check_same(load("svhn", "train", limit=12), images[:12], labels[:12])


def test_parquet_cifar100_takes_fine_labels(tmp_path: Path) -> None:
    images, labels = files.some_images(12, classes=100)
    path = files.write_parquet(tmp_path / "cifar100/test.parquet", images, labels, label="fine_label")
    check_same(load("cifar100", data_dir=tmp_path), images, labels)
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=files.write_parquet(tmp_path / "x/test.parquet", images, labels, label="fine_label"))
    one_line(error, "columns img, fine_label", "label")
    assert path.exists()


def test_other_sets_in_the_same_folder_are_not_taken(tmp_path: Path, ten: tuple) -> None:
    files.write_parquet(tmp_path / "cifar100/test.parquet", *ten, label="fine_label")
    files.write_parquet(tmp_path / "svhn-test.parquet", *ten)
    for place in (tmp_path, tmp_path / "cifar100"):
        with pytest.raises(InputError) as error:
            load("cifar10", data_dir=place)
        one_line(error, "cifar10 test is not in", "cifar-10-batches-py", "RECARC_DATA", "recarc data get cifar10")


def test_truncated_and_foreign_parquet(tmp_path: Path, ten: tuple) -> None:
    path = files.write_parquet(tmp_path / "cifar10/test.parquet", *ten)
    raw = path.read_bytes()
    for damaged in (raw[: len(raw) // 2], b"", b"not parquet at all"):
        path.write_bytes(damaged)
        with pytest.raises(InputError) as error:
            load("cifar10", data_dir=tmp_path)
        one_line(error, str(path), "truncated")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_damage_inside_parquet_never_passes(tmp_path: Path, ten: tuple) -> None:
    path = files.write_parquet(tmp_path / "cifar10/test.parquet", *ten)
    raw = bytearray(path.read_bytes())
    raw[2000:12000] = bytes(10000)
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=tmp_path)
    one_line(error, str(path))


@pytest.mark.parametrize("size", [32, 224])  # decoded into the cache, and on demand
@pytest.mark.parametrize(
    "labels, says",
    [
        ([0, 1, 200_000_000], "label 200000000 of image 2"),
        ([0, 1, 2**62], "label"),
        ([0, 1, 1.5], "does not hold integers"),
        ([0, 1, None], "does not hold integers"),
        (["a", "b", "c"], "does not hold integers"),
    ],
)
def test_labels_are_whole_numbers_of_a_sensible_size(labels: list, says: str, size: int, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"bytes": files.encoded(x), "path": ""} for x in files.some_images(3, size=size)[0]]
    pq.write_table(pa.table({"image": rows, "label": labels}), tmp_path / "test.parquet")
    with pytest.raises(InputError) as error:
        load(tmp_path / "test.parquet")
    one_line(error, says)


@pytest.mark.parametrize("label", [10, -1])
def test_labels_out_of_range(tmp_path: Path, ten: tuple, label: int) -> None:
    images, labels = ten
    labels[7] = label
    files.write_parquet(tmp_path / "cifar10/test.parquet", images, labels)
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=tmp_path)
    one_line(error, f"label {label} of image 7", "0..9")


def test_wrong_size_and_no_rows(tmp_path: Path) -> None:
    files.write_parquet(tmp_path / "cifar10/test.parquet", *files.some_images(3, size=28))
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=tmp_path)
    one_line(error, "28x28", "32x32", "row 0")
    files.write_parquet(tmp_path / "svhn/test.parquet", *files.some_images(0))
    with pytest.raises(InputError):
        load("svhn", data_dir=tmp_path)


# CIFAR's archives


def test_cifar10_folder_and_archive(tmp_path: Path) -> None:
    images, labels = files.some_images(50)
    parts = {f"data_batch_{i + 1}": slice(10 * i, 10 * i + 10) for i in range(5)}
    members = {
        f"cifar-10-batches-py/{name}": files.cifar_batch(images[part], labels[part]) for name, part in parts.items()
    }
    files.write_tar(tmp_path / "tar/cifar-10-python.tar.gz", members)
    folder = tmp_path / "plain/cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, raw in members.items():
        (folder / Path(name).name).write_bytes(raw)
    marks = set()
    for place in (tmp_path / "tar", tmp_path / "tar/cifar-10-python.tar.gz", tmp_path / "plain", folder):
        got = load("cifar10", "train", data_dir=place)
        check_same(got, images, labels)
        marks.add(got.fingerprint)
    assert len(marks) == 1


def test_cifar_written_by_python_2(tmp_path: Path, ten: tuple) -> None:
    (tmp_path / "test_batch").write_bytes(files.python2_batch(*ten))
    assert pickle.loads((tmp_path / "test_batch").read_bytes(), encoding="bytes")[b"data"].shape == (10, 3072)
    check_same(load("cifar10", data_dir=tmp_path), *ten)


def test_cifar100_archive(tmp_path: Path) -> None:
    images, labels = files.some_images(20, classes=100)
    raw = files.cifar_batch(images, labels, "fine_labels")
    files.write_tar(tmp_path / "cifar-100-python.tar.gz", {"cifar-100-python/test": raw})
    check_same(load("cifar100", data_dir=tmp_path), images, labels)


class _Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


class _Shell(_Evil):
    def __reduce__(self) -> tuple:
        import os

        return os.system, (f"touch {self.marker}",)


class _Eval(_Evil):
    def __reduce__(self) -> tuple:
        return eval, (f"open({str(self.marker)!r}, 'w')",)


@pytest.mark.parametrize("evil", [_Evil, _Shell, _Eval])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickle_with_code_is_refused_without_running_it(tmp_path: Path, evil: type[_Evil], protocol: int) -> None:
    marker = tmp_path / "was-run"
    raw = pickle.dumps({b"data": evil(marker), b"labels": [0]}, protocol=protocol)
    (tmp_path / "test_batch").write_bytes(raw)
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=tmp_path)
    one_line(error, "refused", "test_batch", "official archive")
    assert not marker.exists()
    files.write_tar(tmp_path / "tar/cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": raw})
    with pytest.raises(InputError, match="refused"):
        load("cifar10", data_dir=tmp_path / "tar")
    assert not marker.exists()
    pickle.loads(raw)  # the file is what it claims to be: an ordinary reader runs it
    assert marker.exists()


def test_damaged_cifar(tmp_path: Path, ten: tuple) -> None:
    raw = files.cifar_batch(*ten)
    path = tmp_path / "test_batch"
    for damaged in (
        raw[:5000],
        b"",
        raw.replace(b"labels", b"lebals"),
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": 3}),
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError) as error:
            load("cifar10", data_dir=tmp_path)
        one_line(error, str(path))
    tar = files.write_tar(tmp_path / "tar/cifar-10-python.tar.gz", {"cifar-10-batches-py/test_batch": raw})
    tar.write_bytes(tar.read_bytes()[:-4000])
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=tar.parent)
    one_line(error, str(tar))
    files.write_tar(tar, {"something/else": raw})
    with pytest.raises(InputError) as error:
        load("cifar10", data_dir=tar.parent)
    one_line(error, str(tar), "test_batch")


# SVHN's .mat files


def test_svhn_mat(tmp_path: Path) -> None:
    images, labels = files.some_images(25)
    files.write_mat(tmp_path / "svhn/test_32x32.mat", images, labels)
    got = load("svhn", data_dir=tmp_path)
    check_same(got, images, labels)
    assert set(got.labels) == set(range(10))


def test_damaged_mat(tmp_path: Path) -> None:
    path = files.write_mat(tmp_path / "test_32x32.mat", *files.some_images(25))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError) as error:
        load("svhn", data_dir=tmp_path)
    one_line(error, str(path), "get it again")
    files.write_mat(path, *files.some_images(5, size=30))
    with pytest.raises(InputError) as error:
        load("svhn", data_dir=tmp_path)
    one_line(error, "(30, 30, 3, 5)", "(32, 32, 3, N)")


# idx


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_idx(tmp_path: Path, gz: bool, place: str) -> None:
    images, labels = files.some_images(12, 1, 28)
    files.write_idx(tmp_path / place, "t10k", images, labels, gz)
    got = load("mnist", data_dir=tmp_path)
    check_same(got, images, labels)
    assert got.batch([3])[0].numpy().tobytes() == (images[3:4].astype(np.float32) / np.float32(255)).tobytes()


def test_mnist_does_not_pass_for_fashion(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "mnist", "t10k", *files.some_images(12, 1, 28))
    with pytest.raises(InputError, match="fashion_mnist test is not in"):
        load("fashion_mnist", data_dir=tmp_path / "mnist")


def test_damaged_idx(tmp_path: Path) -> None:
    images, labels = files.some_images(12, 1, 28)
    files.write_idx(tmp_path, "t10k", images, labels)
    path, other = tmp_path / "t10k-images-idx3-ubyte", tmp_path / "t10k-labels-idx1-ubyte"
    raw = path.read_bytes()
    cases = {
        "holds": raw[:-1],
        "truncated": raw + b"x",
        "00000801": other.read_bytes(),
        "nothing": b"",
        "holds 10": raw[:10],
    }
    for word, damaged in cases.items():
        path.write_bytes(damaged)
        with pytest.raises(InputError) as error:
            load("mnist", data_dir=tmp_path)
        one_line(error, str(path), word)
    files.write_idx(tmp_path, "t10k", images[:5], labels[:5])
    path.write_bytes(raw)
    with pytest.raises(InputError) as error:
        load("mnist", data_dir=tmp_path)
    one_line(error, "12 images", "5 labels")


def test_damaged_gz(tmp_path: Path) -> None:
    files.write_idx(tmp_path, "t10k", *files.some_images(12, 1, 28), gz=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError) as error:
        load("mnist", data_dir=tmp_path)
    one_line(error, str(path), "truncated")
