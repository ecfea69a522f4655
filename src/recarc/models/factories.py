"""Members that a user's own code makes, named as `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeVar

import torch
from torch import nn

from recarc.errors import InputError
from recarc.models.registry import build_spec
from recarc.models.spec import FactorySpec, ModelSpec, Spec

M = TypeVar("M", bound=nn.Module)


def with_factory(module: M, factory: str, kwargs: Mapping[str, Any] | None = None, classes: int | None = None) -> M:
    """Notes on a module which `module:function(**kwargs)` makes one like it, so that it can be saved."""
    module.spec = FactorySpec(factory, dict(kwargs or {}), classes)  # type: ignore[assignment]
    return module


def from_factory(factory: str, kwargs: Mapping[str, Any] | None = None, classes: int | None = None) -> nn.Module:
    """Imports and calls `module:function(**kwargs)`; the module it returns can be saved."""
    spec = FactorySpec(factory, dict(kwargs or {}), classes)
    return with_factory(call_factory(spec), factory, kwargs, classes)


def call_factory(spec: FactorySpec) -> nn.Module:
    module_name, _, path = spec.factory.partition(":")
    try:
        home: Any = importlib.import_module(module_name)
        function = reduce(getattr, path.split("."), home)
    except ImportError as error:
        raise InputError(
            f"factory {spec.factory!r} cannot be imported ({error}): install it or put its folder on PYTHONPATH"
        ) from None
    except AttributeError:
        raise InputError(f"factory {spec.factory!r}: module {module_name!r} has no {path!r}") from None
    try:
        model = function(**spec.kwargs)
    except TypeError as error:
        raise InputError(f"factory {spec.factory!r} does not take {dict(spec.kwargs)}: {error}") from None
    if not isinstance(model, nn.Module):
        raise InputError(f"factory {spec.factory!r} returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def make_member(spec: Spec) -> nn.Module:
    """A module for `spec`, ready to take weights; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        if isinstance(spec, ModelSpec):
            return build_spec(spec)
        return with_factory(call_factory(spec), spec.factory, spec.kwargs, spec.classes)


def unwrapped(module: nn.Module) -> nn.Module:
    """The model inside torch.compile, DataParallel or DistributedDataParallel."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            module = inner
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        else:
            return module


def spec_of(member: object, index: int) -> Spec:
    """How to build a member again; an error that says what to do when that is unknown."""
    spec = getattr(member, "spec", None)
    if isinstance(member, nn.Module) and isinstance(spec, ModelSpec | FactorySpec):
        return spec
    raise InputError(
        f"member {index} ({type(member).__name__}) does not say how to build it again: make it with "
        'recarc.models.build(...), or name its code with with_factory(module, "module:function", kwargs)'
    )
