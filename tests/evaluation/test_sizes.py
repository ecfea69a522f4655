"""How many samples go at once: sizes that fill a device without padding."""

from __future__ import annotations

import pytest
import torch

from recarc.evaluation.prepare import default_shard, default_tile, search_tile

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SMALL, LARGE = torch.empty(1, 3, 32, 32), torch.empty(1, 3, 224, 224)


@pytest.mark.parametrize(
    ("device", "x", "tile", "shard"), [(GPU, SMALL, 256, 5120), (GPU, LARGE, 64, 128), (CPU, SMALL, 16, 256)]
)
def test_defaults(device: torch.device, x: torch.Tensor, tile: int, shard: int) -> None:
    assert (default_tile(device, x), default_shard(device, x)) == (tile, shard)
    assert shard % tile == 0


def test_an_accelerated_search_takes_more_at_once_but_not_more_than_there_are() -> None:
    assert search_tile(GPU, SMALL, 256, 10_000) == 1024
    assert search_tile(GPU, SMALL, 256, 300) == 512
    assert search_tile(GPU, LARGE, 64, 10_000) == 64
    assert search_tile(CPU, SMALL, 16, 10_000) == 16
