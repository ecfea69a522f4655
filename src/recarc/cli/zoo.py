"""`recarc zoo`: the ensembles that come with the package, and how to make the larger ones."""

from __future__ import annotations

from typing import Annotated

import typer

from recarc.cli.output import print_json

zoo = typer.Typer(name="zoo", help="Trained ensembles that come with the package.", no_args_is_help=True)


@zoo.command("list")
def list_ensembles(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What `zoo:NAME` can be, and the command that makes each ensemble that is too large to be shipped.

    Example: `recarc zoo list`, then `recarc evaluate zoo:bat-resnet20-linf --data cifar10 --eps 8/255`
    """
    from recarc.experiments.catalog import command_for, ensembles
    from recarc.zoo import entries, folder

    here = entries()
    for entry in here:
        folder(entry.name)  # every file is compared with its hash
    shipped = {entry.made for entry in here}
    others = {made.name: command_for(made) for made in ensembles() if made.name not in shipped and not made.package}
    if json_:
        print_json({"ensembles": [entry.to_json() for entry in here], "made_by_recipe": others})
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("name", "what", "recipe", "trained on commit")
    for entry in here:
        commit = str(entry.provenance.get("commit") or "not recorded")[:12]
        table.add_row(f"zoo:{entry.name}", entry.title, entry.recipe, commit)
    console.print(table if here else "No ensemble is shipped with this build.")
    made = Table("not shipped", "made by")
    for name, command in others.items():
        made.add_row(name, command)
    console.print(made)
