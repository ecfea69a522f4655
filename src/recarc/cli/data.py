"""`recarc data`: which image sets there are, getting them ready, checking them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from recarc.cli.output import print_entry, print_json

data = typer.Typer(name="data", help="Image sets: list them, get them ready, check them.", no_args_is_help=True)
DataDir = Annotated[Path | None, typer.Option(help="Where the files are (else RECARC_DATA).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@data.command("list")
def list_sets(data_dir: DataDir = None, json_: AsJson = False) -> None:
    """Every named image set, and what to put where if it is missing.

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
    name: Annotated[str, typer.Argument(help="A name of `recarc data list`, or a folder.")],
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Decode a set into the cache; fetch it from the Hub if it is not here.

    Example: `recarc data get cifar10 --data-dir ~/data`
    """
    from recarc.data import get as get_ready

    found = get_ready(name, split, data_dir=data_dir)
    if json_:
        print_json({"sets": [{"name": s.name, "split": s.split, "images": len(s)} for s in found]})
        return
    for images in found:
        print(f"{images.name} {images.split}: {len(images)} images, {len(images.classes)} classes")


@data.command()
def check(
    name: Annotated[str, typer.Argument(help="A name of `recarc data list`, or a folder.")],
    data_dir: DataDir = None,
    json_: AsJson = False,
) -> None:
    """Verify a set: counts, labels, every image, checksums, statistics. Exit code 1 if anything is wrong.

    Example: `recarc data check cifar10`
    """
    from recarc.data import check as verify

    found = verify(name, data_dir=data_dir)
    if json_:
        print_json({"name": found.name, "ok": found.ok, "findings": [asdict(f) for f in found.findings]})
    else:
        for finding in found.findings:
            print(f"{'ok ' if finding.ok else 'BAD'} {finding.split:<10} {finding.what:<10} {finding.detail}")
    if not found.ok:
        raise typer.Exit(1)
