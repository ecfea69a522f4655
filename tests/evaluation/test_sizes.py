"""How many samples go at once: sizes that fill a device without padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recarc import RandomizedEnsemble
from recarc.evaluation.prepare import OWN, default_shard, default_tile, resolved_precision, search_tile
from recarc.models import build

GPU, CPU = torch.device("cuda"), torch.device("cpu")
SMALL, LARGE = torch.empty(1, 3, 32, 32), torch.empty(1, 3, 224, 224)


@pytest.mark.parametrize(
    ("device", "x", "tile", "shard"), [(GPU, SMALL, 256, 5120), (GPU, LARGE, 64, 128), (CPU, SMALL, 16, 256)]
)
def test_defaults(device: torch.device, x: torch.Tensor, tile: int, shard: int) -> None:
    quick = RandomizedEnsemble([nn.Flatten(), lambda x: x.flatten(1)])
    assert (default_tile(device, x, quick), default_shard(device, x)) == (tile, shard)
    assert shard % tile == 0


@pytest.mark.parametrize(("arch", "members", "tile"), [("cnn", 2, 16), ("resnet20", 2, 8), ("resnet18", 2, 1)])
def test_a_slow_ensemble_is_fed_a_few_samples_at_a_time(arch: str, members: int, tile: int) -> None:
    """Nothing of a tile is kept before its attack ends, so that a kill loses less. Counted: the same on any machine."""
    ensemble = RandomizedEnsemble([build(arch, 10, 3, 32).eval() for _ in range(members)])
    assert default_tile(CPU, torch.zeros(16, 3, 32, 32), ensemble) == tile
    assert default_tile(GPU, SMALL, ensemble) == 256


def test_members_that_cannot_take_the_inputs_are_no_reason_to_fail_here() -> None:
    ensemble = RandomizedEnsemble([nn.Linear(7, 10)])
    assert default_tile(CPU, SMALL, ensemble) == 16


def test_an_accelerated_search_takes_more_at_once_but_not_more_than_there_are() -> None:
    assert search_tile(GPU, SMALL, 256, 10_000) == 1024
    assert search_tile(GPU, SMALL, 256, 300) == 512
    assert search_tile(GPU, LARGE, 64, 10_000) == 64
    assert search_tile(CPU, SMALL, 16, 10_000) == 16


def test_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    single, double = nn.Linear(4, 3), nn.Linear(4, 3).double()
    both, plain = RandomizedEnsemble([single, lambda x: single(x)]), RandomizedEnsemble([lambda x: single(x)])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert resolved_precision("auto", both, GPU, {}) == "float16"
    assert resolved_precision("auto", plain, GPU, {}) == "float32"  # nothing there to convert
    assert resolved_precision("auto", both, CPU, {}) == "float32"
    assert resolved_precision("auto", RandomizedEnsemble([single, double]), GPU, {}) is None
    assert resolved_precision("auto", both, GPU, {"precision": "tf32"}) == "tf32"  # of the run that is resumed
    assert resolved_precision("auto", both, GPU, {"precision": OWN}) is None
    assert resolved_precision("float64", both, GPU, {"precision": "tf32"}) == "float64"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (6, 1))
    assert resolved_precision("auto", both, GPU, {}) == "float32"
