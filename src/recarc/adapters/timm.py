"""Members from timm: `recarc.adapters.timm.member("resnet18", pretrained=True)`."""

from __future__ import annotations

from typing import Any

from torch import nn

from recarc.adapters.members import AdaptedMember, adapted, peer
from recarc.errors import InputError
from recarc.models.registry import with_factory


def member(model: str | nn.Module, resize: int | None = None, **knobs: Any) -> AdaptedMember:
    """A timm model by name (knobs go to `timm.create_model`, e.g. pretrained=True) or one made already.

    The mean and std of its pretrained configuration move inside. `resize` scales images inside the member, so that
    eps stays in the pixels of the data.
    """
    if isinstance(model, str):
        timm = peer("timm", "timm")
        try:
            net = timm.create_model(model, **knobs)
        except (RuntimeError, ValueError) as error:
            near = timm.list_models(f"*{model[:6]}*")[:5]
            raise InputError(f"timm cannot make {model!r} ({str(error).splitlines()[0]}); near: {near}") from None
    else:
        net = model
    told = getattr(net, "pretrained_cfg", None) or getattr(net, "default_cfg", None)
    if not told or "mean" not in told or "std" not in told:
        raise InputError(f"{type(net).__name__} has no pretrained_cfg with mean and std: is it a timm model?")
    made = adapted(net, told["mean"], told["std"], resize, f"timm {told.get('architecture') or type(net).__name__}")
    if not isinstance(model, str):
        return made
    again = {"model": model, "resize": resize, **knobs, "pretrained": False}  # a saved ensemble holds the weights
    return with_factory(made, "recarc.adapters.timm:member", again, getattr(net, "num_classes", None))
