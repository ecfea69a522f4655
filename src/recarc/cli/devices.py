"""Which device a name means on this machine."""

from __future__ import annotations

import os

import torch

from recarc.errors import InputError, unknown


def device_named(name: str) -> torch.device:
    """auto is the best there is; under torchrun each process of a machine takes its own GPU."""
    kind = name.partition(":")[0]
    if kind not in ("auto", "cpu", "cuda", "mps"):
        raise unknown("device", name, ("auto", "cpu", "cuda", "mps"))
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if kind == "auto":
        name = kind = "cuda" if cuda else "mps" if mps else "cpu"
    if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
        raise InputError(f"device {name!r} is not available here; use --device cpu or auto")
    if name == "cuda":
        name = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
