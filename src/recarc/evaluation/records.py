"""Per-sample records: the bits of every member on every sample, as Parquet."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recarc.data.parquet_pages import check_pages

STAGE = "stage_"
PER_SAMPLE = ("index", "labels", "clean", "adversarial", "norms", "alone", "decided_by", "challenged", "excluded")
CLEAN = "clean"  # the entry before the first stage: no attack


@dataclass
class Records:
    """n samples, M members, J adversarial inputs per sample (J > 1 where the attacker randomizes too).

    Predictions are labels, judged in float32; -1 means that the member's logits were NaN. `weights` are the attacker's
    probabilities. `stages` of a staged attack: first "clean", then per stage the labels at its own points, where it is
    an attack by itself (`Stage.alone`: adaptive_pgd and arc of `Tight`), or else at the best point so far.
    """

    index: np.ndarray  # (n,) int64
    labels: np.ndarray  # (n,) int16
    clean: np.ndarray  # (M, n) int16
    adversarial: np.ndarray  # (J, M, n) int16
    norms: np.ndarray  # (J, n) float32
    weights: np.ndarray  # (J,) float64
    stages: dict[str, np.ndarray] = field(default_factory=dict)  # (M, n) int16 each
    alone: np.ndarray | None = None  # (M, n) bool: member i withstood every attack seen
    decided_by: np.ndarray | None = None  # (n,) int16: the first stage to reach the final value; -1 for none
    challenged: np.ndarray | None = None  # (M, n) int8: 0 the pair fell before the challenge, 1 spared, 2 drawn
    excluded: np.ndarray | None = None  # (K, n) bool, of certificates: no point fools all members of the k-th set

    def __len__(self) -> int:
        return len(self.index)


def joined(parts: Sequence[Records]) -> Records:
    """Records of consecutive samples as one."""
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts:
        if shape_of(part) != shape_of(first):
            raise ValueError(f"records of different shapes: {shape_of(first)} and {shape_of(part)}")

    def together(name: str) -> Any:
        """Samples are the last axis of every array."""
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays, axis=-1)

    stages = {name: np.concatenate([part.stages[name] for part in parts], axis=-1) for name in first.stages}
    return Records(weights=first.weights, stages=stages, **{name: together(name) for name in PER_SAMPLE})


def taken(records: Records, rows: range) -> Records:
    """The records of consecutive samples, the inverse of `joined`."""
    part = slice(rows.start, rows.stop)
    cut = {name: None if (v := getattr(records, name)) is None else v[..., part] for name in PER_SAMPLE}
    return Records(weights=records.weights, stages={k: v[..., part] for k, v in records.stages.items()}, **cut)  # type: ignore[arg-type]


def shape_of(records: Records) -> tuple[object, ...]:
    """What all shards of a run have in common."""
    return (
        records.clean.shape[0],
        tuple(records.weights.tolist()),
        tuple(records.stages),
        records.alone is None,
        records.decided_by is None,
        records.challenged is None,
        records.excluded is None,
    )


def to_parquet(records: Records) -> bytes:
    """One row per sample. The same records give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def column(array: np.ndarray, dtype: type) -> pa.Array:
        """From the bytes themselves: `pa.array` would import pandas, if it is installed, to ask whether this is its."""
        values: np.ndarray = np.ascontiguousarray(array, dtype)
        return pa.Array.from_buffers(pa.from_numpy_dtype(dtype), values.size, [None, pa.py_buffer(values.data)])

    def rows(array: np.ndarray, dtype: type) -> pa.Array:
        """A list column from (..., n): all values of a sample, the first axis slowest."""
        flat = np.moveaxis(array, -1, 0).reshape(array.shape[-1], -1)
        offsets = np.arange(len(flat) + 1, dtype=np.int32) * flat.shape[1]
        return pa.ListArray.from_arrays(column(offsets, np.int32), column(flat.reshape(-1), dtype))

    components, members, n = records.adversarial.shape
    columns = {
        "index": column(records.index, np.int64),
        "label": column(records.labels, np.int16),
        "clean": rows(records.clean, np.int16),
        "adversarial": rows(records.adversarial, np.int16),
        "weight": rows(np.repeat(records.weights[:, None], n, axis=1), np.float64),
        "norm": rows(records.norms, np.float32),
    }
    for name, predictions in records.stages.items():
        columns[STAGE + name] = rows(predictions, np.int16)
    if records.alone is not None:
        columns["alone"] = rows(records.alone.astype(np.int8), np.int8)
    if records.decided_by is not None:
        columns["decided_by"] = column(records.decided_by, np.int16)
    if records.challenged is not None:
        columns["challenged"] = rows(records.challenged, np.int8)
    if records.excluded is not None:
        columns["excluded"] = rows(records.excluded.astype(np.int8), np.int8)
    layout = {"members": members, "components": components}
    table = pa.table(columns).replace_schema_metadata({"recarc": json.dumps(layout)})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def from_parquet(data: bytes) -> Records:
    """The inverse of `to_parquet`; raises ValueError on anything else."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_pages(data, pq.read_metadata(pa.BufferReader(data)))
        # Threads of pyarrow that hold something of Python's may abort a process that is ending; so none does. And not
        # `read_table`, which would import pandas, if it is installed.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        layout = json.loads(table.schema.metadata[b"recarc"])
        members, components, n = int(layout["members"]), int(layout["components"]), table.num_rows

        def flat(name: str, dtype: type, *shape: int) -> np.ndarray:
            column = table.column(name).combine_chunks()
            values = column.flatten() if pa.types.is_list(column.type) else column
            values = values.cast(pa.from_numpy_dtype(dtype))
            if values.null_count:
                raise ValueError(f"{name} has missing values")
            buffer = values.buffers()[1] or b""  # and not `to_numpy`, which would import pandas, if it is installed
            start = values.offset * np.dtype(dtype).itemsize
            array: np.ndarray = np.frombuffer(buffer, dtype, len(values), start).reshape(n, *shape)
            return np.ascontiguousarray(np.moveaxis(array, 0, -1))  # or means would be rounded in another order

        names = table.column_names
        weights = flat("weight", np.float64, components)
        return Records(
            index=flat("index", np.int64),
            labels=flat("label", np.int16),
            clean=flat("clean", np.int16, members),
            adversarial=flat("adversarial", np.int16, components, members),
            norms=flat("norm", np.float32, components),
            weights=weights[:, 0] if n else np.ones(components),
            stages={c[len(STAGE) :]: flat(c, np.int16, members) for c in names if c.startswith(STAGE)},
            alone=flat("alone", np.int8, members).astype(bool) if "alone" in names else None,
            decided_by=flat("decided_by", np.int16) if "decided_by" in names else None,
            challenged=flat("challenged", np.int8, members) if "challenged" in names else None,
            excluded=flat("excluded", np.int8, -1).astype(bool) if "excluded" in names else None,
        )
    except (pa.ArrowException, KeyError, TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise ValueError(f"not a shard of records: {str(error).splitlines()[0][:100]}") from None
