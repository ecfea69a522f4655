"""What `recarc data list`, `get` and `check` do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recarc.data import cache
from recarc.data.catalog import CATALOG, Spec
from recarc.data.digits import load_digits
from recarc.data.formats_folder import SPLITS, FolderSource, class_folders
from recarc.data.hub import Progress
from recarc.data.imageset import ImageSet, fingerprint
from recarc.data.loading import (
    PathLike,
    any_source,
    download_split,
    find_spec,
    folder_path,
    load,
    locate,
    materialise,
    missing,
    path_name,
)
from recarc.data.source import Source
from recarc.errors import InputError

STATISTICS_TOLERANCE = 2e-3
CHUNK = 2000
SHOWN = 5  # broken images named in a finding


@dataclass(frozen=True)
class Row:
    """One line of `recarc data list`."""

    name: str
    title: str
    images: dict[str, int]
    classes: int
    state: str  # embedded, cached, found, missing, or the state of each split where they differ
    detail: str  # where it is, or what to put where


@dataclass(frozen=True)
class Finding:
    """One thing that `check` looked at."""

    split: str
    what: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Check:
    """What `check` found in a set."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)


def available(data_dir: PathLike | None = None) -> list[Row]:
    """Every named set and where it stands. Looks at names and sizes only."""
    return [_row(spec, data_dir) for spec in CATALOG.values()]


def _row(spec: Spec, data_dir: PathLike | None) -> Row:
    if spec.name == "digits":
        return Row(spec.name, spec.title, dict(spec.splits), len(spec.classes), "embedded", "inside scikit-learn")
    states: dict[str, str] = {}
    places: dict[str, None] = {}
    for split in spec.splits:
        states[split], place = _state(spec, split, data_dir)
        if place:
            places[place] = None
    common = set(states.values())
    if "extra" in states and states["extra"] == "missing":
        common = {state for split, state in states.items() if split != "extra"}
    state = common.pop() if len(common) == 1 else ", ".join(f"{split} {word}" for split, word in states.items())
    detail = "; ".join(places) or f"put into DIR/{spec.name}: {spec.layouts}"
    return Row(spec.name, spec.title, dict(spec.splits), len(spec.classes), state, detail)


def _state(spec: Spec, split: str, data_dir: PathLike | None) -> tuple[str, str]:
    source = locate(spec, split, data_dir)
    if source is not None:
        decoded = not isinstance(source, FolderSource) and cache.lookup(spec.name, split, source.key())
        return ("cached" if decoded else "found"), source.where
    entry = None if data_dir else cache.newest(spec.name, split, spec.splits[split])
    return ("cached", entry.source) if entry else ("missing", "")


def get(
    name: str,
    split: str | None = None,
    *,
    data_dir: PathLike | None = None,
    repo: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[ImageSet]:
    """Make a set ready: decode what lies in `data_dir` or RECARC_DATA, else fetch it from the Hub, into the cache.

    This is the one command that goes to the network. All splits but SVHN's `extra` and ImageNet's `train` unless
    `split` says which. `repo` names another Hub repository (or a local copy of one); `force` fetches even what is here.
    """
    spec = find_spec(name)
    if spec is None:
        return [load(name, split or "test", data_dir=data_dir)]
    if split is not None:
        splits = [spec.split(split)]
    else:
        splits = [spec.evaluation] if spec.streamed else [s for s in spec.splits if s != "extra"]
    if force or repo:
        return [download_split(spec, s, repo, progress) for s in splits]
    return [load(spec.name, s, data_dir=data_dir, download=True, progress=progress) for s in splits]


def check(name: str, *, data_dir: PathLike | None = None) -> Check:
    """Verify a set: counts, labels, every image, the cache's full checksum, statistics, official contents."""
    spec = find_spec(name)
    if spec is None:
        return _check_path(folder_path(name, data_dir))
    if spec.name == "digits":
        return Check("digits", tuple(f for s in spec.splits for f in _check_set(spec, load_digits(s))))
    findings: list[Finding] = []
    for split in spec.splits:
        source = locate(spec, split, data_dir)
        if source is not None:
            findings += _check_source(spec.name, split, source, spec)
            continue
        entry = None if data_dir else cache.newest(spec.name, split, spec.splits[split])
        if entry is not None:
            whole = entry.intact(full=True)
            findings.append(Finding(split, "cache", whole, _cache_detail(whole, entry.bin)))
            if whole:
                findings += _check_set(spec, entry.image_set(f"cache of {entry.source}"))
    if not findings:
        raise missing(spec, spec.evaluation, data_dir)
    return Check(spec.name, tuple(findings))


def _check_path(path: Path) -> Check:
    splits = [name for name in SPLITS if class_folders(path / name)] or ["all"]
    findings = [f for s in splits for f in _check_source(path_name(path), s, any_source(path, s), None)]
    return Check(os.fspath(path), tuple(findings))


def _check_source(name: str, split: str, source: Source, spec: Spec | None) -> list[Finding]:
    findings: list[Finding] = []
    try:
        if isinstance(source, FolderSource):
            broken = source.broken()
            named = "; ".join(broken[:SHOWN]) + (f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else "")
            findings.append(Finding(split, "images", not broken, named or f"all {len(source.files())} decode"))
            if broken:
                return findings
        entry = cache.lookup(name, split, source.key())
        if entry is not None and not entry.intact(full=True):
            findings.append(Finding(split, "cache", True, f"{entry.bin} was damaged and is made anew"))
            entry.path.unlink(missing_ok=True)
        elif entry is not None:
            findings.append(Finding(split, "cache", True, _cache_detail(True, entry.bin)))
        return findings + _check_set(spec, materialise(name, split, source, spec))
    except InputError as error:
        return [*findings, Finding(split, "files", False, str(error))]


def _cache_detail(whole: bool, path: Path) -> str:
    return "the full checksum fits" if whole else f"{path} is damaged: delete it and load the set again"


def _check_set(spec: Spec | None, images: ImageSet) -> list[Finding]:
    split = images.split
    findings = []
    official = spec.splits[split] if spec else None
    counted = f"{len(images)} images, {len(images.classes)} classes"
    if official is None:
        findings.append(Finding(split, "count", True, counted))
    else:
        same = len(images) == official
        findings.append(
            Finding(split, "count", same, counted + ("" if same else f"; the official number is {official}"))
        )
    low, high = int(images.labels.min()), int(images.labels.max())
    in_range = low >= 0 and high < len(images.classes)
    used = len(np.unique(images.labels))
    findings.append(Finding(split, "labels", in_range, f"{low}..{high}, {used} of {len(images.classes)} classes occur"))
    mean, std = channel_statistics(images)
    findings.append(_statistics_finding(spec, split, len(images) == official, mean, std))
    known = spec.fingerprints.get(split) if spec else None
    if known and len(images) == official:
        again = fingerprint(images.images, images.labels, images.levels)
        detail = (
            "pixels, labels and order are the official ones" if again == known else "not the official contents or order"
        )
        findings.append(Finding(split, "contents", again == known, detail))
    return findings


def _statistics_finding(spec: Spec | None, split: str, whole: bool, mean: np.ndarray, std: np.ndarray) -> Finding:
    measured = f"mean {_numbers(mean)}, deviation {_numbers(std)}"
    if spec is None or spec.mean is None or spec.std is None:
        return Finding(split, "statistics", True, measured)
    detail = f"{measured}; published: mean {_numbers(spec.mean)}, deviation {_numbers(spec.std)}"
    if split != "train" or not whole or spec.streamed:  # ImageNet's are a convention, measured another way
        return Finding(split, "statistics", True, detail)
    off = max(np.abs(mean - spec.mean).max(), np.abs(std - spec.std).max())
    return Finding(split, "statistics", bool(off < STATISTICS_TOLERANCE), detail)


def channel_statistics(images: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel over all pixels in [0, 1]. Reads, and so decodes, every image."""
    counts = np.zeros((images.shape[0], 256), dtype=np.int64)
    chunk = 100 if images.streamed else CHUNK
    for start in range(0, len(images), chunk):
        block = np.asarray(images.images[start : start + chunk])
        for channel in range(images.shape[0]):
            counts[channel] += np.bincount(block[:, channel].reshape(-1), minlength=256)
    values = np.arange(256) / images.levels
    share = counts / counts.sum(1, keepdims=True)
    mean = share @ values
    return mean, np.sqrt(np.maximum(share @ values**2 - mean**2, 0))


def _numbers(values: np.ndarray | tuple[float, ...]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


__all__ = ["Check", "Finding", "Row", "available", "channel_statistics", "check", "get"]
