"""The training images that a training held out: no member saw them, so alpha may be chosen on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recarc.data.imageset import ImageSet


@dataclass(frozen=True)
class HeldOut:
    """Images to choose alpha on, and what they are, in words. `known`: the ensemble's training held them out."""

    images: ImageSet
    words: str
    known: bool


def held_out_rows(count: int, validation: int, seed: int) -> np.ndarray:
    """The rows, of `count`, that a training with this seed holds out, in order."""
    import torch

    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
    return np.sort(order[:validation])


def held_out(train: ImageSet, made_by: Mapping[str, Any]) -> HeldOut:
    """What the training of an ensemble held out of `train`; all of `train` where that was not recorded.

    `made_by` is what `ensemble.json` says of how it was made. Members that a training started from count too: what
    they held out is in `start_split`, unless the ensemble is older than that record.
    """
    splits = [made_by, *made_by.get("start_split", ())]
    rows = np.arange(len(train))
    for split in splits:
        if split.get("fingerprint") != train.fingerprint or not split.get("validation_images"):
            return HeldOut(train, "training images, which the members may have been trained on", known=False)
        rows = np.intersect1d(rows, held_out_rows(len(train), split["validation_images"], split.get("seed") or 0))
    if not len(rows):
        return HeldOut(train, "training images: no image was held out by every training", known=False)
    words = "training images that training held out"
    if made_by.get("start") and len(splits) == 1:
        words += " (of the members it started from nothing is recorded)"
    return HeldOut(train.subset(rows), words, known=True)
