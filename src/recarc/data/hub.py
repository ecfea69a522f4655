"""Downloading from the Hub with the optional `datasets` library: only `get` and `load(..., download=True)` do.

A split is stored as Parquet files under the cache, from where it is read like any other Parquet files.
"""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recarc.atomic import replacing, sweep
from recarc.data.cache import STALE_AFTER, cannot_write, downloads
from recarc.data.catalog import Spec
from recarc.data.formats import layouts
from recarc.data.formats.parquet import IMAGE_COLUMNS, Parquet
from recarc.errors import InputError, first_line

CONNECT_TIMEOUT = 3.0  # seconds to find out that there is no network
ENDPOINT = "https://huggingface.co"  # unless HF_ENDPOINT names a mirror
OFFLINE, TRUE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), {"1", "on", "yes", "true"}
SHARD_ROWS, GROUP_ROWS = 2000, 100
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


def download(spec: Spec, split: str) -> Parquet:
    """Download a split from its official repository as Parquet files."""
    place = spec.hub
    if place is None:
        raise InputError(f"{spec.name} is not on the Hub: it comes with an installed package")
    rows, image = _rows(spec, split, place)
    target = downloads(spec.name) / split
    try:
        sweep(target.parent, STALE_AFTER)
        with replacing(target) as part:
            total = _write(rows, image, spec, part, place)
            if total != spec.splits[split]:
                raise InputError(
                    f"{place} gives {total} images for {spec.name} {split}; expected {spec.splits[split]}: another set?"
                )
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:  # a lost connection is an OSError too
            raise cannot_write(target.parent, error) from None
        raise _failed(spec, place, error) from None
    return Parquet(tuple(sorted(target.glob("*.parquet"))), spec)


def _write(rows: Any, image: str, spec: Spec, folder: Path, place: str) -> int:
    """Write the rows as Parquet files whose names tell the repository; return their number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    stem = re.sub(r"[^\w.]+", "-", place).strip("-")[-80:]
    schema = _schema(getattr((rows.features or {}).get(spec.label_column), "names", None))
    total = 0
    for shard, some in enumerate(_groups(rows, SHARD_ROWS)):
        table = [{"image": {"bytes": _bytes(r[image])}, "label": r[spec.label_column]} for r in some]
        path = folder / f"{stem}-{shard:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(table, schema=schema), path, row_group_size=GROUP_ROWS)
        total += len(table)
    return total


def _rows(spec: Spec, split: str, place: str) -> tuple[Any, str]:
    """The rows of a split with undecoded images, and the name of their image column."""
    if importlib.util.find_spec("datasets") is None:
        raise InputError(
            f"downloading {spec.name} needs the optional `datasets` library: pip install 'recarc[data]' (or put its "
            f"files into a folder: {layouts(spec)})"
        )
    if not any(os.environ.get(name, "").lower() in TRUE for name in OFFLINE):
        _require_network(spec, place)
    import datasets

    try:
        config = () if spec.hub_config is None else (spec.hub_config,)
        rows = datasets.load_dataset(place, *config, split=split, streaming=spec.streamed, revision=spec.revision)
    except Exception as error:
        raise _failed(spec, place, error) from None
    columns = list(rows.features or rows.column_names or [])
    image = next((name for name in IMAGE_COLUMNS if name in columns), "")
    if not image or spec.label_column not in columns:
        raise InputError(f"{place} has the columns {', '.join(columns)}; expected image and {spec.label_column}")
    return rows.cast_column(image, datasets.Image(decode=False)), image


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


def _bytes(item: dict[str, Any]) -> bytes:
    data = item.get("bytes")
    return data if data is not None else Path(item["path"]).read_bytes()


def _require_network(spec: Spec, place: str) -> None:
    """Try one short connection, so that a machine without network fails at once and not after many retries."""
    endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
    url = urllib.parse.urlsplit(urllib.request.getproxies().get("https") or endpoint)
    address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    outcome: list[str] = []
    # In a thread, because looking up a name has no timeout.
    threading.Thread(target=_connect, args=(address, outcome), daemon=True).start()
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while not outcome and time.monotonic() < deadline:
        time.sleep(0.01)
    reason = outcome[0] if outcome else f"no answer within {CONNECT_TIMEOUT:.0f} s"
    if reason:
        raise InputError(
            f"cannot download {spec.name} from {place}: {address[0]} cannot be reached ({reason}); without network, "
            f"put into DIR/{spec.name} {layouts(spec)}; then pass data_dir=DIR or set RECARC_DATA=DIR"
        )


def _connect(address: tuple[str, int], outcome: list[str]) -> None:
    try:
        socket.create_connection(address, timeout=CONNECT_TIMEOUT).close()
        outcome.append("")
    except OSError as error:
        outcome.append(str(error) or type(error).__name__)


def _failed(spec: Spec, place: str, error: Exception) -> InputError:
    gated = "gated" in str(error).lower() or "401" in str(error)
    hint = "accept its terms on the Hub and log in" if gated else f"or put into DIR/{spec.name} {layouts(spec)}"
    return InputError(f"cannot download {spec.name} from {place}: {first_line(error).rstrip('.')}; {hint}")
