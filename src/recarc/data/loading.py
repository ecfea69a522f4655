"""From a name to an image set: local files (through the cache), the cache alone, or (only if allowed) the Hub.

The digits of scikit-learn are always available: 1797 images of 8x8 grey values 0..16, stored unchanged with `levels`
16, so that [0, 1] is exact.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recarc.data import cache
from recarc.data.catalog import CATALOG, Spec, named, owner, squeeze
from recarc.data.formats import MOST_CLASSES, Format, check_labels, known_formats, layouts
from recarc.data.imageset import ImageSet, StreamedImages, fingerprint
from recarc.errors import InputError, RecarcWarning, unknown

DIGITS_SEED = 20220613
FILES = (".parquet", ".npz", ".pt", ".pth")  # that are sets by themselves
TEST_SHARE = 5  # one in five
PathLike = str | os.PathLike[str]


def load(
    name: PathLike,
    split: str = "test",
    *,
    data_dir: PathLike | None = None,
    limit: int | None = None,
    download: bool = False,
) -> ImageSet:
    """An image set by name (`available()` lists them), or by the path of a folder of images, Parquet files or arrays.

    Files are searched for in `data_dir`, or else in the folder named by RECARC_DATA; their contents are decoded once
    into a memory-mapped cache and read from there ever after. Without files, a cached copy of the official size is
    used. The network is used only with `download=True`. `limit` keeps the first images.
    """
    spec = find_spec(name)
    if spec is None:
        path = folder_path(name, data_dir)
        return materialise(path_name(path), split, find_unnamed(path, split), None).limit(limit)
    images = _load_named(spec, spec.split(split), data_dir, download)
    official = spec.fingerprints.get(images.split, images.fingerprint)
    if images.fingerprint != official and len(images) == spec.splits[images.split]:
        found = f"{spec.name} {images.split} ({images.source}) has the official size, but other pixels, labels or order"
        warnings.warn(f"{found}: figures are not comparable with published ones", RecarcWarning, stacklevel=2)
    return images.limit(limit)


def _load_named(spec: Spec, split: str, data_dir: PathLike | None, download: bool) -> ImageSet:
    if spec.embedded:
        return load_digits(split)
    files = locate(spec, split, data_dir)
    if files is not None:
        return materialise(spec.name, split, files, spec)
    entry = None if data_dir else cache.newest(spec.name, split, spec.splits[split])
    if entry is not None:
        return entry.image_set(f"cache of {entry.source}")
    if download:
        from recarc.data import hub

        return materialise(spec.name, split, hub.download(spec, split), spec)
    raise missing(spec, split, data_dir)


def locate(spec: Spec, split: str, data_dir: PathLike | None) -> Format | None:
    """The first local files of a split, recognised by names alone."""
    found = (kind.find(root, spec, split) for root in roots(spec, data_dir) for kind in known_formats())
    return next((files for files in found if files is not None), None)


def roots(spec: Spec, data_dir: PathLike | None) -> Iterator[Path]:
    """Where to look: folders named after the set, then the folder itself unless it is named after another set."""
    given = data_dir or os.environ.get("RECARC_DATA")
    if given:
        base = Path(given).expanduser()
        if data_dir and not base.exists():
            raise InputError(
                f"data_dir {str(data_dir)!r} does not exist; expected a folder or file with {spec.name} in it"
            )
        names = {squeeze(known) for known in (spec.name, *spec.folders)}
        if base.is_dir():
            for child in sorted(base.iterdir()):
                if squeeze(child.name) in names and child.is_dir():
                    yield child
        named_after = owner(base.stem if base.is_file() else base.name)
        if named_after in (None, spec):
            yield base
    downloads = cache.downloads(spec.name)
    if not data_dir and downloads.is_dir():
        yield downloads


def materialise(name: str, split: str, files: Format, spec: Spec | None) -> ImageSet:
    """From the cache if exactly these files were decoded before; otherwise stream, or decode into the cache."""
    try:
        key = files.key()
    except OSError as error:
        raise InputError(f"cannot read {files.where}: {error}; check the files and their permissions") from None
    entry = cache.lookup(name, split, key)
    if entry is not None:
        return entry.image_set(f"cache of {files.where}")
    streamed = files.reader()
    classes = _class_names(files, spec)
    if streamed is not None:
        reader, labels = streamed
        if not len(labels):
            raise InputError(f"{files.where} holds no images; expected some")
        check_labels(labels, len(classes) if classes else MOST_CLASSES, files.where)
        classes = classes or tuple(str(i) for i in range(int(labels.max()) + 1))
        images = StreamedImages(reader)
        mark = fingerprint(images, labels, 255)
        return ImageSet(name, split, images, labels, classes, mark, f"stream of {files.where}")
    shape = spec.shape if spec else None
    entry = cache.store(name, split, key, files.blocks(), source=files.where, classes=classes, shape=shape)
    return entry.image_set(files.where)


def missing(spec: Spec, split: str, data_dir: PathLike | None) -> InputError:
    """The error that says what to put where."""
    if data_dir:
        searched = f"in {data_dir}"
    elif os.environ.get("RECARC_DATA"):
        searched = f"in RECARC_DATA={os.environ['RECARC_DATA']} or the cache"
    else:
        searched = "in the cache, and neither data_dir nor RECARC_DATA is set"
    return InputError(
        f"{spec.name} {split} is not {searched}; put into DIR/{spec.name} {layouts(spec)}; then pass data_dir=DIR or "
        f"set RECARC_DATA=DIR; or download it once: recarc data get {spec.name}"
    )


def find_unnamed(path: Path, split: str) -> Format:
    """The files of a split at a path that is not a named set."""
    if not path.exists():
        raise InputError(
            f"{str(path)!r} does not exist; expected a folder of class folders, of Parquet files or of arrays, or a "
            ".npz or .pt file"
        )
    for kind in known_formats():
        files = kind.find(path, None, split)
        if files is not None:
            return files
    raise InputError(f"{str(path)!r} holds no images of the split {split!r}: no class folders, Parquet files or arrays")


def folder_path(name: PathLike, data_dir: PathLike | None) -> Path:
    """The path that `load("folder", data_dir=...)` or `load("some/path")` refers to."""
    if os.fspath(name) != "folder":
        return Path(name).expanduser()
    if data_dir is None:
        raise InputError("the data set 'folder' needs data_dir: a folder with one folder of images per class")
    return Path(data_dir).expanduser()


def path_name(path: Path) -> str:
    """The name of a set that was loaded by its path."""
    return f"folder:{path.resolve().name}"


def find_spec(name: PathLike) -> Spec | None:
    """The named set, or None for a path."""
    text = os.fspath(name)
    if not text:
        raise InputError("the name of the data set is empty; expected a name or a path (`recarc data list`)")
    if text == "folder" or os.sep in text or text.endswith(FILES):
        return None
    spec = named(text)
    if spec is None and Path(text).is_file():
        raise InputError(f"{text!r} is a file that cannot be read as images; expected a folder, .parquet, .npz or .pt")
    if spec is None and not Path(text).is_dir():
        raise InputError(f"{unknown('data set', text, CATALOG)}; there is no file or folder of that name either")
    return spec


def _class_names(files: Format, spec: Spec | None) -> tuple[str, ...] | None:
    """The catalogue's names; for ImageNet, whose names it does not hold, those stored with the files."""
    if spec is None:
        return files.class_names()
    if not spec.streamed:
        return spec.classes
    stored = files.class_names()
    return stored if stored and len(stored) == len(spec.classes) else spec.classes


def load_digits(split: str) -> ImageSet:
    """The train or test split of scikit-learn's digits.

    In a permutation drawn with a fixed seed, the first fifth of every class is the test split. Both splits keep the
    order of the permutation, so the first n images of a split are a fair sample of it.
    """
    spec = CATALOG["digits"]
    images, labels = _digits_of_sklearn()
    order = np.random.RandomState(DIGITS_SEED).permutation(len(labels))  # this generator's stream is frozen by numpy
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(len(spec.classes)):
        members = order[labels[order] == digit]
        is_test[members[: len(members) // TEST_SHARE]] = True
    rows = order[is_test[order] == (split == "test")]
    images, labels = np.ascontiguousarray(images[rows]), labels[rows]
    mark = fingerprint(images, labels, spec.levels)
    return ImageSet("digits", split, images, labels, spec.classes, mark, "scikit-learn", spec.levels)


def _digits_of_sklearn() -> tuple[np.ndarray, np.ndarray]:
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
