"""`recarc zoo`: the ensembles that come with the package, and how to train the larger ones."""

from __future__ import annotations

import typer

from recarc.cli.options import JsonOption
from recarc.cli.output import print_json

zoo = typer.Typer(name="zoo", help="Trained ensembles that come with the package.", no_args_is_help=True)


@zoo.command("list")
def list_ensembles(json_: JsonOption = False) -> None:
    """List the ensembles `zoo:NAME`, and the command that trains each ensemble too large to ship.

    Example: `recarc zoo list`, then `recarc evaluate zoo:bat-resnet20-linf --data cifar10 --eps 8/255`
    """
    from recarc.zoo import entries, recipes, verify

    shipped = entries()
    for entry in shipped:
        verify(entry.name)
    others = {name: command for name, command in recipes().items() if name not in {entry.made for entry in shipped}}
    if json_:
        print_json({"ensembles": [entry.to_json() for entry in shipped], "made_by_recipe": others})
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("name", "description", "recipe", "trained at commit")
    for entry in shipped:
        commit = str(entry.provenance.get("commit") or "not recorded")[:12]
        table.add_row(f"zoo:{entry.name}", entry.title, entry.recipe, commit)
    console.print(table if shipped else "This build comes without ensembles.")
    not_shipped = Table("not shipped", "trained by (in a checkout of the repository)")
    for name, command in others.items():
        not_shipped.add_row(name, command)
    console.print(not_shipped)
