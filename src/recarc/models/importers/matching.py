"""Which registered architecture do these weights fit? Answered by names and shapes, never by guessing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from recarc.errors import InputError
from recarc.models.classifier import Classifier
from recarc.models.factories import make_member
from recarc.models.registry import build, names
from recarc.models.spec import ModelSpec
from recarc.models.weights import State, check_fit, differences, load_state

# What other code calls the same layers.
_RENAMES = (
    (re.compile(r"^(?:linear|classifier)\.(weight|bias)$"), r"fc.\1"),
    (re.compile(r"^(weight|bias)$"), r"fc.\1"),
    (re.compile(r"\.shortcut\."), ".downsample."),
    (re.compile(r"^block(\d+)\.layer\.(\d+)\."), r"layer\1.\2."),
    (re.compile(r"\.convShortcut\."), ".downsample.0."),
)
_VARIANTS: dict[str, tuple[dict[str, Any], ...]] = {
    "cnn": ({"batch_norm": False}, {"batch_norm": True}),
    "resnet18": ({"stem": "cifar"}, {"stem": "imagenet"}),
    "resnet20": ({"shortcut": "identity"}, {"shortcut": "conv"}),
}


@dataclass(frozen=True)
class Wanted:
    """What the user fixed, and the format's usual architecture (whose mismatches are listed if nothing fits)."""

    architecture: str | None
    usual: str | None
    classes: int | None
    channels: int | None
    image_size: int | None
    options: dict[str, Any]


def fitted_model(
    state: State, wanted: Wanted, mean: Sequence[float] | None, std: Sequence[float] | None, source: str
) -> Classifier:
    """The registered model that these weights fit, with the weights in it."""
    state = {f"net.{key}": value for key, value in _registry_names(state).items()}
    spec = _fitting_spec(state, wanted, source)
    fitted = make_member(replace(spec, mean=_floats(mean), std=_floats(std)))
    load_state(fitted, _with_counters(state, fitted.state_dict()), source, spec.architecture)
    assert isinstance(fitted, Classifier)
    return fitted.eval()


def _fitting_spec(state: State, wanted: Wanted, source: str) -> ModelSpec:
    """The first architecture without differences; if there is none, an error that lists the fewest differences."""
    expected_name = wanted.architecture or wanted.usual
    others = [] if wanted.architecture else [name for name in names() if name != expected_name]
    nearest: tuple[int, Classifier] | None = None
    for name in [*([expected_name] if expected_name else []), *others]:
        for model in _variants(name, state, wanted):
            expected = model.state_dict()
            wrong = len(differences(expected, _with_counters(state, expected)))
            if wrong == 0:
                return _spec(model)
            if name == expected_name and (nearest is None or wrong < nearest[0]):
                nearest = wrong, model
    if nearest is not None:
        expected, spec = nearest[1].state_dict(), _spec(nearest[1])
        chosen = ", ".join(f"{key}={value}" for key, value in spec.options.items())
        name = f"{spec.architecture} ({chosen})" if chosen else spec.architecture
        check_fit(expected, _with_counters(state, expected), source, name)
    raise InputError(
        f"{source} fits none of the registered architectures ({', '.join(names())}): "
        "name one with architecture= to see what differs"
    )


def _spec(model: Classifier) -> ModelSpec:
    assert model.spec is not None
    return model.spec


def _variants(name: str, state: State, wanted: Wanted) -> list[Classifier]:
    classes = wanted.classes or _dimension(state, "net.fc.weight", 0) or 10
    first = next((value for value in state.values() if value.dim() == 4), None)
    channels = wanted.channels or (3 if first is None else first.shape[1])
    models = []
    tried: list[dict[str, Any]] = []
    for variant in _VARIANTS.get(name, ({},)):
        options = {**variant, **wanted.options}
        if options in tried:
            continue
        tried.append(options)
        size = wanted.image_size or (224 if options.get("stem") == "imagenet" else 32)
        try:
            with torch.device("meta"):
                models.append(build(name, classes, channels, size, **options))
        except InputError:
            if wanted.architecture is not None:
                raise
    return models


def _registry_names(state: State) -> State:
    renamed: State = {}
    for key, value in state.items():
        for pattern, replacement in _RENAMES:
            key = pattern.sub(replacement, key)
        renamed[key] = value
    return renamed


def _with_counters(state: State, expected: dict[str, Any]) -> State:
    """Old checkpoints lack batch norm's counter of batches, which evaluation does not use."""
    missing = [key for key in expected if key.endswith(".num_batches_tracked") and key not in state]
    return {**state, **{key: torch.zeros((), dtype=torch.long) for key in missing}}


def _dimension(state: State, key: str, dim: int) -> int | None:
    value = state.get(key)
    return None if value is None or value.dim() <= dim else int(value.shape[dim])


def _floats(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)
