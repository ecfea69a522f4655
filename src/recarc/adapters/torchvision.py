"""Members from torchvision: `recarc.adapters.torchvision.member("resnet50", weights="DEFAULT")`."""

from __future__ import annotations

from typing import Any

from recarc.adapters.members import AdaptedMember, adapted, peer
from recarc.errors import InputError


def member(name: str, weights: str = "DEFAULT", resize: int | None = None, **knobs: Any) -> AdaptedMember:
    """A torchvision classifier with pretrained weights; the mean and std of their transforms move inside.

    Resizing and cropping of files stay with the data: eps is in the pixels that the attacker may change.
    """
    models = peer("torchvision.models", "torchvision")
    try:
        chosen = models.get_model_weights(name)[weights]
    except (ValueError, KeyError) as error:
        raise InputError(f"torchvision has no {name!r} with weights {weights!r} ({error}); see list_models()") from None
    transforms = chosen.transforms()
    net = models.get_model(name, weights=chosen, **knobs)
    return adapted(net, transforms.mean, transforms.std, resize, f"torchvision {name}")
