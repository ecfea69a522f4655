"""Other people's checkpoints -> ensemble folders: what `recarc import FORMAT FILE --out DIR` does.

Which registered architecture the weights belong to is decided by their names and shapes, never guessed.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from recarc.errors import InputError, RecarcWarning
from recarc.models.blocks import Classifier
from recarc.models.importers import (
    NORMALISATIONS,
    PUBLIC_FILES,
    CheckpointFormat,
    Normalisation,
    format_named,
    normalisation_named,
)
from recarc.models.importers.reading import Checkpoint, read_checkpoint
from recarc.models.registry import ModelSpec, build, build_member, check_sizes, names, variants
from recarc.models.store import check_classes, check_target, save_ensemble
from recarc.models.weights import State, check_fit, differences, load_state

# What other code calls the same layers.
_RENAMES = (
    (re.compile(r"^(?:linear|classifier)\.(weight|bias)$"), r"fc.\1"),
    (re.compile(r"^(weight|bias)$"), r"fc.\1"),
    (re.compile(r"\.shortcut\."), ".downsample."),
    (re.compile(r"^block(\d+)\.layer\.(\d+)\."), r"layer\1.\2."),
    (re.compile(r"\.convShortcut\."), ".downsample.0."),
)


@dataclass(frozen=True)
class Imported:
    """The result of an import: the new folder, its members, and where alpha came from (argument, file, uniform)."""

    path: Path
    format: str
    members: tuple[ModelSpec, ...]
    alpha: tuple[float, ...]
    alpha_from: str
    known_as: str = ""  # the published file that this is, if it is one

    def summary(self) -> str:
        kinds = ", ".join(sorted({spec.architecture for spec in self.members}))
        alpha = ", ".join(f"{a:.6g}" for a in self.alpha)
        known = f"this is {self.known_as}: " if self.known_as else ""
        members = "1 member" if len(self.members) == 1 else f"{len(self.members)} members"
        return f"{known}{members} ({kinds}), alpha {alpha} ({self.alpha_from}) -> {self.path}"


def import_checkpoint(
    format: str,
    file: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    architecture: str | None = None,
    classes: int | None = None,
    channels: int | None = None,
    image_size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    normalisation: str | None = None,
    options: Mapping[str, Any] | None = None,
    alpha: Sequence[float] | str | None = None,
    overwrite: bool = False,
) -> Imported:
    """Read a published checkpoint and write it as an ensemble folder.

    `file` is a file, a folder with one file per member (in the order of the numbers in their names) or a list of
    files. The architecture is found by comparing the names and shapes of the weights with the registry, unless
    `architecture` and `options` name it. The normalisation comes from the file if it is there, else from `mean` and
    `std` or a named `normalisation`. `alpha`: "uniform", a list, or None for the format's own rule. Files are only
    ever read as tensors; a pickle that needs more is refused.
    """
    from recarc.ensemble import RandomizedEnsemble

    kind = format_named(format)
    check_target(Path(out), overwrite)
    check_sizes(classes, channels, image_size)
    if options and architecture is None:
        raise InputError(f"options {dict(options)} belong to an architecture: give architecture= too")
    given = _given_normalisation(mean, std, normalisation)
    checkpoint = read_checkpoint(file)
    wanted = Wanted(architecture, kind.architecture, classes, channels, image_size, dict(options or {}))
    models = []
    for member in checkpoint.members:
        chosen = _normalisation(kind, given, member.normalisation, member.source)
        models.append(_fitted_model(member.state, wanted, chosen, member.source))
    specs = tuple(_spec(model) for model in models)
    check_classes(specs)
    probabilities, alpha_from = _alpha(kind, alpha, checkpoint)
    ensemble = RandomizedEnsemble(models, probabilities)
    made_by = {"import": kind.name, "files": [{"name": n, "sha256": h} for n, h, _ in checkpoint.files]}
    path = save_ensemble(ensemble, out, made_by={**made_by, "alpha_from": alpha_from}, overwrite=overwrite)
    return Imported(path, kind.name, specs, tuple(ensemble.alpha.tolist()), alpha_from, _known_as(checkpoint))


def _known_as(checkpoint: Checkpoint) -> str:
    """The title of the published file that was read; warns of one that has its name or size and other contents."""
    for name, sha256, size in checkpoint.files:
        for public in PUBLIC_FILES:
            if sha256 == public.sha256:
                return public.title
            if name == public.name or size == public.size:
                warnings.warn(
                    f"{name} differs from {public.title}, which has its {'name' if name == public.name else 'size'}: "
                    "damaged, changed, or another file; get it again if it is meant to be that one",
                    RecarcWarning,
                    stacklevel=3,
                )
    return ""


# Normalisation and alpha ----------------------------------------------------------------------------------


def _given_normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None, name: str | None
) -> Normalisation | None:
    if name is not None:
        if mean is not None or std is not None:
            raise InputError(f"give either normalisation={name!r} or mean and std, not both")
        return normalisation_named(name)
    if (mean is None) != (std is None):
        raise InputError("normalisation needs both mean and std, or neither: one of them is missing")
    return None if mean is None else (mean, std)


def _normalisation(
    kind: CheckpointFormat, given: Normalisation | None, stored: Normalisation | None, source: str
) -> Normalisation:
    if stored is not None:
        if given is not None:
            raise InputError(
                f"{source} holds its own normalisation (mean {stored[0]}, std {stored[1]}): do not give another"
            )
        return stored
    if given is not None:
        return given
    if kind.normalisation is not None:
        return normalisation_named(kind.normalisation)
    raise InputError(
        f"{source} does not hold the normalisation of its inputs, without which its accuracy would be silently wrong: "
        f"give mean and std, or normalisation= one of {', '.join(sorted(NORMALISATIONS))}"
    )


def _alpha(
    kind: CheckpointFormat, given: Sequence[float] | str | None, checkpoint: Checkpoint
) -> tuple[Sequence[float] | None, str]:
    if isinstance(given, str):
        if given != "uniform":
            raise InputError(f"alpha must be 'uniform' or a list of probabilities, got {given!r}")
        return None, "uniform"
    if given is not None:
        return given, "argument"
    if checkpoint.alpha is not None:
        return checkpoint.alpha, "file"
    if kind.uniform or len(checkpoint.members) == 1:
        return None, "uniform"
    raise InputError(
        f"{kind.name} ensembles have sampling probabilities of their own, which the checkpoint does not hold: "
        f"give alpha= {len(checkpoint.members)} numbers, or alpha='uniform'"
    )


# Matching weights with architectures ----------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What the user fixed, and the format's usual architecture (whose mismatches are listed if nothing fits)."""

    architecture: str | None = None
    usual: str | None = None
    classes: int | None = None
    channels: int | None = None
    image_size: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def _fitted_model(state: State, wanted: Wanted, normalisation: Normalisation, source: str) -> Classifier:
    """The registered model that these weights fit, with the weights loaded."""
    state = registry_names(state)
    mean, std = (None if values is None else tuple(values) for values in normalisation)
    spec = replace(fitting_spec(state, wanted, source), mean=mean, std=std)
    model = build_member(spec)
    load_state(model, _with_counters(state, model.state_dict()), source, spec.label)
    assert isinstance(model, Classifier)
    return model.eval()


def fitting_spec(state: State, wanted: Wanted, source: str) -> ModelSpec:
    """The first architecture without differences; if there is none, an error that lists the fewest differences."""
    expected_name = wanted.architecture or wanted.usual
    others = [] if wanted.architecture else [name for name in names() if name != expected_name]
    nearest: tuple[int, Classifier] | None = None
    for name in [*([expected_name] if expected_name else []), *others]:
        for model in _candidates(name, state, wanted):
            expected = model.state_dict()
            wrong = len(differences(expected, _with_counters(state, expected)))
            if wrong == 0:
                return _spec(model)
            if name == expected_name and (nearest is None or wrong < nearest[0]):
                nearest = wrong, model
    if nearest is not None:
        expected, spec = nearest[1].state_dict(), _spec(nearest[1])
        chosen = ", ".join(f"{key}={value}" for key, value in spec.options.items())
        label = f"{spec.label} ({chosen})" if chosen else spec.label
        check_fit(expected, _with_counters(state, expected), source, label)
    raise InputError(
        f"{source} fits none of the registered architectures ({', '.join(names())}): "
        "name one with architecture= to see what differs"
    )


def _candidates(name: str, state: State, wanted: Wanted) -> Iterator[Classifier]:
    """Models of an architecture, one for each combination of its options, without memory for their weights."""
    head = state.get("net.fc.weight")
    classes = wanted.classes or (10 if head is None or head.dim() == 0 else int(head.shape[0]))
    first = next((value for value in state.values() if value.dim() == 4), None)
    channels = wanted.channels or (3 if first is None else first.shape[1])
    tried: list[dict[str, Any]] = []
    for variant in variants(name):
        options = {**variant, **wanted.options}
        if options in tried:
            continue
        tried.append(options)
        size = wanted.image_size or (224 if options.get("stem") == "imagenet" else 32)
        try:
            with torch.device("meta"):
                model = build(name, classes, channels, size, **options)
        except InputError:
            if wanted.architecture is not None:
                raise
        else:
            yield model


def _spec(model: Classifier) -> ModelSpec:
    assert model.spec is not None
    return model.spec


def registry_names(state: State) -> State:
    """Other code's names of layers -> those of a registered model."""
    renamed: State = {}
    for key, value in state.items():
        for pattern, replacement in _RENAMES:
            key = pattern.sub(replacement, key)
        renamed[f"net.{key}"] = value
    return renamed


def _with_counters(state: State, expected: Mapping[str, Any]) -> State:
    """Old checkpoints lack batch norm's counter of batches, which evaluation does not use."""
    missing = [key for key in expected if key.endswith(".num_batches_tracked") and key not in state]
    return {**state, **{key: torch.zeros((), dtype=torch.long) for key in missing}}
