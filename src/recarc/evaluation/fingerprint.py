"""What a run depends on, as JSON: the attack with every knob and its code, ball, alpha, members, data, precision."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.ensemble import Member, RandomizedEnsemble
from recarc.evaluation.own_code import reached
from recarc.evaluation.samples import Samples, tensor_hash
from recarc.geometry import Ball

Json = dict[str, Any]
PLAIN = (bool, int, float, str, type(None))
VERSIONED = ("recarc", "torch", "numpy")  # packages whose version stands for their code, as Python's does for its own
MOST_OBJECTS, DEEPEST = 2000, 40  # what holds more than this is a web of objects, such as a trainer and its callbacks
UNDESCRIBED = "undescribed"
CODE = ("class_code", "own_code", "code")  # the first of them that a description has is a hash of code
EDITED = "the code of"
REGISTRIES = frozenset(vars(nn.Module()))
NOT_COMPUTING = frozenset({"__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__"})  # many are generated
TRANSIENT = ("training", "_torchdynamo_wrapper_id")  # the second is an address


def configuration(
    ensemble: RandomizedEnsemble, attack: Any, samples: Samples, ball: Ball, first_logits: Tensor, **settings: Any
) -> Json:
    """Everything that the records depend on."""
    box = None if ball.box is None else list(ball.box)
    return {
        "attack": describe(attack),
        "ball": {"norm": str(ball.norm), "eps": describe(ball.eps), "box": box},
        "alpha": ensemble.alpha.tolist(),
        "members": [_member_hash(m, out) for m, out in zip(ensemble.members, first_logits)],
        "data": {
            "name": samples.name,
            "split": getattr(samples, "split", None),
            "samples": len(samples),
            "fingerprint": samples.fingerprint,
        },
        **settings,
    }


def _member_hash(member: Member, logits: Tensor) -> str:
    """Of the weights; of a plain callable, which has none, of its logits on the first samples."""
    return module_hash(member) if isinstance(member, nn.Module) else tensor_hash(logits)


def module_hash(module: nn.Module) -> str:
    """The class of every part with its plain attributes, parameters and buffers; the same in every version of torch.

    What this cannot see (code, hooks, other attributes) shows in the first logits: see `recarc.evaluation.resume`.
    """
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if _plain(v) and k not in TRANSIENT}
        digest.update(f"{name} {type(part).__qualname__} {sorted(plain.items())}".encode())
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor_hash(tensor)}".encode())
    return digest.hexdigest()


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str)) or (isinstance(value, tuple) and all(map(_plain, value)))


def describe(value: Any) -> Any:
    """An attack or another value as JSON, recursively: the same description means the same computation.

    An object is its class and state, a function its name, defaults and closure; both also their code, unless they
    belong to recarc, torch, numpy or Python, whose versions a run records. Two processes give the same description:
    it holds no memory addresses. What cannot be described is marked, and `undescribed` finds the marks.
    """
    return _Description()(value)


class _Description:
    """One walk through a value; `enclosing` are the objects around the present one, so that cycles end."""

    def __init__(self) -> None:
        self.enclosing: dict[int, int] = {}
        self.objects = 0

    def __call__(self, value: Any) -> Any:
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, np.ndarray):
            value = torch.as_tensor(value.copy()) if value.dtype.kind in "biufc" else value.tolist()
        if isinstance(value, Tensor):
            return {"shape": list(value.shape), "sha256": tensor_hash(value)}
        if id(value) in self.enclosing:
            return {"again": self.enclosing[id(value)]}
        self.objects += 1
        if self.objects > MOST_OBJECTS or len(self.enclosing) > DEEPEST:
            return {"class": type(value).__name__, UNDESCRIBED: True}
        self.enclosing[id(value)] = len(self.enclosing)
        try:
            return self._composite(value)
        finally:
            del self.enclosing[id(value)]

    def _composite(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {k if isinstance(k, str) else canonical(self(k)): self(v) for k, v in value.items()}
        if isinstance(value, (set, frozenset)):
            return sorted((self(item) for item in value), key=canonical)
        if isinstance(value, Sequence):
            return [self(item) for item in value]
        if isinstance(value, partial):
            return {"function": self(value.func), "args": self(value.args), "keywords": self(value.keywords)}
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return _name(value) if _versioned(value) else {"class": _name(value), "code": self._class_code(value)}
        if callable(value) and hasattr(value, "__wrapped__"):  # such as a cached function
            return self(value.__wrapped__)
        if isinstance(value, MethodType):
            return {"function": self(value.__func__), "self": self(value.__self__)}
        if callable(value) and hasattr(value, "__qualname__"):  # built in, perhaps bound to an object
            owner = getattr(value, "__self__", None)
            return _name(value) if isinstance(owner, (ModuleType, type(None))) else [_name(value), self(owner)]
        return self._object(value)

    def _function(self, function: FunctionType) -> Any:
        """Its name, defaults and closure, and its code unless a version covers that."""
        parts: Json = {k.strip("_"): self(v) for k in ("__defaults__", "__kwdefaults__") if (v := getattr(function, k))}
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        closure = {name: self(_content(cell)) for name, cell in cells if name != "__class__"}
        parts |= {"closure": closure} if closure else {}
        if not _versioned(function):
            named = {name: self(value) for name, value in _own_globals(function)}
            parts["code"] = fingerprint([_instructions(function.__code__), named, _source(function)])[:16]
        return {"function": _name(function), **parts} if parts else _name(function)

    def _class_code(self, kind: type) -> str:
        """The functions and plain attributes of a class and its bases."""
        parts: Json = {}
        for base in (base for base in kind.__mro__ if not _versioned(base)):
            for name, item in vars(base).items():
                function = getattr(item, "__func__", getattr(item, "fget", getattr(item, "func", item)))
                if isinstance(function, FunctionType) and name not in NOT_COMPUTING:
                    parts[f"{base.__qualname__}.{name}"] = self(function)
                elif isinstance(item, PLAIN) and not name.startswith("__"):
                    parts[f"{base.__qualname__}.{name}"] = self(item)
            parts |= reached(str(base.__module__), [base.__qualname__.partition(".")[0]])
        return fingerprint(parts)[:16]

    def _object(self, value: Any) -> Json:
        kind = type(value)
        result: Json = {"class": kind.__name__}
        if not _versioned(kind):
            result["class_code"] = self._class_code(kind)
        if isinstance(value, nn.Module):
            result["sha256"] = module_hash(value)
        state = _state(value)
        return {**result, UNDESCRIBED: True} if state is None else {**result, **{k: self(v) for k, v in state.items()}}


def _state(value: Any) -> Json | None:
    """Fields and other attributes; of what has none, how it says it is made again. None: nothing can be known."""
    kind = type(value)
    if isinstance(value, nn.Module):
        own = {} if _versioned(kind) else vars(value)  # those of torch's layers are printed
        return {k: v for k, v in own.items() if k not in REGISTRIES and k not in TRANSIENT}
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {**fields, **dict(sorted(getattr(value, "__dict__", fields).items()))}
    if hasattr(value, "__dict__") and kind.__reduce__ is object.__reduce__:
        return dict(sorted(vars(value).items()))
    try:
        made = value.__reduce_ex__(2)
    except Exception:  # locks, files, generators
        return None
    return {"made": made if isinstance(made, str) else list(made[:3])}


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}:{value.__qualname__}"


def _versioned(value: Any) -> bool:
    """Whether a function or class belongs to a package whose version a run records, so that its name identifies it."""
    package = str(getattr(value, "__module__", None)).partition(".")[0]
    return package in VERSIONED or (package in sys.stdlib_module_names and _of_python(package))


@cache
def _of_python(module: str) -> bool:
    """Whether this is the standard library's, not somebody's own code.py or test.py."""
    file = getattr(sys.modules.get(module), "__file__", None)
    library = Path(sysconfig.get_path("stdlib"))
    return module in sys.builtin_module_names or (
        file is not None and Path(file).is_relative_to(library) and "site-packages" not in file
    )


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _instructions(code: CodeType) -> list[Any]:
    """The byte code with its constants and names, without lines and files: a comment changes nothing."""
    constants = [
        _instructions(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c)
        for c in code.co_consts
    ]
    return [code.co_code.hex(), list(code.co_names), constants]


def _own_globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the code names of its own module: functions, classes, and constants in capital letters."""
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        helper = isinstance(value, (FunctionType, type)) and value.__module__ == function.__module__
        constant = isinstance(value, (*PLAIN, tuple, Tensor)) or dataclasses.is_dataclass(value)
        if helper or (constant and name.isupper()):
            yield name, value


def _source(function: FunctionType) -> dict[str, str]:
    """What the function names in files of the user's, and the top-level definition that it is part of."""
    used = _names(function.__code__)
    return reached(str(function.__module__), [function.__qualname__.partition(".")[0], *used], used)


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def undescribed(description: Any) -> list[str]:
    """The classes of what a description could not look into."""
    if isinstance(description, dict):
        own = [str(description["class"])] if description.get(UNDESCRIBED) is True else []
        return own + [name for item in description.values() for name in undescribed(item)]
    return [name for item in description for name in undescribed(item)] if isinstance(description, list) else []


def knob_of(attack: Any, name: str) -> Any:
    """A knob of a described attack, or else of the first attack within it that has it; None if none has."""
    inner = [attack]
    while inner:
        attack = inner.pop(0)
        if isinstance(attack, dict) and attack.get(name) is not None:
            return attack[name]
        if isinstance(attack, dict):
            inner += [attack.get("attack"), *(attack.get("attacks") or ())]
    return None


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def fingerprint(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def differences(one: Any, other: Any, names: tuple[str, str] = ("in the run", "now"), path: str = "") -> list[str]:
    """What differs between two configurations, one phrase each, with dotted names."""
    if isinstance(one, dict) and isinstance(other, dict):
        code = next((key for key in CODE if key in one and key in other and _owner(one) == _owner(other)), None)
        edited = code is not None and one[code] != other[code]
        keys = [key for key in [*one, *(key for key in other if key not in one)] if key != code]
        inner = (differences(one.get(k), other.get(k), names, f"{path}.{k}" if path else k) for k in keys)
        of_code = [f"{EDITED} {_owner(one)} is not the same {names[0]} as {names[1]}"] if edited else []
        return [phrase for phrases in (of_code, *inner) for phrase in phrases]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        inner = (differences(a, b, names, f"{path}[{i}]") for i, (a, b) in enumerate(zip(one, other)))
        return [phrase for phrases in inner for phrase in phrases]
    return [] if one == other else [f"{path} is {_short(one)} {names[0]} and {_short(other)} {names[1]}"]


def _owner(description: Json) -> str:
    """Whose code a description holds: a class or a function, without its module."""
    name = description.get("class", description.get("function"))
    return name.rpartition(":")[2] if isinstance(name, str) else "your method or network"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:12] + "..." + text[-6:]


def attack_text(attack: Any) -> str:
    """A described attack in words: ARC(steps=20, planes=4), with the knobs that are set."""
    if isinstance(attack, list):
        return "[" + ", ".join(attack_text(a) for a in attack) + "]"
    if isinstance(attack, dict) and "class" in attack:
        knobs = {k: v for k, v in attack.items() if k not in ("class", "class_code") and v is not None}
        return f"{attack['class']}({', '.join(f'{k}={attack_text(v)}' for k, v in knobs.items())})"
    if isinstance(attack, dict) and "function" in attack:
        return attack_text(attack["function"])
    return str(attack)


def eps_text(eps: Any) -> str:
    """The radius as people write it: 8/255 rather than 0.0313725, and 1/3."""
    if not isinstance(eps, (int, float)):
        return "of each sample"
    if len(f"{eps:g}") <= 5 or eps >= 1:
        return f"{eps:g}"
    for parts in (3, 255):
        if abs(eps * parts - round(eps * parts)) < 1e-6:
            return f"{round(eps * parts)}/{parts}"
    return f"{eps:g}"
