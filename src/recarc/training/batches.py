"""Training data on the device: 8-bit pixels, random crops and flips, and a validation split."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recarc.data.catalog import CATALOG
from recarc.data.held_out import held_out_rows
from recarc.data.imageset import ImageSet

PADDING = 4
CROP_DRAWS = 3  # uniform numbers per sample: row, column, flip


@dataclass(frozen=True)
class Augmentation:
    """Random crop after zero padding, and random horizontal flip; the uniform numbers are passed in."""

    crop: bool
    flip: bool

    @classmethod
    def of(cls, data: str, crop: bool = True) -> Augmentation:
        """As the catalogue says of the set of this name, without crops if not `crop`; neither for an unknown set."""
        spec = CATALOG.get(data)
        return cls(crop and spec is not None and spec.crop, spec is not None and spec.flip)

    def __call__(self, pixels: Tensor, u: Tensor) -> Tensor:
        """(B, C, H, W) pixels -> the same shape; u is (B, 3) in [0, 1)."""
        if not (self.crop or self.flip):
            return pixels
        batch, channels, height, width = pixels.shape
        rows = torch.arange(height, device=pixels.device).expand(batch, height)
        columns = torch.arange(width, device=pixels.device).expand(batch, width)
        if self.flip:
            columns = torch.where(u[:, 2:3] < 0.5, width - 1 - columns, columns)
        if self.crop:
            pixels = F.pad(pixels, (PADDING,) * 4)
            offset = (u[:, :2] * (2 * PADDING + 1)).long().clamp(max=2 * PADDING)
            rows, columns = rows + offset[:, :1], columns + offset[:, 1:]
        b = torch.arange(batch, device=pixels.device)[:, None, None, None]
        c = torch.arange(channels, device=pixels.device)[None, :, None, None]
        return pixels[b, c, rows[:, None, :, None], columns[:, None, None, :]]


class Pixels:
    """One split: 8-bit pixels on the device, or read from the data set when it is too large to hold."""

    def __init__(self, data: ImageSet, rows: np.ndarray, device: torch.device) -> None:
        self.levels, self.shape = data.levels, data.shape
        self.labels = torch.from_numpy(data.labels[rows].astype(np.int64)).to(device)
        self._rows, self._data, self._device = rows, data, device
        self._pixels = None if data.streamed else data.subset(rows).uint8().to(device)

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, rows: Tensor, pixels: Tensor, labels: Tensor) -> None:
        """Fill `pixels` (B, C, H, W) uint8 and `labels` (B,) with these rows."""
        if self._pixels is not None:
            torch.index_select(self._pixels, 0, rows, out=pixels)
        else:
            pixels.copy_(self._decoded(self._rows[rows.cpu().numpy()]))
        torch.index_select(self.labels, 0, rows, out=labels)

    def _decoded(self, rows: np.ndarray) -> Tensor:
        """Pixels of a streamed set, decoded on all cores while the device is busy with the previous step."""
        parts = [part for part in np.array_split(rows, os.cpu_count() or 1) if len(part)]
        with ThreadPoolExecutor(len(parts)) as pool:
            images = list(pool.map(lambda part: self._data.batch(part)[0], parts))
        return (torch.cat(images) * self.levels).round().to(torch.uint8)

    def images(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0, 1] without augmentation, and labels."""
        pixels = torch.empty((len(rows), *self.shape), dtype=torch.uint8, device=self._device)
        labels = torch.empty(len(rows), dtype=torch.int64, device=self._device)
        self.fetch(rows, pixels, labels)
        return pixels.float().div_(self.levels), labels


def split(data: ImageSet, validation: int, seed: int, device: torch.device) -> tuple[Pixels, Pixels | None]:
    """Hold `validation` images out of the training set, the same ones for every member of a run."""
    held_out = held_out_rows(len(data), validation, seed)
    rest = np.setdiff1d(np.arange(len(data)), held_out)
    return Pixels(data, rest, device), Pixels(data, held_out, device) if validation else None


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: a function of seed and epoch alone, so that checkpoints need not store it."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(count, generator=generator)
