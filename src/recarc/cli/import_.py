"""`recarc import`: other people's checkpoints as ensemble folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli.options import numbers
from recarc.cli.output import print_json


def import_(
    format_: Annotated[
        str, typer.Argument(metavar="FORMAT", help="arc, barre, dverge, trs, ...; a wrong one lists all.")
    ],
    file: Annotated[list[Path], typer.Argument(help="The checkpoint: a file, a folder, or one file a member.")],
    out: Annotated[Path, typer.Option(help="The ensemble folder to make.")],
    arch: Annotated[str | None, typer.Option(help="Architecture; found from the weights by default.")] = None,
    classes: Annotated[int | None, typer.Option(help="Number of classes; from the weights by default.")] = None,
    normalisation: Annotated[str | None, typer.Option(help="A named one, where the file holds none.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Sampling probabilities, or uniform.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older ensemble folder.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Read a published checkpoint (as tensors only, no code is run) and write it as an ensemble folder.

    Example: `recarc import dverge 3_ResNet20.pth --out dverge`
    """
    probabilities = alpha if alpha in (None, "uniform") else numbers("--alpha", str(alpha))
    from recarc.models import import_checkpoint

    made = import_checkpoint(
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
        print_json({"path": str(made.path), "members": len(made.members), "alpha": list(made.alpha)})
    else:
        print(made.summary())
