"""What `recarc data list`, `get` and `check` do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recarc.data import cache
from recarc.data.catalog import CATALOG, Spec
from recarc.data.formats import Format, layouts
from recarc.data.formats.folder import splits_in
from recarc.data.imageset import ImageSet, fingerprint
from recarc.data.loading import (
    PathLike,
    find_spec,
    find_unnamed,
    folder_path,
    load,
    load_digits,
    locate,
    materialise,
    missing,
    path_name,
)
from recarc.errors import InputError

STATISTICS_TOLERANCE = 2e-3
CHUNK, LARGE_CHUNK = 2000, 100  # images read at a time
SHOWN = 5  # broken images named in a finding


@dataclass(frozen=True)
class Row:
    """One line of `recarc data list`."""

    name: str
    title: str
    images: dict[str, int]
    classes: int
    state: str  # embedded, cached, found or missing; the state of each split if they differ
    detail: str  # where it is, or what to put where


@dataclass(frozen=True)
class Finding:
    """One thing that `check` examined."""

    split: str
    what: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Check:
    """What `check` found out about a set."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)


def available(data_dir: PathLike | None = None) -> list[Row]:
    """Every named set and whether it is here. Looks at the names and sizes of files only."""
    return [_row(spec, data_dir) for spec in CATALOG.values()]


def _row(spec: Spec, data_dir: PathLike | None) -> Row:
    if spec.embedded:
        return Row(spec.name, spec.title, dict(spec.splits), len(spec.classes), "embedded", "inside scikit-learn")
    states: dict[str, str] = {}
    places: dict[str, None] = {}
    for split in spec.splits:
        states[split], place = _state(spec, split, data_dir)
        if place:
            places[place] = None
    if states.get("extra") == "missing":  # SVHN is complete without it
        shown = {split: state for split, state in states.items() if split != "extra"}
    else:
        shown = states
    same = len(set(shown.values())) == 1
    state = shown["train"] if same else ", ".join(f"{split} {state}" for split, state in states.items())
    detail = "; ".join(places) or f"put into DIR/{spec.name}: {layouts(spec)}"
    return Row(spec.name, spec.title, dict(spec.splits), len(spec.classes), state, detail)


def _state(spec: Spec, split: str, data_dir: PathLike | None) -> tuple[str, str]:
    files = locate(spec, split, data_dir)
    if files is not None:
        cached = not files.file_per_image and cache.lookup(spec.name, split, files.key())
        return ("cached" if cached else "found"), files.where
    entry = None if data_dir else cache.newest(spec.name, split, spec.splits[split])
    return ("cached", entry.source) if entry else ("missing", "")


def get(name: str, split: str | None = None, *, data_dir: PathLike | None = None) -> list[ImageSet]:
    """Make a set ready to use: decode the files in `data_dir` or RECARC_DATA into the cache, or else download them.

    This is the only command that uses the network. Without `split`: all splits but SVHN's `extra` and ImageNet's
    `train`.
    """
    spec = find_spec(name)
    if spec is None:
        return [load(name, split or "test", data_dir=data_dir)]
    splits = spec.usual_splits if split is None else [spec.split(split)]
    return [load(spec.name, s, data_dir=data_dir, download=True) for s in splits]


def check(name: str, *, data_dir: PathLike | None = None) -> Check:
    """Verify a set: counts, labels, every image, the cache's checksum, statistics, official contents."""
    spec = find_spec(name)
    if spec is None:
        return _check_path(folder_path(name, data_dir))
    if spec.embedded:
        return Check(spec.name, tuple(f for s in spec.splits for f in _check_set(spec, load_digits(s))))
    findings: list[Finding] = []
    for split in spec.splits:
        files = locate(spec, split, data_dir)
        if files is not None:
            findings += _check_files(spec.name, split, files, spec)
            continue
        entry = None if data_dir else cache.newest(spec.name, split, spec.splits[split], verify=False)
        if entry is not None:
            whole = entry.intact(full=True)
            detail = "the checksum is right" if whole else f"{entry.bin} is damaged: delete it and load the set again"
            findings.append(Finding(split, "cache", whole, detail))
            if whole:
                findings += _check_set(spec, entry.image_set(f"cache of {entry.source}"))
    if not findings:
        raise missing(spec, spec.evaluation, data_dir)
    return Check(spec.name, tuple(findings))


def _check_path(path: Path) -> Check:
    splits = splits_in(path) or ["all"]
    findings = [f for s in splits for f in _check_files(path_name(path), s, find_unnamed(path, s), None)]
    return Check(os.fspath(path), tuple(findings))


def _check_files(name: str, split: str, files: Format, spec: Spec | None) -> list[Finding]:
    findings: list[Finding] = []
    try:
        if files.file_per_image:
            broken = files.broken()
            named = "; ".join(broken[:SHOWN]) + (f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else "")
            findings.append(Finding(split, "images", not broken, named or f"all {len(files.files())} can be decoded"))
            if broken:
                return findings
        entry = cache.lookup(name, split, files.key(), verify=False)
        if entry is not None and not entry.intact(full=True):
            findings.append(Finding(split, "cache", True, f"{entry.bin} was damaged and has been replaced"))
            entry.path.unlink(missing_ok=True)
        elif entry is not None:
            findings.append(Finding(split, "cache", True, "the checksum is right"))
        return findings + _check_set(spec, materialise(name, split, files, spec))
    except InputError as error:
        return [*findings, Finding(split, "files", False, str(error))]


def _check_set(spec: Spec | None, images: ImageSet) -> list[Finding]:
    split, classes = images.split, len(images.classes)
    official = spec.splits[split] if spec else len(images)
    complete = len(images) == official
    counted = f"{len(images)} images, {classes} classes" + ("" if complete else f"; the official number is {official}")
    low, high, used = int(images.labels.min()), int(images.labels.max()), len(np.unique(images.labels))
    findings = [
        Finding(split, "count", complete, counted),
        Finding(split, "labels", low >= 0 and high < classes, f"{low}..{high}, {used} of {classes} classes occur"),
        _statistics_finding(spec, images, complete),
    ]
    known = spec.fingerprints.get(split) if spec else None
    if known and complete:
        same = fingerprint(images.images, images.labels, images.levels) == known
        detail = "pixels, labels and order are the official ones" if same else "not the official contents or order"
        findings.append(Finding(split, "contents", same, detail))
    return findings


def _statistics_finding(spec: Spec | None, images: ImageSet, complete: bool) -> Finding:
    mean, std = _channel_statistics(images)
    detail = f"mean {_numbers(mean)}, deviation {_numbers(std)}"
    if spec is None or spec.mean is None or spec.std is None:
        return Finding(images.split, "statistics", True, detail)
    detail += f"; published: mean {_numbers(spec.mean)}, deviation {_numbers(spec.std)}"
    comparable = images.split == "train" and complete and not spec.streamed  # ImageNet's are only a convention
    off = max(np.abs(mean - spec.mean).max(), np.abs(std - spec.std).max())
    return Finding(images.split, "statistics", not comparable or bool(off < STATISTICS_TOLERANCE), detail)


def _channel_statistics(images: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation per channel over all pixels in [0, 1]. Reads, and so decodes, every image."""
    counts = np.zeros((images.shape[0], 256), dtype=np.int64)
    chunk = LARGE_CHUNK if images.streamed else CHUNK
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
