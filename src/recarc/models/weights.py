"""Weights in and out. Files are data here: nothing in them is ever executed."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from recarc.errors import InputError, first_line

State = dict[str, Tensor]
SUFFIXES = (".safetensors", ".pt", ".pth")
_REFUSED = re.compile(r"(?:GLOBAL|Unsupported class) ([\w.]+)")
_SHOWN = 8


def read_bytes(path: Path) -> tuple[bytes, str]:
    """The contents of a file and their SHA-256. Hashed and parsed from one reading, so both are the same bytes."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    return data, hashlib.sha256(data).hexdigest()


def parse(data: bytes, path: Path) -> Any:
    """What a weights file holds: tensors in plain containers. A pickle that wants more is refused unexecuted."""
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load(data)
        except Exception as error:
            raise InputError(f"{path} is not a readable safetensors file: {first_line(error)}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols: whether it can be read is said below
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever a broken file provokes
        refused = _REFUSED.search(str(error))
        if refused:
            raise InputError(
                f"{path} is a pickle that asks for {refused[1]!r}; it was refused and nothing in it was executed, "
                "because only tensors in plain containers are loaded: where you trust the file, load it yourself "
                "and save model.state_dict() with torch.save"
            ) from None
        # What torch says of a bad pickle includes the advice to load it without care: not passed on.
        reason = "not a pickle of tensors" if isinstance(error, pickle.UnpicklingError) else first_line(error)
        raise InputError(
            f"{path} cannot be read as a file of tensors (corrupt, truncated or of another kind): {reason}"
        ) from None


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


def differences(expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Every way in which a state dict does not fit, in words."""
    wrong = [f"missing {key!r}" for key in expected if key not in found]
    wrong += [f"unexpected {key!r}" for key in sorted(found) if key not in expected]
    for key in expected:
        if key not in found:
            continue
        want, have = expected[key], found[key]
        if want.shape != have.shape:
            wrong.append(f"{key!r} has shape {tuple(have.shape)}, expected {tuple(want.shape)}")
        elif want.is_floating_point() != have.is_floating_point():
            wrong.append(f"{key!r} is {_dtype(have)}, expected {_dtype(want)}")
    return wrong


def check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], found_in: str, model: str) -> None:
    wrong = differences(expected, found)
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise InputError(f"{found_in} does not fit {model}: {'; '.join(wrong[:_SHOWN])}{more}")


def load_state(model: nn.Module, state: State, found_in: str, name: str) -> None:
    """Copies the weights into the model after checking every key and shape; the model takes their dtype."""
    check_fit(model.state_dict(), state, found_in, name)
    dtypes = {value.dtype for value in state.values() if value.is_floating_point()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
        model.load_state_dict(state)
    else:  # mixed precision: each tensor keeps its own
        model.load_state_dict({key: value.clone() for key, value in state.items()}, assign=True)


def dump_state(model: nn.Module) -> tuple[bytes, str]:
    """The weights as the bytes of a safetensors file, and their SHA-256."""
    # Clones, because safetensors refuses tensors that share memory (tied weights).
    state = {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
    data = safetensors.torch.save(state)
    return data, hashlib.sha256(data).hexdigest()


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
