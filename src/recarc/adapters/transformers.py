"""Members from Hugging Face transformers: image classifiers, with their processor's normalisation inside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from recarc.adapters.members import AdaptedMember, adapted, peer
from recarc.errors import InputError

PROCESSOR = "preprocessor_config.json"


def member(model: str | Path | nn.Module, processor: Any = None, resize: int | None = None) -> AdaptedMember:
    """An image classifier by name or folder, or a model made already together with its processor.

    `processor` is an image processor or its configuration (a mapping with image_mean, image_std and do_normalize).
    Only resizing is left to the data, unless `resize` asks for it inside.
    """
    if isinstance(model, str | Path):
        transformers = peer("transformers", "transformers")
        net = transformers.AutoModelForImageClassification.from_pretrained(str(model))
        processor = _processor(transformers, model) if processor is None else processor
    else:
        net = model
    source = f"transformers {type(net).__name__}"
    if processor is None:
        raise InputError(f"{source} does not know its normalisation: give its processor, or a mapping with image_mean")
    told = processor if isinstance(processor, Mapping) else vars(processor)
    mean, std = told.get("image_mean", 0.0), told.get("image_std", 1.0)
    if told.get("do_normalize") is False:
        mean, std = 0.0, 1.0
    if told.get("do_rescale", True) is False:
        raise InputError(f"the processor of {source} does not rescale pixels to [0, 1], so its mean is in other units")
    return adapted(net, mean, std, resize, source)


def _processor(transformers: Any, model: str | Path) -> Any:
    """The configuration beside the weights, or the processor that belongs to a name."""
    file = Path(model) / PROCESSOR
    return (
        json.loads(file.read_text()) if file.exists() else transformers.AutoImageProcessor.from_pretrained(str(model))
    )
