"""SVHN's official cropped-digit files: train_32x32.mat, test_32x32.mat, extra_32x32.mat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recarc.data.catalog import Spec
from recarc.data.formats import Block, Format, in_blocks, register, whole_labels
from recarc.errors import InputError, first_line


@register
@dataclass(frozen=True)
class Svhn(Format):
    """One .mat file with X (32, 32, 3, N) and y (N, 1), where label 10 means the digit 0."""

    path: Path

    @classmethod
    def layout(cls, spec: Spec) -> str:
        return " and ".join(f"{split}_32x32.mat" for split in spec.usual_splits) if spec.name == "svhn" else ""

    @classmethod
    def find(cls, root: Path, spec: Spec | None, split: str) -> Svhn | None:
        path = root / f"{split}_32x32.mat"
        return cls(path) if spec is not None and spec.name == "svhn" and path.is_file() else None

    def files(self) -> Sequence[Path]:
        return (self.path,)

    def blocks(self) -> Iterator[Block]:
        import scipy.io

        try:
            content = scipy.io.loadmat(self.path, variable_names=["X", "y"])
            images, labels = content["X"], np.asarray(content["y"]).reshape(-1)
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(f"cannot read {self.path}: {reason}; truncated or not SVHN's file, get it again") from None
        if images.dtype != np.uint8 or images.shape != (32, 32, 3, len(labels)):
            raise InputError(
                f"{self.path} holds {images.dtype} X of shape {images.shape} and {len(labels)} labels; "
                f"expected uint8 (32, 32, 3, N): use the cropped digits (format 2), not the full numbers"
            )
        labels = whole_labels(labels, f"y of {self.path}")
        yield from in_blocks(images.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels))
