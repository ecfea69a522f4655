"""Checkpoint formats of other people's code, as data: what each leaves unsaid, and what it was tested on.

A format is one entry of `FORMATS`; `recarc import`, its help and its errors follow from the table. Only `dverge` was
tested on a published file; the others follow their public code and were tested on synthetic files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recarc.data.catalog import statistics
from recarc.errors import unknown

Normalisation = tuple[Sequence[float] | None, Sequence[float] | None]  # mean and std per channel, or neither


@dataclass(frozen=True)
class CheckpointFormat:
    """A checkpoint format.

    `architecture`: the usual one, whose mismatches are listed if nothing fits. `normalisation`: the one that the
    format's own code applies outside the model. `uniform`: whether equal probabilities are its convention.
    """

    name: str
    about: str
    tried_on: str
    architecture: str | None = None
    normalisation: str | None = None
    uniform: bool = True
    aliases: tuple[str, ...] = ()


_UNTRIED = "synthetic files that follow its public description; no real file was available"
_FORMATS = (
    CheckpointFormat(
        "dverge",
        "DVERGE, ADP, GAL and baseline ensembles of the DVERGE code: members under model0.. or model_0.., "
        "weights under model.*, normalisation under normalizer.*",
        "the public checkpoint of three ResNet-20s (eps 0.07, seed 0)",
        architecture="resnet20",
        aliases=("adp", "gal"),
    ),
    CheckpointFormat(
        "arc",
        "folders of boosted adversarial training from the ARC code: one state dict per member",
        _UNTRIED,
        architecture="resnet20",
        uniform=False,
    ),
    CheckpointFormat(
        "barre",
        "BARRE ensembles: one state dict per member, in a folder or under numbered keys, with a learned alpha",
        _UNTRIED,
        architecture="resnet20",
        uniform=False,
    ),
    CheckpointFormat(
        "trs", "TRS ensembles: a list, a mapping or a folder of state dicts", _UNTRIED, architecture="resnet20"
    ),
    CheckpointFormat(
        "robust_overfitting",
        "a state dict of robust_overfitting, whose code normalises CIFAR-10 outside the model",
        _UNTRIED,
        architecture="preact_resnet18",
        normalisation="robust_overfitting",
    ),
    CheckpointFormat(
        "plain", "one or more plain state dicts of a registered architecture", "models saved by recarc itself"
    ),
)
FORMATS = {item.name: item for item in _FORMATS}

NORMALISATIONS: dict[str, Normalisation] = {
    "none": (None, None),
    **{name: statistics(name) for name in ("cifar10", "cifar100", "imagenet")},
    # As widespread for CIFAR-10: the standard deviation within an image, averaged over images.
    "cifar10_within": (statistics("cifar10")[0], (0.2023, 0.1994, 0.2010)),
    "robust_overfitting": (statistics("cifar10")[0], (0.2471, 0.2435, 0.2616)),  # as rounded in its code
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}


@dataclass(frozen=True)
class PublicFile:
    """A published checkpoint, to tell a whole copy from a damaged or changed one."""

    title: str
    name: str
    size: int
    sha256: str


PUBLIC_FILES = (
    PublicFile(
        "the public DVERGE checkpoint of three ResNet-20s",
        "3_ResNet20_eps_0.07_seed_0.pth",
        3362649,
        "5d331dec0b6d014057af7970c2f12529ec67092a7421619f330f6ab94a2fc6de",
    ),
)


def format_named(name: str) -> CheckpointFormat:
    by_name = {known: item for item in FORMATS.values() for known in (item.name, *item.aliases)}
    if name not in by_name:
        raise unknown("checkpoint format", name, by_name)
    return by_name[name]


def normalisation_named(name: str) -> Normalisation:
    if name not in NORMALISATIONS:
        raise unknown("normalisation", name, NORMALISATIONS)
    return NORMALISATIONS[name]
