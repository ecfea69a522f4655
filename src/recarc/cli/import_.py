"""`recarc import`: convert other people's checkpoints to ensemble folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli.options import JsonOption, numbers
from recarc.cli.output import print_json
from recarc.errors import printable
from recarc.models.importers import FORMATS, NORMALISATIONS


def import_(
    format_: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(FORMATS)}.")],
    file: Annotated[list[Path], typer.Argument(help="The checkpoint: a file, a folder, or one file per member.")],
    out: Annotated[Path, typer.Option(help="The ensemble folder to create.")],
    arch: Annotated[str | None, typer.Option(help="Architecture; by default recognised from the weights.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes; by default taken from the weights.")] = None,
    normalisation: Annotated[
        str | None, typer.Option(help=f"If the file does not hold it: {', '.join(NORMALISATIONS)}.")
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Sampling probabilities, such as 0.9,0.1, or uniform.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing ensemble folder.")] = False,
    json_: JsonOption = False,
) -> None:
    """Convert a published checkpoint to an ensemble folder. It is read as tensors only; no code in it is run.

    Example: `recarc import dverge 3_ResNet20.pth --out dverge`
    """
    probabilities = alpha if alpha in (None, "uniform") else numbers("--alpha", str(alpha))
    from recarc.models import import_checkpoint

    imported = import_checkpoint(
        format_,
        file[0] if len(file) == 1 else file,
        out,
        architecture=arch,
        classes=classes,
        normalisation=normalisation,
        alpha=probabilities,
        overwrite=overwrite,
    )
    if json_:
        print_json({"path": str(imported.path), "members": len(imported.members), "alpha": list(imported.alpha)})
    else:
        print(printable(imported.summary()))
