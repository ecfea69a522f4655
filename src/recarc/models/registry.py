"""Architectures by name. Each is one file with a function `make(classes, channels, image_size, *, options)`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from recarc.errors import unknown
from recarc.models.spec import ModelSpec

if TYPE_CHECKING:
    from recarc.models.classifier import Classifier

_ARCHITECTURES = ("cnn", "linear", "mobilenetv1", "preact_resnet18", "resnet18", "resnet20", "vgg16", "wrn28_4")


def names() -> list[str]:
    """The registered architectures, in alphabetical order."""
    return sorted(_ARCHITECTURES)


def build(
    arch: str,
    classes: int,
    channels: int = 3,
    image_size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **options: Any,
) -> Classifier:
    """A freshly initialised model from images in [0, 1] (B, channels, image_size, image_size) to logits.

    `mean` and `std` are per channel and applied inside the model. The result carries `spec`, from which
    `save_ensemble` knows how to build it again.
    """
    make = _maker(arch)
    spec = ModelSpec(
        architecture=arch,
        classes=classes,
        channels=channels,
        image_size=image_size,
        mean=cast("tuple[float, ...] | None", mean),  # the spec makes tuples of whatever holds numbers
        std=cast("tuple[float, ...] | None", std),
        options=_with_defaults(arch, make, options),
    )
    from recarc.models.classifier import Classifier

    return Classifier(make(classes, channels, image_size, **spec.options), spec)


def build_spec(spec: ModelSpec) -> Classifier:
    """The model that `spec` describes, with fresh weights."""
    common = (spec.classes, spec.channels, spec.image_size, spec.mean, spec.std)
    return build(spec.architecture, *common, **spec.options)


def _maker(arch: str) -> Any:
    if arch not in _ARCHITECTURES:
        raise unknown("architecture", arch, _ARCHITECTURES)
    return importlib.import_module(f"recarc.models.{arch}").make


def _with_defaults(arch: str, make: Any, options: dict[str, Any]) -> dict[str, Any]:
    """All options spelled out, so that a saved description does not depend on later defaults."""
    parameters = inspect.signature(make).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for name in options:
        if name not in defaults:
            raise unknown(f"option of {arch}", name, defaults or ("(none)",))
    return {**defaults, **options}
