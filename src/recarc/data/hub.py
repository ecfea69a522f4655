"""Fetching from the Hub with the optional `datasets` library. Only `get` and `load(..., download=True)` come here."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import itertools
import json
import os
import shutil
import socket
import threading
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.data.cache import cache_root
from recarc.data.catalog import Spec
from recarc.data.decode import pixels
from recarc.data.formats_parquet import IMAGE_COLUMNS
from recarc.data.source import BLOCK, Block, Source
from recarc.errors import InputError

CONNECT_TIMEOUT = 3.0  # seconds to find out that there is no network
ENDPOINT = "https://huggingface.co"  # unless HF_ENDPOINT names a mirror
OFFLINE, TRUE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), {"1", "on", "yes", "true"}
SHARD_ROWS, GROUP_ROWS = 2000, 100
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}

Progress = Callable[[str, int, int], None]  # split, images so far, images in all


@dataclass(frozen=True)
class HubSource(Source):
    """A split of a Hub repository, fetched and at hand."""

    spec: Spec
    repo: str
    rows: Any  # datasets.Dataset with undecoded images
    image: str

    @property
    def where(self) -> str:
        return f"Hub {self.repo}"

    def files(self) -> Sequence[Path]:
        return ()

    def key(self) -> str:
        return hashlib.sha256(f"hub {self.repo}".encode()).hexdigest()

    def blocks(self) -> Iterator[Block]:
        done = 0
        for batch in self.rows.iter(batch_size=BLOCK):
            images = [
                pixels(_bytes(item), f"{self.repo} row {done + i}", self.spec.shape)
                for i, item in enumerate(batch[self.image])
            ]
            done += len(images)
            yield np.stack(images), np.array(batch[self.spec.label_column], dtype=np.int64)


def fetch(spec: Spec, split: str, repo: str | None = None) -> Source:
    """Fetch a split with `datasets` (which checks sizes and resumes). `repo`: a mirror, or a local folder."""
    place = _place(spec, repo)
    rows = _call(spec, place, split=split)
    if len(rows) != spec.splits[split]:
        raise InputError(
            f"{place} gives {len(rows)} images for {spec.name} {split}; expected {spec.splits[split]}: another set?"
        )
    return HubSource(spec, place, *_undecoded(spec, place, rows))


def fetch_shards(spec: Spec, split: str, repo: str | None = None, progress: Progress | None = None) -> Path:
    """Stream a split that is too large to decode into Parquet shards under the cache; returns their folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = _place(spec, repo)
    rows, image = _undecoded(spec, place, _call(spec, place, split=split, streaming=True))
    target = downloads(spec) / split
    aside = target.parent / f"{split}-{uuid.uuid4().hex}.part"
    try:
        aside.mkdir(parents=True)
        schema = _schema(getattr((rows.features or {}).get(spec.label_column), "names", None))
        total = 0
        for shard, some in enumerate(_groups(rows, SHARD_ROWS)):
            table = [{"image": {"bytes": _bytes(r[image])}, "label": r[spec.label_column]} for r in some]
            path = aside / f"{shard:05d}.parquet"
            pq.write_table(pa.Table.from_pylist(table, schema=schema), path, row_group_size=GROUP_ROWS)
            total += len(table)
            if progress is not None:
                progress(split, total, spec.splits[split])
        if total != spec.splits[split]:
            raise InputError(f"{place} gave {total} images for {spec.name} {split}; expected {spec.splits[split]}")
        shutil.rmtree(target, ignore_errors=True)
        os.replace(aside, target)
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:  # a lost connection is an OSError too
            raise InputError(
                f"cannot store {spec.name} {split} in {target.parent}: {error.strerror}; make room, or set "
                "RECARC_CACHE to a folder that can be written"
            ) from None
        raise _failed(spec, place, error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


def downloads(spec: Spec) -> Path:
    """Where `fetch_shards` keeps a set."""
    return cache_root() / "downloads" / spec.name


def _schema(names: Sequence[str] | None) -> Any:
    import pyarrow as pa

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", kind), ("label", pa.int64())])
    if not names:
        return schema
    features = {"label": {"names": list(names), "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _groups(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while some := list(itertools.islice(iterator, size)):
        yield some


def _place(spec: Spec, repo: str | None) -> str:
    place = repo or spec.hub
    if place is None:
        raise InputError(f"{spec.name} is on no Hub; it needs {spec.layouts}")
    return place


def _call(spec: Spec, place: str, **options: Any) -> Any:
    local = Path(place).is_dir()
    if importlib.util.find_spec("datasets") is None:
        raise InputError(
            f"fetching {spec.name} needs the optional `datasets` library: pip install 'recarc[data]' (or put its files "
            f"into a folder: {spec.layouts})"
        )
    if not local and not any(os.environ.get(name, "").lower() in TRUE for name in OFFLINE):
        _require_network(spec, place)
    import datasets

    try:
        config = () if local or spec.hub_config is None else (spec.hub_config,)
        return datasets.load_dataset(place, *config, **options)
    except Exception as error:
        raise _failed(spec, place, error) from None


def _undecoded(spec: Spec, place: str, rows: Any) -> tuple[Any, str]:
    import datasets

    columns = list(rows.features or rows.column_names or [])
    image = next((name for name in IMAGE_COLUMNS if name in columns), "")
    if not image or spec.label_column not in columns:
        raise InputError(f"{place} has the columns {', '.join(columns)}; expected image and {spec.label_column}")
    return rows.cast_column(image, datasets.Image(decode=False)), image


def _bytes(item: dict[str, Any]) -> bytes:
    data = item.get("bytes")
    return data if data is not None else Path(item["path"]).read_bytes()


def _require_network(spec: Spec, place: str) -> None:
    """One short connection, so that a machine without network learns it at once and not after many retries."""
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    url = urllib.parse.urlsplit(urllib.request.getproxies().get("https") or endpoint)
    address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    outcome: list[str] = []
    # In a thread, because looking up a name obeys no timeout.
    threading.Thread(target=_connect, args=(address, outcome), daemon=True).start()
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while not outcome and time.monotonic() < deadline:
        time.sleep(0.01)
    reason = outcome[0] if outcome else f"no answer within {CONNECT_TIMEOUT:.0f} s"
    if reason:
        raise InputError(
            f"cannot fetch {spec.name} from {place}: {address[0]} cannot be reached ({reason}); without network, put "
            f"into DIR/{spec.name} {spec.layouts}, and pass data_dir=DIR or set RECARC_DATA=DIR"
        )


def _connect(address: tuple[str, int], outcome: list[str]) -> None:
    try:
        socket.create_connection(address, timeout=CONNECT_TIMEOUT).close()
        outcome.append("")
    except OSError as error:
        outcome.append(str(error) or type(error).__name__)


def _failed(spec: Spec, place: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    gated = "gated" in str(error).lower() or "401" in str(error)
    hint = "accept its terms on the Hub and log in" if gated else f"or put into DIR/{spec.name} {spec.layouts}"
    return InputError(f"cannot fetch {spec.name} from {place}: {reason.rstrip('.')}; {hint}")
