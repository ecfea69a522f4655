"""`recarc data list`, `get` and `check`, and that nothing goes to the network unasked."""

from __future__ import annotations

import dataclasses
import re
import socket
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest

from recarc.data import CATALOG, available, check, get, load
from recarc.errors import InputError, RecarcWarning


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def small_official(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 and ImageNet as if their official sizes were tiny and their contents unknown."""
    cifar = dataclasses.replace(CATALOG["cifar10"], splits={"train": 20, "test": 10}, fingerprints={})
    imagenet = dataclasses.replace(CATALOG["imagenet"], splits={"train": 9, "validation": 5})
    monkeypatch.setitem(CATALOG, "cifar10", cifar)
    monkeypatch.setitem(CATALOG, "imagenet", imagenet)


class FakeRows:
    """As much of `datasets.Dataset` as is used."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, image: str) -> None:
        self.rows = [
            {image: {"bytes": files.encoded(x), "path": None}, "label": int(y)} for x, y in zip(images, labels)
        ]
        self.features = {image: None, "label": types.SimpleNamespace(names=None)}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Any:
        return iter(self.rows)

    def cast_column(self, *_: Any) -> FakeRows:
        return self

    def iter(self, batch_size: int) -> Any:
        for start in range(0, len(self.rows), batch_size):
            some = self.rows[start : start + batch_size]
            yield {name: [row[name] for row in some] for name in some[0]}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """A stand-in for the `datasets` library, and a network that answers."""
    calls: list[tuple] = []

    def load_dataset(*args: Any, **options: Any) -> FakeRows:
        calls.append((*args, options["split"]))
        assert re.fullmatch("[0-9a-f]{40}", options["revision"])  # whoever owns the repository cannot change the set
        if args[0] == "ILSVRC/imagenet-1k":
            return FakeRows(*files.some_images(5, size=224, classes=5), "image")
        return FakeRows(*files.some_images(20 if options["split"] == "train" else 10), "img")

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    module.Image = lambda decode: None  # type: ignore[attr-defined]
    module.__spec__ = types.SimpleNamespace(name="datasets")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: types.SimpleNamespace(close=lambda: None))
    return calls


def test_missing_offline_fails_at_once_and_says_what_to_put_where(no_network: None) -> None:
    for name in ("mnist", "fashion_mnist", "cifar10", "cifar100", "svhn", "imagenet"):
        start = time.perf_counter()
        with pytest.raises(InputError) as error:
            load(name)
        assert time.perf_counter() - start < 2
        text = str(error.value)
        assert "\n" not in text and all(
            w in text for w in ("parquet", f"DIR/{name}", "RECARC_DATA", f"data get {name}")
        )


def test_missing_data_dir_and_env_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'/nowhere' does not exist"):
        load("cifar10", data_dir="/nowhere")
    monkeypatch.setenv("RECARC_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"RECARC_DATA={tmp_path}"):
        load("cifar10")


def test_get_without_network_fails_at_once(hub: list[tuple], no_network: None) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"cannot be reached .*DIR/cifar10"):
        get("cifar10")
    assert time.perf_counter() - start < 2 and not hub


def test_get_does_not_wait_for_a_silent_network(hub: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = types.SimpleNamespace(close=lambda: None)
    monkeypatch.setattr("recarc.data.hub.CONNECT_TIMEOUT", 0.1)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: time.sleep(1) or answer)
    start = time.perf_counter()
    with pytest.raises(InputError, match="no answer"):
        get("cifar10")
    assert time.perf_counter() - start < 2


def test_get_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"recarc\[data\]"):
        get("cifar10")


def test_get_then_load(hub: list[tuple], small_official: None, tmp_path: Path) -> None:
    got = get("cifar10")
    assert [(s.split, len(s)) for s in got] == [("train", 20), ("test", 10)]
    assert hub == [("uoft-cs/cifar10", "plain_text", "train"), ("uoft-cs/cifar10", "plain_text", "test")]
    again = load("cifar10")
    assert (
        np.array_equal(again.images, files.some_images(10)[0])
        and "cifar10/test/uoft-cs-cifar10-00000.parquet" in again.source
    )
    get("cifar10")
    assert len(hub) == 2
    found = check("cifar10").findings  # random pixels have the right number but not the right mean
    assert [(f.split, f.what) for f in found if not f.ok] == [("train", "statistics")]


def test_get_of_a_wrong_number_is_refused(hub: list[tuple], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gives 10 images for cifar10 test; expected 10000"):
        get("cifar10", "test")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_get_imagenet_keeps_shards_and_streams(hub: list[tuple], small_official: None) -> None:
    (got,) = get("imagenet")
    assert got.streamed and len(got) == 5
    images, labels = files.some_images(5, size=224, classes=5)
    again = load("imagenet", "test")
    assert np.array_equal(again.images[:], images) and np.array_equal(again.labels, labels)
    assert len(hub) == 1
    row = next(r for r in available() if r.name == "imagenet")
    assert "validation found" in row.state and "train missing" in row.state


def test_a_stream_that_breaks_leaves_nothing_and_says_why(
    hub: list[tuple], small_official: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: FakeRows) -> Any:
        yield from FakeRows(*files.some_images(2, size=224), "image").rows
        raise ConnectionError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(FakeRows, "__iter__", cut)
        with pytest.raises(InputError, match=r"cannot download imagenet .*connection lost"):
            get("imagenet")
    assert not list((tmp_path / "cache/data/downloads/imagenet").iterdir())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RECARC_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot write the cache .*/imagenet: "):
        get("imagenet")


def test_what_the_hub_raises_becomes_one_line(hub: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    def gated(*_: Any, **__: Any) -> None:
        raise RuntimeError("Dataset is a gated dataset.\nMore lines")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", gated)
    with pytest.raises(InputError, match="log in") as error:
        get("imagenet")
    assert "\n" not in str(error.value)


def test_available_states(tmp_path: Path) -> None:
    files.write_parquet(tmp_path / "cifar10/test.parquet", *files.some_images(10))
    rows = {row.name: row for row in available(tmp_path)}
    assert list(rows) == list(CATALOG) and rows["digits"].state == "embedded"
    assert rows["cifar10"].state == "train missing, test found" and "test.parquet" in rows["cifar10"].detail
    assert rows["svhn"].state == "missing" and "train_32x32.mat" in rows["svhn"].detail
    assert rows["cifar100"].classes == 100 and rows["cifar100"].images == {"train": 50000, "test": 10000}
    load("cifar10", data_dir=tmp_path)
    rows = {row.name: row for row in available(tmp_path)}
    assert rows["cifar10"].state == "train missing, test cached"


def test_check_counts_and_statistics(tmp_path: Path, small_official: None) -> None:
    assert check("digits").ok
    images, labels = files.some_images(10)
    files.write_parquet(tmp_path / "cifar10/test.parquet", images, labels)
    good = check("cifar10", data_dir=tmp_path)
    assert good.ok
    mean = images.mean((0, 2, 3)) / 255
    (statistics,) = (f for f in good.findings if f.what == "statistics")
    assert f"mean {mean[0]:.4f} {mean[1]:.4f} {mean[2]:.4f}" in statistics.detail and "0.4914" in statistics.detail
    files.write_parquet(tmp_path / "cifar10/train.parquet", images, labels)
    bad = check("cifar10", data_dir=tmp_path)
    assert not bad.ok and any("official number is 20" in f.detail for f in bad.findings if not f.ok)


def test_check_tells_of_a_damaged_cache(tmp_path: Path, small_official: None) -> None:
    files.write_parquet(tmp_path / "cifar10/test.parquet", *files.some_images(10))
    first = load("cifar10", data_dir=tmp_path)
    (body,) = (tmp_path / "cache/data").glob("*.bin")
    before, raw = body.stat(), body.read_bytes()
    body.unlink()
    body.write_bytes(b"\0\1\2" + raw[3:])
    import os

    os.utime(body, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a failing disk would: the time stays
    found = check("cifar10", data_dir=tmp_path)
    assert any("damaged" in f.detail for f in found.findings)
    assert load("cifar10", data_dir=tmp_path).fingerprint == first.fingerprint and body.read_bytes() == raw


def test_check_reports_broken_files(tmp_path: Path) -> None:
    path = files.write_parquet(tmp_path / "cifar10/test.parquet", *files.some_images(10))
    path.write_bytes(path.read_bytes()[:-50])
    found = check("cifar10", data_dir=tmp_path)
    assert not found.ok and str(path) in found.findings[0].detail
    with pytest.raises(InputError, match="svhn test is not in"):
        check("svhn", data_dir=tmp_path)


def test_check_of_wrong_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = dataclasses.replace(CATALOG["cifar10"], splits={"test": 10})
    monkeypatch.setitem(CATALOG, "cifar10", spec)
    files.write_parquet(tmp_path / "test.parquet", *files.some_images(10))
    found = check("cifar10", data_dir=tmp_path)
    assert [f.what for f in found.findings if not f.ok] == ["contents"]


def test_contents_of_the_official_size_that_are_not_the_official_ones_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load("digits", "test")
    other = dataclasses.replace(CATALOG["digits"], fingerprints={"test": "0" * 64})
    monkeypatch.setitem(CATALOG, "digits", other)
    with pytest.warns(RecarcWarning, match=r"digits test \(scikit-learn\) has the official size, but other pixels"):
        assert len(load("digits", "test", limit=5)) == 5
