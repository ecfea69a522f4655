"""From files to members: unwrap the containers that training scripts put around state dicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recarc.errors import InputError, first_line
from recarc.models.weights import State, is_state, parse, read_bytes

_SUFFIXES = (".safetensors", ".pt", ".pth", ".tar", ".ckpt", ".bin")
_WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "models", "members", "ensemble", "classifiers")
_ALPHA = ("alpha", "alphas", "prob", "probs", "probabilities")
_NUMBERED = re.compile(r"(?:model|net|member|classifier)?_?(\d+)")
_FLAT = re.compile(r"(?:(?:models|members|nets|classifiers|ensemble)\.|(?:model|net)_?)(\d+)\.(.+)")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "backbone.", "basic_net.", "1.")
_DEEPEST = 10  # containers around a state dict
_LONGEST = 1000  # characters in the name of a weight
_NORMALISER = re.compile(
    r"(?:(?:normalizer|normalize|normalise|normalization|normalize_layer|norm|0)\.)?"
    r"(?:(?P<mean>means?|mu)|(?P<std>stds?|sds?|sigma))"
)


@dataclass(frozen=True)
class MemberState:
    """A member's weights without prefixes, and the (mean, std) stored beside them."""

    state: State
    normalisation: tuple[list[float], list[float]] | None
    source: str


@dataclass(frozen=True)
class Checkpoint:
    """The members of a checkpoint, its sampling probabilities if it holds any, and the files they came from."""

    members: tuple[MemberState, ...]
    alpha: tuple[float, ...] | None
    files: tuple[tuple[str, str, int], ...]  # (name, SHA-256, bytes)


def read_checkpoint(file: str | Path | Sequence[str | Path]) -> Checkpoint:
    """All members of a file, of the files of a folder, or of a list of files."""
    paths = _paths(file)
    members: list[MemberState] = []
    files: list[tuple[str, str, int]] = []
    alpha: tuple[float, ...] | None = None
    for path in paths:
        data, sha256 = read_bytes(path)
        files.append((path.name, sha256, len(data)))
        content = parse(data, path)
        try:
            alpha = _alpha(content) or alpha
            states = member_states(content, str(path))
        except InputError:
            raise
        except (ValueError, OverflowError, RecursionError) as error:  # such as a key with a million digits
            raise InputError(f"{path} holds something other than state dicts: {first_line(error)}") from None
        _check_tensors(states, len(data), str(path))
        for i, state in enumerate(states):
            source = f"{path} (member {i})" if len(states) > 1 else str(path)
            members.append(_clean(state, source))
    return Checkpoint(tuple(members), alpha, tuple(files))


def _check_tensors(states: Sequence[State], size: int, source: str) -> None:
    """Refuse tensors that a file describes rather than holds: repeated, sparse, or without any values."""
    tensors = [tensor for state in states for tensor in state.values()]
    if not all(tensor.layout == torch.strided and tensor.device.type == "cpu" for tensor in tensors):
        raise InputError(f"{source} holds tensors that are not plain arrays of values")
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if total > 8 * size + 2**20:
        raise InputError(f"{source} has {size} bytes and describes tensors of {total}: refused")


def member_states(content: Any, source: str) -> list[State]:
    """The state dicts of the members, in the order of their numbers."""
    content = _unwrap(content, source)
    if is_state(content):
        return _split_flat(_state(content, source), source)
    if isinstance(content, Mapping):
        return [_one_state(value, f"{source} (key {key!r})") for key, value in _numbered(content, source)]
    if isinstance(content, list | tuple) and content:
        return [_one_state(value, f"{source} (item {i})") for i, value in enumerate(content)]
    raise InputError(f"{source} holds a {type(content).__name__}, expected state dicts of tensors")


def _paths(file: str | Path | Sequence[str | Path]) -> list[Path]:
    if not isinstance(file, str | Path):
        paths = [Path(item) for item in file]
        if not paths:
            raise InputError("no checkpoint file was given")
        return paths
    path = Path(file)
    if not path.is_dir():
        return [path]
    inside = [p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file()]
    if not inside:
        raise InputError(f"{path} holds no checkpoint file ({', '.join(_SUFFIXES)})")
    return sorted(inside, key=lambda p: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", p.name)])


def _unwrap(content: Any, source: str) -> Any:
    for _ in range(_DEEPEST):
        inner = []
        if isinstance(content, Mapping) and not is_state(content):
            inner = [content[k] for k in _WRAPPERS if isinstance(content.get(k), Mapping | list | tuple)]
        if not inner:
            return content
        content = inner[0]
    raise InputError(f"{source} holds containers more than {_DEEPEST} deep, or one that contains itself")


def _one_state(value: Any, source: str) -> State:
    value = _unwrap(value, source)
    if not is_state(value):
        raise InputError(f"{source} holds a {type(value).__name__}, expected a state dict of tensors")
    return _state(value, source)


def _state(content: Mapping[str, Tensor], source: str) -> State:
    longest = max(content, key=len)
    if len(longest) > _LONGEST:
        raise InputError(f"{source} holds a name of {len(longest)} characters, {longest[:40]!r}...: not a state dict")
    return dict(content)


def _numbered(content: Mapping[Any, Any], source: str) -> list[tuple[Any, Any]]:
    numbered = {int(m[1]): key for key in content if (m := _NUMBERED.fullmatch(str(key)))}
    if not numbered:
        keys = ", ".join(repr(str(key)) for key in list(content)[:8])
        raise InputError(f"{source} holds no recognisable state dict; its keys: {keys or 'none'}")
    return [(numbered[i], content[numbered[i]]) for i in _consecutive(numbered, source)]


def _split_flat(state: State, source: str) -> list[State]:
    """An ensemble saved as one module: `models.0.conv1.weight`, `models.1.conv1.weight`, ..."""
    state = _strip(state, ("module.", "_orig_mod."))
    matches = {key: _FLAT.fullmatch(key) for key in state}
    if not all(matches.values()):
        return [state]
    members: dict[int, State] = {}
    for key, match in matches.items():
        if match:
            members.setdefault(int(match[1]), {})[match[2]] = state[key]
    return [members[i] for i in _consecutive(members, source)]


def _consecutive(numbers: Mapping[int, Any], source: str) -> list[int]:
    """The numbers in order; they must start at 0 or 1 and leave no gap."""
    ordered = sorted(numbers)
    if ordered != list(range(ordered[0], ordered[0] + len(ordered))) or ordered[0] > 1:
        raise InputError(f"{source} holds members {ordered[:20]}: some are missing")
    return ordered


def _clean(state: State, source: str) -> MemberState:
    """Strip prefixes and take out the normaliser, until nothing changes."""
    stored: dict[str, list[float]] = {}
    while True:
        before = len(state), next(iter(state), "")
        for key in list(state):
            match = _NORMALISER.fullmatch(key)
            if match:
                stored["mean" if match["mean"] else "std"] = _decimals(state.pop(key))
        state = _strip(state, _PREFIXES)
        if (len(state), next(iter(state), "")) == before:
            break
    if not state:
        raise InputError(f"{source} holds no weights")
    if len(stored) == 1:
        raise InputError(f"{source} holds only the {next(iter(stored))} of its normalisation")
    return MemberState(state, (stored["mean"], stored["std"]) if stored else None, source)


def _strip(state: State, prefixes: tuple[str, ...]) -> State:
    for prefix in prefixes:
        while state and all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _decimals(values: Tensor) -> list[float]:
    """The shortest decimals of float32 numbers: 0.4914, not 0.49140000343322754."""
    return [float(str(value)) for value in values.detach().float().flatten().numpy().astype(np.float32)]


def _alpha(content: Any) -> tuple[float, ...] | None:
    if not isinstance(content, Mapping):
        return None
    for key in _ALPHA:
        value = content.get(key)
        if isinstance(value, Tensor) and value.dim() == 1:
            return tuple(_decimals(value) if value.dtype != torch.float64 else value.tolist())
        if isinstance(value, list | tuple) and value and all(isinstance(a, int | float) for a in value):
            return tuple(float(a) for a in value)
    return None
