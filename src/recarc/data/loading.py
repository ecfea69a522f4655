"""From a name to an image set: the cache, then local files, then (only if allowed) the Hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from recarc.data import cache, formats_cifar, formats_folder, formats_idx, formats_parquet, formats_svhn, hub
from recarc.data.catalog import CATALOG, Spec, named, owner, squeeze
from recarc.data.digits import load_digits
from recarc.data.imageset import ImageSet, fingerprint
from recarc.data.source import Source, check_labels
from recarc.data.streaming import StreamedImages
from recarc.errors import InputError, unknown

FINDERS = (formats_parquet.find, formats_cifar.find, formats_svhn.find, formats_idx.find, formats_folder.find)
PathLike = str | os.PathLike[str]


def load(
    name: PathLike,
    split: str = "test",
    *,
    data_dir: PathLike | None = None,
    limit: int | None = None,
    download: bool = False,
    progress: hub.Progress | None = None,
) -> ImageSet:
    """An image set by name (`available()` lists them), or by the path of a folder of images or Parquet files.

    Files are looked for in `data_dir`, or else in the folder that RECARC_DATA names; what they hold is decoded once
    into a memory-mapped cache and taken from there ever after. Without files, a cached copy of the official size
    serves. The network is used only with `download=True`; `progress(split, done, total)` is then called while
    a large set comes in. `limit` keeps the first images.
    """
    spec = find_spec(name)
    if spec is None:
        path = folder_path(name, data_dir)
        return materialise(path_name(path), split, any_source(path, split), None).limit(limit)
    split = spec.split(split)
    if spec.name == "digits":
        return load_digits(split).limit(limit)
    source = locate(spec, split, data_dir)
    if source is not None:
        return materialise(spec.name, split, source, spec).limit(limit)
    entry = None if data_dir else cache.newest(spec.name, split, spec.splits[split])
    if entry is not None:
        return entry.image_set(f"cache of {entry.source}").limit(limit)
    if download:
        return download_split(spec, split, None, progress).limit(limit)
    raise missing(spec, split, data_dir)


def locate(spec: Spec, split: str, data_dir: PathLike | None) -> Source | None:
    """The first local source of a split, found by names alone."""
    for root in roots(spec, data_dir):
        for find in FINDERS:
            source = find(root, spec, split)
            if source is not None:
                return source
    return None


def roots(spec: Spec, data_dir: PathLike | None) -> Iterator[Path]:
    """Where to look: sub-folders named after the set, then the folder itself unless it is named after another set."""
    given = data_dir or os.environ.get("RECARC_DATA")
    if given:
        base = Path(given).expanduser()
        if data_dir and not base.exists():
            raise InputError(
                f"data_dir {str(data_dir)!r} does not exist; expected a folder with {spec.name} in it, or a file of it"
            )
        names = {squeeze(known) for known in (spec.name, *spec.folders)}
        if base.is_dir():
            for child in sorted(base.iterdir()):
                if squeeze(child.name) in names and child.is_dir():
                    yield child
        named_after = owner(base.stem if base.is_file() else base.name)
        if named_after in (None, spec):
            yield base
    if not data_dir and hub.downloads(spec).is_dir():
        yield hub.downloads(spec)


def materialise(name: str, split: str, source: Source, spec: Spec | None) -> ImageSet:
    """From the cache if these very files were decoded before; else stream, or decode into the cache."""
    try:
        key = source.key()
    except OSError as error:
        raise InputError(f"cannot read {source.where}: {error}; check the files and their permissions") from None
    entry = cache.lookup(name, split, key)
    if entry is not None:
        return entry.image_set(f"cache of {source.where}")
    streamed = source.reader()
    names = _class_names(source, spec)
    if streamed is not None:
        reader, labels = streamed
        names = names or tuple(str(i) for i in range(int(labels.max(initial=0)) + 1))
        if not len(labels):
            raise InputError(f"{source.where} holds no images; expected some")
        check_labels(labels, len(names), source.where)
        images = StreamedImages(reader)
        return ImageSet(
            name, split, images, labels, names, fingerprint(images, labels, 255), f"stream of {source.where}"
        )
    shape = spec.shape if spec else None
    entry = cache.store(name, split, key, source.blocks(), source=source.where, classes=names, shape=shape)
    return entry.image_set(source.where)


def download_split(spec: Spec, split: str, repo: str | None = None, progress: hub.Progress | None = None) -> ImageSet:
    """Fetch one split from the Hub into the cache."""
    if spec.streamed:
        hub.fetch_shards(spec, split, repo, progress)
        source = formats_parquet.find(hub.downloads(spec), spec, split)
        if source is None:
            raise InputError(f"nothing of {spec.name} {split} is in {hub.downloads(spec)} after fetching it; try again")
    else:
        source = hub.fetch(spec, split, repo)
        cache.store(
            spec.name, split, source.key(), source.blocks(), source=source.where, classes=spec.classes, shape=spec.shape
        )
    return materialise(spec.name, split, source, spec)


def missing(spec: Spec, split: str, data_dir: PathLike | None) -> InputError:
    """The error that says what to put where."""
    if data_dir:
        looked = f"in {data_dir}"
    elif os.environ.get("RECARC_DATA"):
        looked = f"in RECARC_DATA={os.environ['RECARC_DATA']} or the cache"
    else:
        looked = "in the cache, and neither data_dir nor RECARC_DATA is set"
    return InputError(
        f"{spec.name} {split} is not {looked}; put into DIR/{spec.name} {spec.layouts}, and pass data_dir=DIR or set "
        f"RECARC_DATA=DIR; or fetch it once: recarc data get {spec.name}"
    )


def any_source(path: Path, split: str) -> Source:
    """The source in a folder (or Parquet file) that is no named set."""
    if not path.exists():
        raise InputError(f"{str(path)!r} does not exist; expected a folder of class folders or of Parquet files")
    words = {"val": ("val", "validation"), "validation": ("validation", "val")}.get(split, (split,))
    parquet = formats_parquet.find_paths(path, words, None, None, split in ("test", "all"))
    if parquet:
        return formats_parquet.ParquetSource(tuple(parquet), None)
    if not path.is_dir():
        raise InputError(f"{str(path)!r} is no folder of images and no Parquet file of the split {split!r}")
    return formats_folder.find_any(path, split)


def folder_path(name: PathLike, data_dir: PathLike | None) -> Path:
    """The path that `load("folder", data_dir=...)` or `load("some/path")` means."""
    if os.fspath(name) != "folder":
        return Path(name).expanduser()
    if data_dir is None:
        raise InputError("the data set 'folder' needs data_dir: a folder with one folder of images a class")
    return Path(data_dir).expanduser()


def path_name(path: Path) -> str:
    """What a set that was loaded by path is called."""
    return f"folder:{path.resolve().name}"


def find_spec(name: PathLike) -> Spec | None:
    """The named set, or None for a path."""
    text = os.fspath(name)
    if text == "folder" or os.sep in text or text.endswith(".parquet"):
        return None
    spec = named(text)
    if spec is None and not Path(text).is_dir():
        raise unknown("data set", text, [*CATALOG, "folder"])
    return spec


def _class_names(source: Source, spec: Spec | None) -> tuple[str, ...] | None:
    """The catalogue's names; for ImageNet, whose names are not in it, the names that come with the files."""
    if spec is None:
        return source.class_names()
    if not spec.streamed:
        return spec.classes
    found = source.class_names()
    return found if found and len(found) == len(spec.classes) else spec.classes
