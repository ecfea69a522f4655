"""Folders of images of any name, and large images that are decoded on demand."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import data_files as files
import numpy as np
import pytest
from PIL import Image

from recarc.data import CATALOG, check, load
from recarc.data.decode import cropped
from recarc.data.formats import parquet
from recarc.data.imageset import StreamedImages
from recarc.errors import InputError

NAMES = ["cat", "dog", "owl"]


def by_class(images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]


def test_folder_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = files.some_images(9, size=20, classes=3)
    files.write_folder(tmp_path / "pets", images, labels, NAMES)
    (tmp_path / "pets/cat/notes.txt").write_text("not an image")
    (tmp_path / "pets/.hidden").mkdir()
    monkeypatch.chdir(tmp_path)
    sets = [load(tmp_path / "pets"), load("folder", data_dir=tmp_path / "pets"), load("pets"), load("./pets", "all")]
    for got in sets:
        assert got.classes == ("cat", "dog", "owl") and got.name == "folder:pets" and not got.streamed
        assert np.array_equal(got.images, by_class(images, labels)[0])
        assert np.array_equal(got.labels, by_class(images, labels)[1])
    assert len({got.fingerprint for got in sets}) == 1


def test_folder_with_splits(tmp_path: Path) -> None:
    images, labels = files.some_images(12, size=20, classes=3)
    files.write_folder(tmp_path / "train", images[:6], labels[:6], NAMES)
    files.write_folder(tmp_path / "test", images[6:], labels[6:], NAMES)
    assert np.array_equal(load(tmp_path, "train").images, by_class(images[:6], labels[:6])[0])
    assert len(load(tmp_path)) == 6
    with pytest.raises(InputError, match=r"'val'.*train, test"):
        load(tmp_path, "val")


def test_a_class_called_train_is_a_class(tmp_path: Path) -> None:
    files.write_folder(tmp_path, *files.some_images(4, size=20, classes=2), ["boat", "train"])
    assert load(tmp_path).classes == ("boat", "train")
    with pytest.raises(InputError, match="no folder 'train'"):
        load(tmp_path, "train")


def test_grey_and_mixed_folders(tmp_path: Path) -> None:
    files.write_folder(tmp_path / "grey", *files.some_images(4, 1, 20, 2))
    assert load(tmp_path / "grey").shape == (1, 20, 20)
    files.write_folder(tmp_path / "mixed", *files.some_images(4, 1, 20, 2))
    Image.new("RGBA", (20, 20), (255, 0, 0, 9)).save(tmp_path / "mixed/class1/zz.png")
    mixed = load(tmp_path / "mixed")
    assert mixed.shape == (3, 20, 20) and mixed.images[-1, :, 0, 0].tolist() == [255, 0, 0]


def test_known_set_as_folders(tmp_path: Path) -> None:
    images, labels = files.some_images(20)
    files.write_folder(tmp_path / "cifar10/test", images, labels, CATALOG["cifar10"].classes)
    got = load("cifar10", data_dir=tmp_path)
    assert np.array_equal(got.images, by_class(images, labels)[0]) and got.classes == CATALOG["cifar10"].classes
    (tmp_path / "cifar10/test/unicorn").mkdir()
    with pytest.raises(InputError, match=r"unicorn is not a class of cifar10"):
        load("cifar10", data_dir=tmp_path)


def test_bad_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "half/cat").mkdir(parents=True)
    for place, words in {
        "empty": "no class folders",
        "half": "cat holds no images",
        "nowhere": "does not exist",
    }.items():
        with pytest.raises(InputError, match=words):
            load("folder", data_dir=tmp_path / place)
    with pytest.raises(InputError, match="needs data_dir"):
        load("folder")


@pytest.mark.parametrize("how", ["text", "cut", "empty", "zeros"])
def test_a_broken_image_is_named(tmp_path: Path, how: str) -> None:
    files.write_folder(tmp_path / "pets", *files.some_images(9, size=20, classes=3), NAMES)
    path = tmp_path / "pets/dog/0004.png"
    raw = path.read_bytes()
    path.write_bytes({"text": b"hello", "cut": raw[:300], "empty": b"", "zeros": raw[:60] + bytes(400)}[how])
    with pytest.raises(InputError) as error:
        load(tmp_path / "pets")
    assert str(path) in str(error.value) and "broken image" in str(error.value) and "\n" not in str(error.value)
    assert not list((tmp_path / "cache").rglob("*"))[1:]
    (tmp_path / "pets/owl/0005.png").write_bytes(b"also broken")
    found = check(str(tmp_path / "pets"))
    assert not found.ok and all(name in found.findings[0].detail for name in ("0004.png", "0005.png"))


def test_odd_size_and_depth_are_named(tmp_path: Path) -> None:
    files.write_folder(tmp_path / "pets", *files.some_images(4, size=20, classes=2), NAMES)
    Image.new("RGB", (21, 20)).save(tmp_path / "pets/cat/zz.png")
    with pytest.raises(InputError, match=r"zz.png is 21x20; expected 20x20"):
        load(tmp_path / "pets")
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(tmp_path / "pets/cat/zz.png")
    with pytest.raises(InputError, match=r"zz.png has pixels of mode I;16"):
        load(tmp_path / "pets")


def test_generic_parquet_reads_its_own_class_names(tmp_path: Path) -> None:
    images, labels = files.some_images(9, size=20, classes=3)
    path = files.write_parquet(tmp_path / "mine/test.parquet", images, labels, image="image", names=NAMES)
    for place in (path, path.parent):
        got = load(place)
        assert got.classes == tuple(NAMES) and np.array_equal(got.images, images)


# Streams


def large_images(count: int) -> tuple[np.ndarray, np.ndarray]:
    small, labels = files.some_images(count, size=16, classes=7)
    return small.repeat(15, 2).repeat(20, 3), labels  # 240 high, 320 wide


def test_imagenet_parquet_streams(tmp_path: Path) -> None:
    images, labels = large_images(11)
    files.write_parquet(tmp_path / "validation-00000-of-00002.parquet", images[:6], labels[:6], "image", group=4)
    files.write_parquet(tmp_path / "validation-00001-of-00002.parquet", images[6:], labels[6:], "image", group=4)
    got = load("imagenet", data_dir=tmp_path)
    assert got.split == "validation" and got.streamed and got.images.shape == (11, 3, 224, 224)
    assert len(got.classes) == 1000 and np.array_equal(got.labels, labels)
    expected = np.stack([cropped(files.encoded(image), "x") for image in images])
    order = [10, 0, 5, 6, 5]
    x, y = got.batch(order)
    assert np.array_equal(x.numpy(), expected[order].astype(np.float32) / np.float32(255))
    assert y.tolist() == labels[order].tolist()
    assert np.array_equal(got.images[2], expected[2]) and np.array_equal(got.images[3:9], expected[3:9])
    part = got.subset([8, 2])
    assert np.array_equal(part.images[:], expected[[8, 2]]) and part.fingerprint != got.fingerprint
    assert part.fingerprint == got.subset([2, 8]).subset([1, 0]).fingerprint
    assert got.limit(3).fingerprint == load("imagenet", "val", data_dir=tmp_path, limit=3).fingerprint
    assert np.array_equal(pickle.loads(pickle.dumps(got)).images[4], expected[4])
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_row_groups_are_kept_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_parquet(tmp_path / "validation.parquet", *large_images(12), "image", group=2)
    reads: list[int] = []
    group = parquet._Table.group
    monkeypatch.setattr(parquet._Table, "group", lambda self, i: (reads.append(i), group(self, i))[1])
    everything = np.arange(12)
    for kept, expected in ((2**20, 6), (0, 18)):  # the second pass from memory, or from the file
        reader = load("imagenet", data_dir=tmp_path).images.reader  # type: ignore[union-attr]
        monkeypatch.setattr(parquet, "KEPT", kept)
        reads.clear()
        for _ in range(3):
            reader.read(everything)
        assert len(reads) == expected


def test_threads_share_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_parquet(tmp_path / "validation.parquet", *large_images(24), "image", group=2)
    monkeypatch.setattr(parquet, "KEPT", 0, raising=False)
    reader = load("imagenet", data_dir=tmp_path).images.reader  # type: ignore[union-attr]
    expected = reader.read(np.arange(24))

    def right(seed: int) -> bool:
        rows = [np.random.default_rng(seed + i).permutation(24)[:8] for i in range(20)]
        return all(reader.read(part) == [expected[row] for row in part] for part in rows)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(right, range(0, 800, 100)))
    finally:
        sys.setswitchinterval(before)


def test_fingerprint_of_a_stream_depends_on_contents_not_place(tmp_path: Path) -> None:
    images, labels = large_images(4)
    marks = [
        load("imagenet", data_dir=files.write_parquet(tmp_path / name, image, labels, "image")).fingerprint
        for name, image in (
            ("a/validation.parquet", images),
            ("b/validation.parquet", images),
            ("c/val.parquet", 255 - images),
        )
    ]
    assert marks[0] == marks[1] != marks[2]


def test_imagenet_class_names_come_from_the_files(tmp_path: Path) -> None:
    names = [f"thing {i}" for i in range(1000)]
    files.write_parquet(tmp_path / "validation.parquet", *large_images(3), "image", names=names)
    assert load("imagenet", data_dir=tmp_path).classes == tuple(names)


def test_stream_of_a_folder_and_its_broken_image(tmp_path: Path) -> None:
    images, labels = large_images(7)
    files.write_folder(tmp_path, images, labels % 2, ["a", "b"], "jpg")
    got = load(tmp_path)
    assert got.streamed and got.batch([0, 6])[0].shape == (2, 3, 224, 224)
    (tmp_path / "a/0002.jpg").write_bytes((tmp_path / "a/0002.jpg").read_bytes()[:900])
    broken = load(tmp_path)
    broken.batch([0])
    with pytest.raises(InputError, match=r"broken image .*0002\.jpg"):
        broken.batch(range(7))
    assert not check(str(tmp_path)).ok


def test_another_image_of_the_same_size_is_another_set(tmp_path: Path) -> None:
    path = tmp_path / "cat/0.bmp"
    path.parent.mkdir()
    Image.fromarray(np.full((240, 240, 3), 60, np.uint8)).save(path)
    before, size = load(tmp_path), path.stat().st_size
    again = load(tmp_path)
    Image.fromarray(np.full((240, 240, 3), 200, np.uint8)).save(path)
    assert before.streamed and path.stat().st_size == size
    assert before.fingerprint == again.fingerprint != load(tmp_path).fingerprint


def test_imagenet_folder_needs_every_synset(tmp_path: Path) -> None:
    images, labels = large_images(2)
    files.write_folder(tmp_path / "val", images, labels, ["n01440764", "n01443537"], "JPEG")
    with pytest.raises(InputError, match="2 class folders; imagenet has 1000"):
        load("imagenet", data_dir=tmp_path)


def test_crop_is_the_usual_one() -> None:
    image = np.zeros((3, 300, 600), np.uint8)
    image[:, :, 300:] = 255
    out = cropped(files.encoded(image), "x")  # 256 x 512, columns 144..367 are kept
    assert out.shape == (3, 224, 224) and out[0, 0, 0] == 0 and out[0, 0, -1] == 255
    assert np.flatnonzero(out[0, 100] > 127)[0] == 112
    exact = files.some_images(1, size=224)[0][0]
    assert np.array_equal(cropped(files.encoded(exact), "x"), exact)


def test_a_huge_stream_is_not_turned_into_one_tensor(tmp_path: Path) -> None:
    files.write_parquet(tmp_path / "validation.parquet", *large_images(3), "image")
    got = load("imagenet", data_dir=tmp_path)
    assert got.tensors()[0].shape[0] == 3 and got.uint8().shape == (3, 3, 224, 224)
    assert isinstance(got.images, StreamedImages)
    many = np.zeros(50000, dtype=np.int64)
    huge = dataclasses.replace(got, images=got.images.take(many), labels=many)
    with pytest.raises(InputError, match="use batch"):
        huge.tensors()
