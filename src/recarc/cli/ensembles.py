"""`recarc import` and `recarc zoo`: ensembles from other people's checkpoints, and those that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli.options import JsonOption, numbers
from recarc.cli.output import print_json, print_line
from recarc.models.importers import FORMATS, NORMALISATIONS
from recarc.provenance import short

zoo = typer.Typer(name="zoo", help="Trained ensembles that come with the package.", no_args_is_help=True)


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

    Example: `recarc import dverge epoch_200.pth --out dverge`
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
        print_line(imported.summary())


@zoo.command("add")
def add_ensemble(
    file: Annotated[Path, typer.Argument(help="A tar archive of an ensemble folder.")],
    name: Annotated[str | None, typer.Option(help="The NAME of zoo:NAME; by default that of its folder.")] = None,
    json_: JsonOption = False,
) -> None:
    """Take an ensemble that somebody archived as `zoo:NAME`: its files are checked, and no code in them is run.

    Example: `tar czf pair.tgz pair`, elsewhere `recarc zoo add pair.tgz`, then `recarc evaluate zoo:pair ...`
    """
    from recarc.models.archive import add_archive

    entry = add_archive(file, name)
    if json_:
        print_json(entry.to_json())
        return
    made = ", ".join(f"{key} {value}" for key, value in entry.provenance.items() if value is not None)
    print_line(f"zoo:{entry.name}: {entry.title} ({made})")


@zoo.command("list")
def list_ensembles(json_: JsonOption = False) -> None:
    """List the ensembles `zoo:NAME`, and the command that trains each ensemble too large to ship.

    Example: `recarc zoo list`, then `recarc evaluate zoo:bat-resnet20-linf --data cifar10 --eps 8/255`
    """
    from recarc.zoo import added, entries, recipes, verify

    shipped, own = entries(), added()
    for entry in [*shipped, *own]:
        verify(entry.name)
    others = {name: command for name, command in recipes().items() if name not in {entry.made for entry in shipped}}
    if json_:
        listed = [entry.to_json() for entry in shipped]
        print_json({"ensembles": listed, "added": [entry.to_json() for entry in own], "made_by_recipe": others})
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("name", "description", "recipe", "trained at commit")
    for entry in [*shipped, *own]:
        commit = short(str(entry.provenance.get("commit") or "")) or "not recorded"
        table.add_row(f"zoo:{entry.name}", entry.title, entry.recipe or "added", commit)
    console.print(table if shipped or own else "This build comes without ensembles.")
    not_shipped = Table("not shipped", "trained by (in a checkout of the repository)")
    for name, command in others.items():
        not_shipped.add_row(name, command)
    console.print(not_shipped)
