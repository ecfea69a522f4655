"""What a member is, apart from its weights: enough to build it again from a few lines of JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recarc.errors import InputError

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class ModelSpec:
    """A registered architecture. `mean` and `std` are per channel; both None: no normalisation."""

    architecture: str
    classes: int
    channels: int = 3
    image_size: int = 32
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_sizes(self.classes, self.channels, self.image_size)
        if (self.mean is None) != (self.std is None):
            raise InputError("normalisation needs both mean and std, or neither: one of them is None")
        if self.mean is not None and self.std is not None:
            object.__setattr__(self, "mean", _per_channel("mean", self.mean, self.channels))
            object.__setattr__(self, "std", _per_channel("std", self.std, self.channels))
            if min(self.std) <= 0:
                raise InputError(f"std must be positive in every channel, got {list(self.std)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture,
            "options": dict(self.options),
            "classes": self.classes,
            "channels": self.channels,
            "image_size": self.image_size,
            "mean": None if self.mean is None else list(self.mean),
            "std": None if self.std is None else list(self.std),
        }


@dataclass(frozen=True)
class FactorySpec:
    """A member made by a user's own code: `module:function`, called with `kwargs`.

    Preprocessing lives inside what the function returns. `classes` is optional; when given, it is
    compared with the other members before anything is computed.
    """

    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.factory, str) or not _FACTORY.fullmatch(self.factory):
            raise InputError(f"factory {self.factory!r} is not of the form 'module:function'")
        if self.factory.startswith("__main__:"):
            raise InputError(
                f"factory {self.factory!r} lives in the running script, which no other program can import: "
                "move it into a module of its own"
            )
        if not isinstance(self.kwargs, Mapping) or not all(isinstance(key, str) for key in self.kwargs):
            raise InputError(f"kwargs of factory {self.factory!r} must be a mapping with string keys")
        if self.classes is not None:
            check_sizes(classes=self.classes)

    def to_json(self) -> dict[str, Any]:
        return {"factory": self.factory, "kwargs": dict(self.kwargs), "classes": self.classes}


Spec = ModelSpec | FactorySpec


def check_count(name: str, value: object, least: int, most: int = 10_000) -> None:
    """The upper end keeps an edited file from asking for more memory than there is."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} must be an integer from {least} to {most}, got {value!r}")


def check_sizes(classes: int | None = None, channels: int | None = None, image_size: int | None = None) -> None:
    """Checks those that are given."""
    for name, value, least, most in (
        ("classes", classes, 2, 1_000_000),
        ("channels", channels, 1, 10_000),
        ("image_size", image_size, 1, 10_000),
    ):
        if value is not None:
            check_count(name, value, least, most)


def _per_channel(name: str, values: Sequence[float], channels: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a list of {channels} numbers, got {values!r}") from None
    if len(numbers) != channels or not all(math.isfinite(value) for value in numbers):
        raise InputError(f"{name} must be {channels} finite numbers (one a channel), got {list(numbers)}")
    return numbers
