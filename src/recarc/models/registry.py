"""What a member is, apart from its weights, and how to build it: a registered architecture or a user's own factory.

An architecture is a function `make(classes, channels, image_size, *, options)` that returns a module without
normalisation: a file in `recarc/models/architectures`, a function registered with `@register`, or a function of the
user's own that is known by its `module:function` once `own_architecture` was told to trust it. Its options are the
parameters with defaults; annotated as `bool` or `Literal[...]` they are checked here, and `recarc import` tries
every value. No torch is imported before something is built.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import pkgutil
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from recarc.errors import InputError, unknown
from recarc.lazy import import_object
from recarc.models import architectures

if TYPE_CHECKING:
    from torch import nn

    from recarc.models.blocks import Classifier

M = TypeVar("M", bound="nn.Module")
Maker = Callable[..., "nn.Module"]
_registered: dict[str, Maker] = {}
_own: dict[str, Maker] = {}  # by module:function
PLAIN = (bool, int, float, str, type(None))
_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


# How a member is described --------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSpec:
    """A registered architecture. `mean` and `std` are per channel; without them inputs are not normalised."""

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

    @property
    def label(self) -> str:
        """How errors name it."""
        return self.architecture


@dataclass(frozen=True)
class FactorySpec:
    """A member made by a user's own code: `module:function`, called with `kwargs`.

    Preprocessing is part of the module that the function returns. `classes` is optional; if given, it is compared
    with the other members before anything is computed.
    """

    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.factory, str) or not _FACTORY.fullmatch(self.factory):
            raise InputError(f"factory {self.factory!r} is not of the form 'module:function'")
        if self.factory.startswith("__main__:"):
            raise InputError(
                f"factory {self.factory!r} is in the running script, which no other program can import: "
                "move it into a module of its own"
            )
        if not isinstance(self.kwargs, Mapping) or not all(isinstance(key, str) for key in self.kwargs):
            raise InputError(f"kwargs of factory {self.factory!r} must be a mapping with string keys")
        check_sizes(classes=self.classes)

    @property
    def label(self) -> str:
        """How errors name it."""
        return self.factory


Spec = ModelSpec | FactorySpec


def spec_of(member: object, name: str) -> Spec:
    """How to rebuild a member, or an error that says how to make that known; `name` is for that error."""
    spec = getattr(member, "spec", None)
    if isinstance(spec, ModelSpec | FactorySpec):
        return spec
    raise InputError(
        f"{name} ({type(member).__name__}) does not say how to rebuild it: make it with "
        'recarc.models.build(...), or name its code with with_factory(module, "module:function", kwargs)'
    )


# Registered architectures ---------------------------------------------------------------------------------


def names() -> list[str]:
    """The registered architectures, in alphabetical order."""
    return sorted({module.name for module in pkgutil.iter_modules(architectures.__path__)} | set(_registered))


def register(make: Maker) -> Maker:
    """Register an architecture under the name of the function, such as `def my_net(classes, channels, image_size)`."""
    name = make.__name__
    if name in names():
        raise InputError(f"an architecture named {name!r} exists already: rename the function")
    _registered[name] = make
    return make


def own_architecture(arch: str | Maker, trust_code: bool = False, saved: bool = True) -> str:
    """The name by which `build` knows an architecture: of a function, or of `module:function`, which is imported.

    Other names are those of registered architectures. `saved`: ensembles of it are to be loaded by other programs.
    """
    if isinstance(arch, str) and ":" not in arch:
        maker(arch)
        return arch
    if isinstance(arch, str):
        _check_trusted(arch, trust_code)
        name, make = arch, import_object("architecture", arch)
    else:
        name, make = f"{getattr(arch, '__module__', '')}:{getattr(arch, '__qualname__', '')}", arch
    try:
        inspect.signature(make).bind(10, 3, 32)
    except (TypeError, ValueError):
        raise InputError(
            f"architecture {name!r} must be a function of (classes, channels, image_size) that returns a module; "
            "its options need defaults"
        ) from None
    if saved and (not _FACTORY.fullmatch(name) or name.startswith("__main__:")):
        raise InputError(f"architecture {name!r} cannot be imported by another program: move it into a module")
    _own[name] = make
    return name


def _check_trusted(arch: str, trusted: bool) -> None:
    if not trusted:
        raise InputError(
            f"architecture {arch!r} is code of that module: if you trust it, add --trust-code (trust_code=True)"
        )


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

    `mean` and `std` are per channel and applied inside the model. The model carries its `spec`, which tells
    `save_ensemble` how to rebuild it.
    """
    make = maker(arch)
    spec = ModelSpec(
        architecture=arch,
        classes=classes,
        channels=channels,
        image_size=image_size,
        mean=cast("tuple[float, ...] | None", mean),  # the spec makes tuples of them
        std=cast("tuple[float, ...] | None", std),
        options=_with_defaults(arch, make, options),
    )
    from torch import nn

    from recarc.models.blocks import Classifier

    net = make(classes, channels, image_size, **spec.options)
    if not isinstance(net, nn.Module):
        raise InputError(f"architecture {arch!r} returned a {type(net).__name__}, not a torch.nn.Module")
    return Classifier(net, spec)


def build_spec(spec: ModelSpec) -> Classifier:
    """The model that `spec` describes, freshly initialised."""
    common = (spec.classes, spec.channels, spec.image_size, spec.mean, spec.std)
    return build(spec.architecture, *common, **spec.options)


def variants(arch: str) -> list[dict[str, Any]]:
    """Every combination of the options that have few values (`bool`, `Literal`), the defaults first."""
    make = maker(arch)
    choices = _choices(make)
    defaults = _defaults(make)
    ordered = [sorted(values, key=lambda value: value != defaults[name]) for name, values in choices.items()]
    return [dict(zip(choices, combination)) for combination in itertools.product(*ordered)]


def maker(arch: str) -> Maker:
    """The function that makes modules of this architecture."""
    if ":" in arch:
        _check_trusted(arch, arch in _own)
    if arch in _own or arch in _registered:
        return {**_registered, **_own}[arch]
    if arch not in names():
        raise unknown("architecture", arch, names(), own="function")
    make: Maker = importlib.import_module(f"{architectures.__name__}.{arch}").make
    return make


def _defaults(make: Maker) -> dict[str, Any]:
    """Its options: what is keyword-only, or comes after image_size with a plain default."""
    parameters = list(inspect.signature(make).parameters.values())
    options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    options += [p for p in parameters[3:] if p.kind is p.POSITIONAL_OR_KEYWORD and isinstance(p.default, PLAIN)]
    return {p.name: p.default for p in options}


def _choices(make: Maker) -> dict[str, tuple[Any, ...]]:
    """The values of each option that has only a few."""
    try:
        every = typing.get_type_hints(make)
    except NameError:  # imported for type checkers only
        every = {}
    hints = {name: hint for name, hint in every.items() if name in _defaults(make)}
    literal = {name: typing.get_args(hint) for name, hint in hints.items() if typing.get_origin(hint) is typing.Literal}
    return {**literal, **{name: (False, True) for name, hint in hints.items() if hint is bool}}


def _with_defaults(arch: str, make: Maker, options: dict[str, Any]) -> dict[str, Any]:
    """All options spelled out, so that a saved description does not depend on later defaults."""
    defaults, choices = _defaults(make), _choices(make)
    for name, value in options.items():
        if name not in defaults:
            raise unknown(f"option of {arch}", name, defaults or ("(none)",))
        if choices.get(name) == (False, True) and not isinstance(value, bool):
            raise InputError(f"{name} must be true or false, got {value!r}")
        if name in choices and value not in choices[name]:
            raise unknown(name, value, choices[name])
    return {**defaults, **options}


# Factories ------------------------------------------------------------------------------------------------


def with_factory(module: M, factory: str, kwargs: Mapping[str, Any] | None = None, classes: int | None = None) -> M:
    """Record on a module that `module:function(**kwargs)` builds another like it, so that it can be saved."""
    module.spec = FactorySpec(factory, dict(kwargs or {}), classes)  # type: ignore[assignment]
    return module


def from_factory(factory: str, kwargs: Mapping[str, Any] | None = None, classes: int | None = None) -> nn.Module:
    """Import and call `module:function(**kwargs)`; the module it returns can be saved."""
    spec = FactorySpec(factory, dict(kwargs or {}), classes)
    return with_factory(_call_factory(spec), factory, kwargs, classes)


def build_member(spec: Spec) -> nn.Module:
    """A module for `spec`, ready to take weights; the global random state is unchanged."""
    import torch

    with torch.random.fork_rng(devices=[]):
        if isinstance(spec, ModelSpec):
            return build_spec(spec)
        return from_factory(spec.factory, spec.kwargs, spec.classes)


def _call_factory(spec: FactorySpec) -> nn.Module:
    from torch import nn

    function = import_object("factory", spec.factory)
    try:
        model = function(**spec.kwargs)
    except TypeError as error:
        raise InputError(f"factory {spec.factory!r} does not accept {dict(spec.kwargs)}: {error}") from None
    if not isinstance(model, nn.Module):
        raise InputError(f"factory {spec.factory!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


# Checks ---------------------------------------------------------------------------------------------------


def check_count(name: str, value: object, least: int, most: int = 10_000) -> None:
    """The upper limit keeps an edited file from asking for more memory than there is."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError(f"{name} must be an integer from {least} to {most}, got {value!r}")


def check_sizes(classes: int | None = None, channels: int | None = None, image_size: int | None = None) -> None:
    """Check those that are given."""
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
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a list of {channels} numbers, got {values!r}") from None
    if len(numbers) != channels or not all(math.isfinite(value) for value in numbers):
        raise InputError(f"{name} must be {channels} finite numbers (one per channel), got {list(numbers)}")
    return numbers
