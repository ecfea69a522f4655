"""Other people's checkpoints into ensemble folders: what `recarc import FORMAT FILE --out DIR` does.

Only `dverge` was tried on a published file. `arc`, `barre`, `trs` and `robust_overfitting` follow what is
known of their public code and were tried on files made up in the tests; `Format.tried_on` says so for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recarc.errors import InputError
from recarc.models.importers.formats import FORMATS, NORMALISATIONS, Format, format_named, normalisation_named
from recarc.models.importers.matching import Wanted, fitted_model
from recarc.models.importers.reading import Checkpoint, read_checkpoint
from recarc.models.spec import ModelSpec, check_sizes
from recarc.models.store import check_classes, check_target, save_ensemble

__all__ = ["FORMATS", "NORMALISATIONS", "Format", "Imported", "import_checkpoint"]


@dataclass(frozen=True)
class Imported:
    """What was imported: the new folder, its members, and where alpha came from (argument, file or uniform)."""

    path: Path
    format: str
    members: tuple[ModelSpec, ...]
    alpha: tuple[float, ...]
    alpha_from: str

    def summary(self) -> str:
        kinds = ", ".join(sorted({spec.architecture for spec in self.members}))
        alpha = ", ".join(f"{a:.6g}" for a in self.alpha)
        return f"{len(self.members)} member(s) ({kinds}), alpha {alpha} ({self.alpha_from}) -> {self.path}"


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
    """Reads a published checkpoint and writes it as an ensemble folder.

    `file` is a file, a folder with one file a member (in the order of the numbers in their names) or a
    list of files. The architecture is found by comparing names and shapes of the weights with the
    registry; `architecture` and `options` decide instead. Normalisation comes from the file where it
    holds it, else from `mean` and `std` or a named `normalisation`. `alpha`: "uniform", a list, or None
    for the format's own rule. Files are only ever read as tensors; a pickle that needs more is refused.
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
        member_mean, member_std = _normalisation(kind, given, member.normalisation, member.source)
        models.append(fitted_model(member.state, wanted, member_mean, member_std, member.source))
    specs = tuple(model.spec for model in models if model.spec is not None)
    check_classes(specs)
    probabilities, alpha_from = _alpha(kind, alpha, checkpoint)
    ensemble = RandomizedEnsemble(models, probabilities)
    made_by = {"import": kind.name, "files": [{"name": n, "sha256": h} for n, h in checkpoint.files]}
    path = save_ensemble(ensemble, out, made_by={**made_by, "alpha_from": alpha_from}, overwrite=overwrite)
    return Imported(path, kind.name, specs, tuple(ensemble.alpha.tolist()), alpha_from)


Normalisation = tuple[Sequence[float] | None, Sequence[float] | None]


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
    kind: Format, given: Normalisation | None, held: tuple[list[float], list[float]] | None, source: str
) -> Normalisation:
    if held is not None:
        if given is not None:
            raise InputError(
                f"{source} holds its own normalisation (mean {held[0]}, std {held[1]}): do not give another"
            )
        return held
    if given is not None:
        return given
    if kind.normalisation is not None:
        return normalisation_named(kind.normalisation)
    raise InputError(
        f"{source} does not hold the normalisation of its inputs, without which its accuracy would silently be wrong: "
        f"give mean and std, or normalisation= one of {', '.join(sorted(NORMALISATIONS))}"
    )


def _alpha(
    kind: Format, given: Sequence[float] | str | None, checkpoint: Checkpoint
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
