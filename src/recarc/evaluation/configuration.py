"""What a run depends on, as JSON: attack with every knob, ball, alpha, weights, data, precision."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recarc.ensemble import Member, RandomizedEnsemble
from recarc.evaluation.samples import Samples, tensor_hash
from recarc.geometry import Ball
from recarc.provenance import commit

Json = dict[str, Any]


def described(value: Any) -> Any:
    """Knobs as JSON, recursively; two values with the same description mean the same computation."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (Tensor, np.ndarray)):
        tensor = torch.as_tensor(value)
        return {"shape": list(tensor.shape), "sha256": tensor_hash(tensor)}
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, (Sequence, set, frozenset)):
        return [described(item) for item in (sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        knobs = {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, **knobs}
    if isinstance(value, nn.Module):
        return {"class": type(value).__name__, "sha256": module_hash(value)}
    name = getattr(value, "__qualname__", None)
    if callable(value) and name is not None:
        return f"{value.__module__}:{name}"
    return {"class": type(value).__name__, **{k: described(v) for k, v in sorted(vars(value).items())}}


def module_hash(module: nn.Module) -> str:
    """Architecture (as printed, and the plain attributes of its parts), parameters and every buffer."""
    digest = hashlib.sha256(repr(module).encode())
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, (bool, int, float, str)) and k != "training"}
        digest.update(f"{name} {sorted(plain.items())}".encode())
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor_hash(tensor)}".encode())
    return digest.hexdigest()


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
