"""`recarc data`: list the image sets, make them ready to use, check them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from recarc.cli.options import DataDirOption, JsonOption
from recarc.cli.output import print_entry, print_json, print_line

data = typer.Typer(name="data", help="Image sets: list them, make them ready to use, check them.", no_args_is_help=True)


@data.command("list")
def list_sets(data_dir: DataDirOption = None, json_: JsonOption = False) -> None:
    """List every named image set, and what to put where if it is missing.

    Example: `recarc data list`
    """
    from recarc.data import available

    rows = available(data_dir)
    if json_:
        print_json({"sets": [asdict(row) for row in rows]})
        return
    for row in rows:
        images = ", ".join(f"{split} {count:,}" for split, count in row.images.items())
        state = "cached, decoded from" if row.state == "cached" else f"{row.state}:"
        print_entry(row.name, row.title, f"{images}; {row.classes} classes; {state} {row.detail}")


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="A name from `recarc data list`, or a folder.")],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    data_dir: DataDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Decode a set into the cache; download it from the Hub if its files are not here.

    Example: `recarc data get cifar10 --data-dir ~/data`
    """
    from recarc.data import get as make_ready

    sets = make_ready(name, split, data_dir=data_dir)
    if json_:
        print_json({"sets": [{"name": s.name, "split": s.split, "images": len(s)} for s in sets]})
        return
    for images in sets:
        print_line(f"{images.name} {images.split}: {len(images)} images, {len(images.classes)} classes")


@data.command()
def check(
    name: Annotated[str, typer.Argument(help="A name from `recarc data list`, or a folder.")],
    data_dir: DataDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Verify a set: counts, labels, every image, checksums, statistics. Exit code 1 if anything is wrong.

    Example: `recarc data check cifar10`
    """
    from recarc.data import check as verify

    result = verify(name, data_dir=data_dir)
    if json_:
        print_json({"name": result.name, "ok": result.ok, "findings": [asdict(f) for f in result.findings]})
    else:
        for finding in result.findings:
            print_line(f"{'ok ' if finding.ok else 'BAD'} {finding.split:<10} {finding.what:<10} {finding.detail}")
    if not result.ok:
        raise typer.Exit(1)
