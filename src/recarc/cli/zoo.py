"""`recarc zoo`: the ensembles that come with the package, and how to make the larger ones."""

from __future__ import annotations

from typing import Annotated

import typer

from recarc.cli.output import print_json

EPS = {"linf": "8/255", "l2": "128/255"}
zoo = typer.Typer(name="zoo", help="Trained ensembles that come with the package.", no_args_is_help=True)


@zoo.command("list")
def list_ensembles(
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """What `zoo:NAME` can be, and the command that makes each ensemble that is too large to be shipped.

    Example: `recarc zoo list`, then `recarc evaluate zoo:bat-resnet20-linf --data cifar10 --eps 8/255`
    """
    from recarc.zoo import entries, folder

    here = entries()
    for entry in here:
        folder(entry.name)  # every file is compared with its hash
    shipped = {entry.made for entry in here}
    others = {name: command for name, command in train_commands().items() if name not in shipped}
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


def train_commands() -> dict[str, str]:
    """The commands that train the ensembles of the paper on CIFAR-10; on other data, change --data."""
    pairs = [
        ("bat", arch, norm) for arch in ("resnet20", "mobilenetv1", "vgg16", "resnet18", "wrn28_4") for norm in EPS
    ]
    found = {}
    for method, arch, norm in [*pairs, *((method, "resnet20", "") for method in ("dverge", "adp", "trs"))]:
        name = "-".join(part for part in (method, "cifar10", arch, norm) if part)
        ball = f" --norm {norm} --eps {EPS[norm]}" if norm else ""
        found[name] = f"recarc train {method} --data cifar10 --arch {arch}{ball} --out {name}"
    return found
