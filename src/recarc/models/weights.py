"""Weights: reading, checking and writing state dicts. Nothing in a file is ever executed."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from recarc.atomic import read_plain
from recarc.errors import InputError, first_line

State = dict[str, Tensor]
SUFFIXES = (".safetensors", ".pt", ".pth")
_REFUSED = re.compile(r"(?:GLOBAL|Unsupported class) ([\w.]+)")
_SHOWN = 8


def read_bytes(path: Path) -> tuple[bytes, str]:
    """The contents of a file and their SHA-256; the caller parses the very bytes that were hashed."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    return data, hashlib.sha256(data).hexdigest()


def parse(data: bytes, path: Path) -> Any:
    """The contents of a weights file: tensors in plain containers. A pickle that needs more is refused unexecuted."""
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load(data)
        except Exception as error:
            raise InputError(f"{path} is not a readable safetensors file: {first_line(error)}") from None
    try:
        _check_archive(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols; an unreadable file is an error below
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever a broken file provokes
        refused = _REFUSED.search(str(error))
        if refused:
            raise InputError(
                f"{path} is a pickle that asks for {refused[1]!r}; it was refused and nothing in it was executed, "
                "because only tensors in plain containers are loaded: if you trust the file, load it yourself and "
                "save model.state_dict() with torch.save"
            ) from None
        # torch advises to load a bad pickle without the protection; that advice is not passed on.
        reason = "not a pickle of tensors" if isinstance(error, pickle.UnpicklingError) else first_line(error)
        raise InputError(
            f"{path} cannot be read as a file of tensors (corrupt, truncated or of another kind): {reason}"
        ) from None


def _check_archive(data: bytes) -> None:
    """torch.save compresses nothing, so an archive that unpacks to more than its size was made to fill the memory."""
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > len(data):
            raise ValueError(f"{len(data)} bytes unpack to {size}")


def parse_state(data: bytes, path: Path) -> State:
    """A plain state dict: names to tensors and nothing else."""
    state = parse(data, path)
    if not is_state(state):
        raise InputError(f"{path} holds a {type(state).__name__} that is not a plain state dict of tensors")
    return dict(state)


def is_state(value: object) -> bool:
    if not isinstance(value, Mapping) or not value:
        return False
    return all(isinstance(key, str) and isinstance(item, Tensor) for key, item in value.items())


def differences(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """Every way in which a state dict does not fit."""
    wrong = [f"missing {key!r}" for key in expected if key not in state]
    wrong += [f"unexpected {key!r}" for key in sorted(state) if key not in expected]
    for key in expected:
        if key not in state:
            continue
        want, have = expected[key], state[key]
        if want.shape != have.shape:
            wrong.append(f"{key!r} has shape {tuple(have.shape)}, expected {tuple(want.shape)}")
        elif want.is_floating_point() != have.is_floating_point():
            wrong.append(f"{key!r} is {_dtype(have)}, expected {_dtype(want)}")
    return wrong


def check_fit(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], source: str, model: str) -> None:
    wrong = differences(expected, state)
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise InputError(f"{source} does not fit {model}: {'; '.join(wrong[:_SHOWN])}{more}")


def load_state(model: nn.Module, state: State, source: str, name: str) -> None:
    """Copy the weights into the model after checking every key and shape; the model takes on their dtype."""
    check_fit(model.state_dict(), state, source, name)
    dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
        model.load_state_dict(state)
    else:  # mixed precision: each tensor keeps its own
        model.load_state_dict({key: value.clone() for key, value in state.items()}, assign=True)


def unwrapped(member: object) -> nn.Module:
    """The model inside torch.compile, DataParallel or DistributedDataParallel."""
    while isinstance(member, nn.Module):
        inner = getattr(member, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            member = inner
        elif isinstance(member, nn.DataParallel | nn.parallel.DistributedDataParallel):
            member = member.module
        else:
            return member
    raise InputError(f"a {type(member).__name__} has no weights to save: expected a torch.nn.Module")


def dump_state(model: nn.Module) -> tuple[bytes, str]:
    """The weights as the bytes of a safetensors file, and their SHA-256."""
    # Clones, because safetensors refuses tensors that share memory (tied weights).
    state = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    data = safetensors.torch.save(state)
    return data, hashlib.sha256(data).hexdigest()


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
