"""Folders of images, one folder per class."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from recarc.atomic import read_plain
from recarc.data.catalog import Spec
from recarc.data.decode import CROP, GREY_MODES, cropped, open_image, pixels
from recarc.data.formats import Block, Format, block_size, register
from recarc.data.imageset import Reader
from recarc.errors import InputError

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
END = 4096  # bytes at either end of a file by which a streamed set is recognised
SPLITS = ("train", "test", "validation", "val")


@register
@dataclass(frozen=True)
class Folder(Format):
    """A folder with one folder per class. `spec` None: the classes are the folders' names in sorted order."""

    preference = 2
    file_per_image = True
    root: Path
    spec: Spec | None

    @classmethod
    def layout(cls, spec: Spec) -> str:
        if spec.streamed:
            return f"{spec.split_words(spec.evaluation)[-1]}/SYNSET/*.JPEG with all {len(spec.classes)} synset folders"
        return " and ".join(f"{split}/CLASS/*.png" for split in spec.usual_splits)

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Folder | None:
        if spec is None:
            return cls._find_unnamed(root, split) if root.is_dir() else None
        words = (word for word in spec.split_words(split) if class_folders(root / word))
        return next((cls(root / word, spec) for word in words), None)

    @classmethod
    def _find_unnamed(cls, root: Path, split: str) -> Folder:
        """SPLIT/CLASS/*, or CLASS/* without splits, which serves as `test` and `all`."""
        if class_folders(root / split):
            return cls(root / split, None)
        if splits := splits_in(root):
            raise InputError(f"{root} has no folder {split!r} with class folders inside; it has: {', '.join(splits)}")
        if split not in ("test", "all"):
            raise InputError(
                f"{root} has no folder {split!r}; expected {split}/CLASS/images (a folder without splits serves only "
                "as 'test' and 'all', so that nobody trains on their test set)"
            )
        return cls(root, None)

    @property
    def where(self) -> str:
        return str(self.root)

    @cached_property
    def _scan(self) -> tuple[list[Path], np.ndarray, tuple[str, ...]]:
        folders = class_folders(self.root)
        if not folders:
            raise InputError(
                f"{self.root} holds no class folders; expected one folder per class with its images inside"
            )
        numbers, names = _class_numbers(self.root, folders, self.spec)
        paths: list[Path] = []
        labels: list[int] = []
        for folder, number in zip(folders, numbers):
            inside = _images(folder)
            if not inside:
                raise InputError(f"{folder} holds no images; add some (PNG, JPEG, ...) or remove the folder")
            paths += inside
            labels += [number] * len(inside)
        return paths, np.array(labels, dtype=np.int64), names

    def files(self) -> Sequence[Path]:
        return self._scan[0]

    def class_names(self) -> tuple[str, ...]:
        return self._scan[2]

    @cached_property
    def _shape(self) -> tuple[int, int, int]:
        """That of the first image; in colour if any image is."""
        if self.spec:
            return self.spec.shape
        first, *rest = self.files()
        grey, height, width = _header(first)
        grey = grey and all(_header(path)[0] for path in rest)
        return (1 if grey else 3), height, width

    def _large(self) -> bool:
        if self.spec:
            return self.spec.streamed
        _, height, width = _header(self.files()[0])
        return min(height, width) >= CROP

    def blocks(self) -> Iterator[Block]:
        paths, labels, _ = self._scan
        size = block_size(self._shape)
        for start in range(0, len(paths), size):
            chosen = paths[start : start + size]
            images = [pixels(_bytes(path), str(path), self._shape) for path in chosen]
            yield np.stack(images), labels[start : start + size]

    def reader(self) -> tuple[Reader, np.ndarray] | None:
        if not self._large():
            return None
        paths, labels, _ = self._scan
        return FolderReader(self.root, tuple(paths)), labels

    def broken(self) -> list[str]:
        """Decode every image, continuing after a broken one."""
        out = []
        large = self._large()
        for path in self.files():
            try:
                if large:
                    cropped(_bytes(path), str(path))
                else:
                    pixels(_bytes(path), str(path), self._shape)
            except InputError as error:
                out.append(str(error))
        return out


class FolderReader:
    """Random access to the files of a folder."""

    def __init__(self, root: Path, paths: tuple[Path, ...]) -> None:
        self.root, self.paths = root, paths

    def __len__(self) -> int:
        return len(self.paths)

    def identity(self) -> str:
        return self._identity

    @cached_property
    def _identity(self) -> str:
        digest = hashlib.sha256()
        for path in self.paths:
            size, ends = _ends(path)
            digest.update(os.fsencode(path.relative_to(self.root)) + f"\0{size}\n".encode() + ends)
        return digest.hexdigest()

    def read(self, rows: np.ndarray) -> list[tuple[bytes, str]]:
        return [(_bytes(self.paths[row]), str(self.paths[row])) for row in rows]


def splits_in(root: Path) -> list[str]:
    """The splits that a folder is divided into, if any."""
    return [name for name in SPLITS if class_folders(root / name)]


def class_folders(root: Path) -> list[Path]:
    """The visible folders inside, sorted by name."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        return sorted(Path(e.path) for e in entries if e.is_dir() and not e.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        names = [
            e.name for e in entries if not e.name.startswith(".") and os.path.splitext(e.name)[1].lower() in ENDINGS
        ]
    return [folder / name for name in sorted(names)]


def _class_numbers(root: Path, folders: list[Path], spec: Spec | None) -> tuple[list[int], tuple[str, ...]]:
    names = [folder.name for folder in folders]
    if spec is None:
        return list(range(len(names))), tuple(names)
    if spec.name == "imagenet":
        if len(names) != len(spec.classes):
            raise InputError(
                f"{root} has {len(names)} class folders; imagenet has 1000 synsets, numbered in sorted order: "
                "complete it, or load the folder by its path to number only these"
            )
        return list(range(len(names))), tuple(names)
    known = {name: i for i, name in enumerate(spec.classes)} | {str(i): i for i in range(len(spec.classes))}
    foreign = [name for name in names if name not in known]
    if foreign:
        raise InputError(
            f"{root / foreign[0]} is not a class of {spec.name}; expected names like {', '.join(spec.classes[:3])}, "
            "or class indices"
        )
    return [known[name] for name in names], spec.classes


def _bytes(path: Path) -> bytes:
    try:
        return read_plain(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None


def _ends(path: Path) -> tuple[int, bytes]:
    """Size, first and last bytes of a file: they distinguish images of the same size without reading all of them."""
    try:
        if not path.is_file():
            raise OSError(errno.EINVAL, "not a plain file")
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            ends = file.read(END)
            if size > END:
                file.seek(max(END, size - END))
                ends += file.read(END)
            return size, ends
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check the file and its permissions") from None


def _header(path: Path) -> tuple[bool, int, int]:
    """Whether an image is grey, its height and its width."""
    image = open_image(_bytes(path), str(path))
    return image.mode in GREY_MODES, image.height, image.width
