"""The memory-mapped cache: quick, whole or not there, and safe between processes."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data_files as files
import numpy as np
import pytest

from recarc.atomic import PART
from recarc.data import cache, load
from recarc.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files.write_parquet(tmp_path / "cifar10/test.parquet", *files.some_images(10))
    return tmp_path


def entries(folder: Path) -> tuple[Path, Path]:
    (header,) = (folder / "cache/data").glob("*.json")
    (body,) = (folder / "cache/data").glob("*.bin")
    return header, body


def test_the_second_load_is_mapped_quick_and_needs_no_decoder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load("cifar10", data_dir=folder)
    for module in ("pyarrow", "pyarrow.parquet", "PIL", "PIL.Image", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    start = time.perf_counter()
    second = load("cifar10", data_dir=folder)
    assert time.perf_counter() - start < 1
    assert isinstance(second.images, np.memmap) and second.source.startswith("cache of")
    assert second.fingerprint == first.fingerprint and np.array_equal(second.images, first.images)
    with pytest.raises(ValueError, match="read-only"):
        second.images[0, 0, 0, 0] = 1


def test_changed_files_are_decoded_again(folder: Path) -> None:
    first = load("cifar10", data_dir=folder)
    files.write_parquet(folder / "cifar10/test.parquet", *files.some_images(11))
    assert len(load("cifar10", data_dir=folder)) == 11 and len(first) == 10


@pytest.mark.parametrize("damage", ["cut", "grown", "edited", "gone"])
def test_damaged_pixels_are_noticed_and_made_anew(folder: Path, damage: str) -> None:
    first = load("cifar10", data_dir=folder)
    pixels = np.array(first.images)
    _, body = entries(folder)
    raw = body.read_bytes()
    if damage == "gone":
        body.unlink()
    else:
        changed = {"cut": raw[:-100], "grown": raw + b"x", "edited": b"\0\1\2\3" + raw[4:]}[damage]
        body.unlink()  # `first` keeps its mapping of the old file
        body.write_bytes(changed)
    again = load("cifar10", data_dir=folder)
    assert np.array_equal(again.images, pixels) and again.fingerprint == first.fingerprint
    assert entries(folder)[1].read_bytes() == raw


@pytest.mark.parametrize("damage", ["cut", "shape", "classes", "not json", "list"])
def test_damaged_header_is_noticed_and_made_anew(folder: Path, damage: str) -> None:
    first = load("cifar10", data_dir=folder)
    header, _ = entries(folder)
    text = header.read_text()
    content = json.loads(text)
    changed = {
        "cut": text[:-20],
        "shape": json.dumps({**content, "shape": [10, 32, 3, 32]}),
        "classes": text.replace("airplane", "airport"),
        "not json": "hello",
        "list": "[]",
    }
    header.write_text(changed[damage])
    again = load("cifar10", data_dir=folder)
    assert again.classes == first.classes and again.shape == first.shape
    assert json.loads(header.read_text())["checksum"] == content["checksum"]


def test_bytes_that_changed_under_the_same_time_stamp_are_noticed(folder: Path, monkeypatch: Any) -> None:
    first = load("cifar10", data_dir=folder)
    pixels, (_, body) = np.array(first.images), entries(folder)
    raw, stat = body.read_bytes(), body.stat()
    body.unlink()
    body.write_bytes(b"\0\1\2\3" + raw[4:])
    os.utime(body, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with monkeypatch.context() as large:
        large.setattr(cache, "ALWAYS_VERIFIED", 0)
        assert not np.array_equal(load("cifar10", data_dir=folder).images, pixels), "what `recarc data check` is for"
    assert np.array_equal(load("cifar10", data_dir=folder).images, pixels) and body.read_bytes() == raw


def test_a_copied_cache_is_checked_once_and_trusted_again(folder: Path) -> None:
    load("cifar10", data_dir=folder)
    _, body = entries(folder)
    inode = body.stat().st_ino
    os.utime(body)
    load("cifar10", data_dir=folder)
    assert body.stat().st_ino == inode and body.stat().st_mtime < time.time() - 3600


def test_without_files_only_a_copy_of_the_official_size_serves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("cifar10", data_dir=folder)
    with pytest.raises(InputError, match="cifar10 test is not in the cache"):
        load("cifar10")
    from recarc.data.catalog import CATALOG

    monkeypatch.setitem(CATALOG["cifar10"].splits, "test", 10)  # type: ignore[arg-type]
    assert len(load("cifar10")) == 10
    with pytest.raises(InputError, match=r"is not in .*nothing"):
        (folder / "nothing").mkdir()
        load("cifar10", data_dir=folder / "nothing")


def _load_at_once(folder: Path, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    results.put(load("cifar10", data_dir=folder).fingerprint)  # type: ignore[attr-defined]


def test_processes_at_once(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    workers = [context.Process(target=_load_at_once, args=(folder, barrier, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    marks = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert marks == {load("cifar10", data_dir=folder).fingerprint}
    entries(folder)
    assert not list((folder / "cache/data").glob(f".*{PART}*"))


def _slow_blocks(started: object) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    yield files.some_images(5)
    started.set()  # type: ignore[attr-defined]
    time.sleep(60)


def _store_slowly(started: object) -> None:
    cache.store("cifar10", "test", "key", _slow_blocks(started), source="slow", classes=None)


def test_a_killed_writer_leaves_nothing_that_counts(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    started = context.Event()
    worker = context.Process(target=_store_slowly, args=(started,))
    worker.start()
    assert started.wait(30)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    (left,) = (folder / "cache/data").iterdir()
    assert PART in left.name and cache.lookup("cifar10", "test", "key") is None
    os.utime(left, (1, 1))
    load("cifar10", data_dir=folder)
    assert not left.exists()


def test_full_disk_and_unwritable_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(InputError, match=r"No space left.*RECARC_CACHE"):
            load("cifar10", data_dir=folder)
    assert not list((folder / "cache/data").iterdir())
    (folder / "file").write_text("")
    monkeypatch.setenv("RECARC_CACHE", str(folder / "file"))
    with pytest.raises(InputError, match="cannot write the cache"):
        load("cifar10", data_dir=folder)
    assert len(load("digits")) == 355
