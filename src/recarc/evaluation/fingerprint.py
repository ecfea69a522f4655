"""What a run depends on, as JSON: attack with every knob, ball, alpha, weights, data, precision."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.ensemble import Member, RandomizedEnsemble
from recarc.evaluation.samples import Samples, tensor_hash
from recarc.geometry import Ball
from recarc.provenance import commit

Json = dict[str, Any]
Known = Mapping[int, str]  # by identity: what is being described already, and its name
Describe = Callable[[Any], Any]
REGISTRIES = frozenset(vars(nn.Module()))  # of torch's own: parameters, buffers, modules, hooks
WRAPPERS = ("torch._", "torch.fx.", "torch.jit.")  # what these hold besides the model is theirs
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
PASSING = ("training", "_torchdynamo_wrapper_id")  # the second is an address, of a compiled module
MANY = 1000  # objects within what a module holds
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
DERIVED = (  # of torch's layers, from their other attributes
    "_reversed_padding_repeated_twice",
    *("_flat_weights", "_flat_weight_refs", "_flat_weights_names", "_all_weights"),
)


class _TooManyError(Exception):
    pass


_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


def described(value: Any, known: Known | None = None) -> Any:
    """Knobs as JSON, recursively; two values with the same description mean the same computation.

    The same in every process: no memory addresses, and what encloses a value is only named where it occurs again.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "sha256": tensor_hash(value)}
    known = known or {}
    if id(value) in known:
        return {"again": known[id(value)]}
    inner = partial(described, known={**known, id(value): f"{type(value).__name__} {len(known)}"})
    if isinstance(value, Mapping):
        return {_key(key, inner): inner(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(inner, value), key=repr)
    if isinstance(value, Sequence):
        return [inner(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        knobs = {f.name: inner(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **knobs}
    if isinstance(value, nn.Module):
        return {"class": type(value).__name__, "sha256": module_hash(value, known)}
    if isinstance(value, partial):
        parts = {"function": inner(value.func), "args": inner(value.args), "keywords": inner(value.keywords)}
        return {"class": type(value).__name__, **parts}
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, torch.device) and value.index:
        value = torch.device(value.type, 0)  # which of several GPUs makes no difference
    if callable(value) and hasattr(value, "__qualname__"):
        return _function(value, inner)
    return _object(value, inner)


def _key(key: Any, inner: Describe) -> str:
    return canonical(inner(key)) if ADDRESS.search(str(key)) else str(key)


def _function(value: Any, inner: Describe) -> Any:
    """By name; with what it is bound to, its defaults and what it closes over, where it has them."""
    if hasattr(value, "__wrapped__") and not isinstance(value, (FunctionType, MethodType, type)):
        return inner(value.__wrapped__)  # such as a cached function
    plain, owner = getattr(value, "__func__", value), getattr(value, "__self__", None)
    told: Json = {}
    if isinstance(value, MethodType) or not isinstance(owner, (type(None), ModuleType, type)):
        told["self"] = inner(owner)
    if isinstance(plain, FunctionType):
        told |= {key: inner(held) for key in ("__defaults__", "__kwdefaults__") if (held := getattr(plain, key))}
        cells = zip(plain.__code__.co_freevars, plain.__closure__ or ())
        closure = {name: inner(_content(cell)) for name, cell in cells if name != "__class__"}
        told |= {"closure": closure} if closure else {}
    name = f"{getattr(value, '__module__', None)}:{value.__qualname__}"
    return {"function": name, **told} if told else name


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not assigned yet


def _object(value: Any, inner: Describe) -> Json:
    """By its attributes; what has none, or says itself how to make it again, by that."""
    _count()
    told: Json = {"class": type(value).__name__}
    if hasattr(value, "__dict__") and type(value).__reduce__ is object.__reduce__:
        return {**told, **{k: inner(v) for k, v in sorted(vars(value).items())}}
    try:
        made = value.__reduce_ex__(2)
    except Exception:  # locks, files, generators: nothing but their kind can be told
        return told
    return {**told, "made": made if isinstance(made, str) else [inner(part) for part in made[:3]]}


def module_hash(module: nn.Module, known: Known | None = None) -> str:
    """Architecture (as printed, the attributes and hooks of its parts), parameters and every buffer.

    Not the code of its methods: see `recarc.evaluation.resume`.
    """
    digest = hashlib.sha256(ADDRESS.sub("", repr(module)).encode())
    parts = dict(module.named_modules())
    known = {**(known or {}), **{id(part): f"part {name}" for name, part in parts.items()}}
    for name, part in parts.items():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, (bool, int, float, str)) and k not in PASSING}
        digest.update(f"{name} {sorted(plain.items())}".encode())
        held = {k: _bounded(v, known) for k, v in vars(part).items() if _matters(part, k, v)}
        held |= {k: [_bounded(hook, known) for hook in hooks.values()] for k in HOOKS if (hooks := vars(part).get(k))}
        digest.update(canonical(held).encode() if held else b"")
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor_hash(tensor)}".encode())
    return digest.hexdigest()


def _bounded(value: Any, known: Known) -> Any:
    """The description of what a module holds; only the kind where that is a whole web of objects, such as a trainer."""
    before = _left.set([MANY])
    try:
        return described(value, known)
    except (_TooManyError, RecursionError):
        return {"class": type(value).__name__}
    finally:
        _left.reset(before)


def _count() -> None:
    left = _left.get()
    if left is not None:
        left[0] -= 1
        if left[0] < 0:
            raise _TooManyError


def _matters(part: nn.Module, name: str, value: Any) -> bool:
    """Tensors, collections and functions of a part that are not registered, nor follow from what is printed of it."""
    if isinstance(value, (Tensor, np.ndarray)):
        return True
    home = type(part).__module__
    if name in REGISTRIES or home.startswith("recarc.models."):
        return False
    if isinstance(value, (FunctionType, MethodType, partial, set, frozenset, Mapping)):
        return bool(value) and not home.startswith(WRAPPERS)
    if not isinstance(value, (list, tuple)) or not value:
        return False
    layers = (base for base in type(part).__mro__ if base.__module__.startswith("torch.nn."))
    return name not in DERIVED and not any(name in getattr(base, "__constants__", ()) for base in layers)


def member_hash(member: Member, logits: Tensor) -> str:
    """Of the weights; of a plain callable, which has none to show, the logits on the first samples."""
    return module_hash(member) if isinstance(member, nn.Module) else tensor_hash(logits)


def configuration(
    ensemble: RandomizedEnsemble, attack: Any, samples: Samples, ball: Ball, first_logits: Tensor, **settings: Any
) -> Json:
    """Everything that the records depend on."""
    box = None if ball.box is None else list(ball.box)
    return {
        "attack": described(attack),
        "ball": {"norm": str(ball.norm), "eps": described(ball.eps), "box": box},
        "alpha": ensemble.alpha.tolist(),
        "members": [member_hash(m, out) for m, out in zip(ensemble.members, first_logits)],
        "data": {
            "name": samples.name,
            "split": getattr(samples, "split", None),
            "samples": len(samples),
            "fingerprint": samples.fingerprint,
        },
        **settings,
    }


def environment(device: torch.device) -> Json:
    """Versions and hardware: told, not compared."""
    from importlib.metadata import version

    import recarc

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "recarc": recarc.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pyarrow": version("pyarrow"),
        "system": platform.system(),
        "hardware": name,
        "commit": commit(),
    }


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def fingerprint(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def differences(there: Any, here: Any, path: str = "") -> list[str]:
    """What differs between two configurations, one phrase each, with dotted names."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [*there, *(key for key in here if key not in there)]
        inner = (differences(there.get(k), here.get(k), f"{path}.{k}" if path else k) for k in keys)
        return [phrase for phrases in inner for phrase in phrases]
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        inner = (differences(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(there, here)))
        return [phrase for phrases in inner for phrase in phrases]
    return [] if there == here else [f"{path} is {_short(there)} there and {_short(here)} here"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:12] + "..." + text[-6:]
