"""`recarc reproduce`: a table or figure of the paper, end to end, with the paper's numbers beside ours."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from recarc.cli.output import print_entry, print_json
from recarc.cli.train import training_errors
from recarc.errors import InputError, unknown

if TYPE_CHECKING:
    from recarc.experiments.results import ItemResult
    from recarc.experiments.workshop import Trainer, Workshop

KEPT = Path("results/paper")  # in a checkout: what was measured for the documents
WIDE = 200  # columns of a table that goes into a file
PRESETS = ("quick", "standard", "thorough", "none")


def reproduce(
    item: Annotated[str | None, typer.Argument(help="table1 ... table5, figure1 ... figure11; see --list.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="All items: data needed, cost, what is measured.")] = False,
    render: Annotated[bool, typer.Option("--render", help="Write DOCS/results.md from the results.")] = False,
    recipe: Annotated[str, typer.Option(help="Training: fast, or paper for the paper's own.")] = "fast",
    epochs: Annotated[float | None, typer.Option(help="Train for so long instead of the recipe's epochs.")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first test images.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this row; repeatable.")] = None,
    ensemble: Annotated[
        list[str] | None,
        typer.Option(help="Use this folder or zoo:NAME instead of training: DIR, or NAME=DIR; repeatable."),
    ] = None,
    tight: Annotated[str | None, typer.Option(help="Effort of our own columns: quick ... thorough, or none.")] = None,
    train_only: Annotated[bool, typer.Option("--train-only", help="Make the ensembles and stop.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Ensembles and runs (reproduce by default); the same command goes on.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Where results go: OUT/results by default (--list, --render: results/paper if there)."),
    ] = None,
    docs: Annotated[Path, typer.Option(help="Where --render writes.")] = Path("docs"),
    data_dir: Annotated[Path | None, typer.Option(help="Where the data sets are (else RECARC_DATA).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="Of the search: float32, tf32, ...; by default tf32 on CUDA, else float32.")
    ] = None,
    toy: Annotated[
        bool, typer.Option("--toy", hidden=True, help="Tiny nets and attacks: shows that it works.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Reproduce a table or a figure of the paper: train or load, choose alpha, attack, draw, compare.

    Example: `recarc reproduce table3 --limit 1000 --device cuda`

    In some minutes on a CPU: `recarc reproduce table5-cifar10 --only linf --limit 50`

    With an ensemble of your own: `recarc reproduce figure3 --only alpha --limit 50 --tight none --ensemble DIR`

    On several GPUs: `torchrun --nproc-per-node=8 -m recarc reproduce table2 --only imagenet-linf --train-only`
    """
    if recipe not in ("fast", "paper"):
        raise unknown("recipe", recipe, ("fast", "paper"))
    chosen = results is not None or out is not None
    out = out or Path("reproduce")
    keep = results or out / "results"
    if list_ or render:
        kept = keep if chosen or not KEPT.is_dir() else KEPT
        _list(kept, recipe, data_dir, json_) if list_ else _render(kept, docs)
        return
    if item is None:
        raise InputError("which item? `recarc reproduce --list` names them, e.g. recarc reproduce table3")
    _check_numbers(tight, limit, epochs)

    from recarc.experiments.catalog import item_named, rows_of
    from recarc.runtime import world_size

    wanted = item_named(item)
    rows = rows_of(wanted, only or ())
    if world_size() > 1 and not train_only:
        raise InputError("several processes can only train (--train-only); measure with one")
    given = dict(_given(text) for text in ensemble or ())
    workshop = _workshop(out, device, precision, recipe, epochs, data_dir, limit, given, tight, toy, quiet)
    if not only:
        rows = workshop.reachable(rows)
    workshop.check_epochs(wanted, rows)
    if train_only:
        _train(wanted, workshop, rows)
        return
    result = _measure(wanted, rows, workshop, keep, quiet)
    if json_:
        from dataclasses import asdict

        print_json({"results": str(keep / f"{item}.json"), **asdict(result)})
    elif not quiet:
        _print(result)
        _tell(f"kept in {keep / f'{item}.json'}; the same command adds to it")
        if item == "throughput":
            from recarc.experiments.throughput import costs

            print(f"\n{costs(result)}")


def _check_numbers(tight: str | None, limit: int | None, epochs: float | None) -> None:
    if tight is not None and tight not in PRESETS:
        raise unknown("--tight", tight, PRESETS)
    if limit is not None and limit < 1:
        raise InputError(f"--limit is {limit}; expected a number of images >= 1")
    if epochs is not None and not epochs > 0:
        raise InputError(f"--epochs is {epochs:g}; expected a number > 0")


def _workshop(
    out: Path,
    device: str,
    precision: str | None,
    recipe: str,
    epochs: float | None,
    data_dir: Path | None,
    limit: int | None,
    given: dict[str, str],
    tight: str | None,
    toy: bool,
    quiet: bool,
) -> Workshop:
    """Everything the items share, checked."""
    from dataclasses import replace

    from recarc.experiments.scale import FULL, TOY
    from recarc.experiments.workshop import Workshop
    from recarc.runtime import check_precision, use_device
    from recarc.training import train

    where = use_device(device)
    precision = precision or ("tf32" if where.type == "cuda" else "float32")
    check_precision(precision, where)
    return Workshop(
        out,
        where,
        recipe=recipe,
        train=cast("Trainer", functools.partial(train, say=None) if quiet else train),
        data_dir=data_dir,
        limit=limit,
        given=given,
        scale=TOY if toy else FULL if tight is None else replace(FULL, tight=tight),
        say=_silent if quiet else _tell,
        precision=precision,
        epochs=epochs,
    )


def _measure(item: Any, rows: list[Any], workshop: Any, keep: Path, quiet: bool) -> ItemResult:
    from recarc.experiments.figures import draw
    from recarc.experiments.runner import Reproduction
    from recarc.experiments.special import SPECIAL, special_rows

    if item.name in SPECIAL:
        return special_rows(item, workshop, keep)
    with training_errors():
        result = Reproduction(item, rows, workshop, keep, progress=not quiet).run()
    draw(item, result, keep)
    return result


def _train(item: Any, workshop: Any, rows: list[Any]) -> None:
    workshop.check(item, rows)
    with training_errors():
        for row in rows:
            workshop.ensemble(row.made)


def _given(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    return (name, where) if equals else ("", text)


def _render(keep: Path, docs: Path) -> None:
    from recarc.experiments.render import render

    for path in render(keep, docs):
        print(path)


def _list(keep: Path, recipe: str, data_dir: Path | None, as_json: bool) -> None:
    from recarc.data import available
    from recarc.experiments import costs
    from recarc.experiments.catalog import ITEMS
    from recarc.experiments.gather import gathered

    states = {row.name: row.state for row in available(data_dir)}
    rows, found = [], gathered(keep)
    for name, item in ITEMS.items():
        done = [row for row in found[name].rows if row.row in {r.name for r in item.rows} or not item.rows]
        rows.append(
            {
                "item": name,
                "title": item.title,
                "data": {data: states[data] for data in item.data},
                "rows": [row.name for row in item.rows],
                "ensembles": [made.name for made in item.ensembles],
                "cost": costs.shown(item, recipe),
                "measured": [row.row for row in done],
            }
        )
    if as_json:
        print_json({"items": rows})
        return
    print("Costs: roughly, on one H200, for all rows of an item.\n")
    for entry in rows:
        told: Any = entry
        data = ", ".join(f"{name} {state}" for name, state in told["data"].items())
        count = f"{len(told['measured'])} of {len(told['rows']) or len(told['measured']) or 1} rows measured"
        print_entry(told["item"], told["title"], "; ".join(part for part in (data, told["cost"], count) if part))


def _print(result: ItemResult) -> None:
    from rich.console import Console
    from rich.table import Table

    from recarc.experiments.layout import grids

    console = Console()
    if not console.is_terminal:
        console.width = WIDE
    for grid in grids(result):
        lines = [grid.header, *grid.cells]
        if 1 + sum(3 + max(map(len, column)) for column in zip(*lines)) > console.width:
            lines = [list(column) for column in zip(*lines)]  # turned, so that nothing is cut
        table = Table(*lines[0], title=grid.title or result.title)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    pass
