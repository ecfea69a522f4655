"""Which device a name means, on machines with and without a GPU."""

from __future__ import annotations

import pytest
import torch

from recarc.errors import InputError
from recarc.runtime import device_named, use_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A machine with two of them, as far as the names go; set_device refuses what the real one refuses."""
    chosen: list[torch.device] = []

    def set_device(device: torch.device) -> None:
        if device.index is None:
            raise ValueError(f"Expected a torch.device with a specified index, but got:{device}")
        chosen.append(device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return chosen


def test_cuda_is_the_first_gpu_and_under_torchrun_the_rank_s_own(
    two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_named("cuda") == device_named("auto") == torch.device("cuda:0")
    assert device_named("cuda:1") == torch.device("cuda:1")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert use_device("auto") == torch.device("cuda:1")
    assert two_gpus[-1] == torch.device("cuda:1")


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="'cuda' is not available here; use cpu or auto"):
        device_named("cuda")
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        device_named("gpu")
    assert device_named("cpu") == torch.device("cpu")
