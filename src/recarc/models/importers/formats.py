"""The checkpoint formats, as data: what each leaves unsaid, and on what it was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recarc.errors import unknown


@dataclass(frozen=True)
class Format:
    """`architecture`: whose mismatches are listed when nothing fits; `normalisation`: a named one that the
    format's own code applies outside the model; `uniform`: whether equal probabilities are the convention."""

    name: str
    about: str
    tried_on: str
    architecture: str | None = None
    normalisation: str | None = None
    uniform: bool = True


_UNTRIED = "files made up in the tests after its public description; no real file was at hand"

FORMATS = {
    item.name: item
    for item in (
        Format(
            "dverge",
            "DVERGE, ADP, GAL and baseline ensembles of the DVERGE code: members under model0.. or model_0.., "
            "weights under model.*, normalisation under normalizer.*",
            "the public checkpoint of three ResNet-20s (eps 0.07, seed 0)",
            architecture="resnet20",
        ),
        Format(
            "arc",
            "the ARC code's folders of boosted adversarial training: one state dict a member",
            _UNTRIED,
            architecture="resnet20",
            uniform=False,
        ),
        Format(
            "barre",
            "BARRE ensembles: one state dict a member, in a folder or under numbered keys, with a learned alpha",
            _UNTRIED,
            architecture="resnet20",
            uniform=False,
        ),
        Format("trs", "TRS ensembles: a list, a mapping or a folder of state dicts", _UNTRIED, architecture="resnet20"),
        Format(
            "robust_overfitting",
            "a state dict of robust_overfitting, whose code normalises CIFAR-10 outside the model",
            _UNTRIED,
            architecture="preact_resnet18",
            normalisation="cifar10",
        ),
        Format("plain", "one or more plain state dicts of a registered architecture", "models saved by recarc itself"),
    )
}
_ALIASES = {"adp": "dverge", "gal": "dverge"}

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]] | None] = {
    "none": None,
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    # As widespread as the line above: the standard deviation inside an image, averaged over images.
    "cifar10_within": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


def format_named(name: str) -> Format:
    key = _ALIASES.get(name, name)
    if key not in FORMATS:
        raise unknown("checkpoint format", name, [*FORMATS, *_ALIASES])
    return FORMATS[key]


def normalisation_named(name: str) -> tuple[Sequence[float] | None, Sequence[float] | None]:
    if name not in NORMALISATIONS:
        raise unknown("normalisation", name, NORMALISATIONS)
    return NORMALISATIONS[name] or (None, None)
