"""`python -m paper ITEM`: a table or figure of the paper, end to end, with the paper's numbers beside ours."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paper import costs
from paper.items import ITEMS, item_named, parts_of, rows_of
from paper.measure import measure
from paper.pages import claims_of, costs_table, gathered, render
from paper.queue import print_queue, run_block
from paper.recipe import Item, Row
from paper.scale import FULL, TOY
from paper.schedule import BLOCK, SPARE
from paper.setup import HERE, Setup
from paper.tables import grids
from recarc.cli.app import guarded, run
from recarc.cli.output import print_entry, print_json, print_note
from recarc.data import available
from recarc.errors import InputError, unknown
from recarc.runtime import check_precision, use_device, world_size

PRESETS = ("quick", "standard", "thorough", "none")


def paper(
    item: Annotated[str | None, typer.Argument(help="table1, figure1, bench-attacks, ...; see --list.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the items: data, cost, what has been measured.")] = False,
    claims: Annotated[bool, typer.Option("--claims", help="Judge the paper's claims by the results.")] = False,
    render_: Annotated[bool, typer.Option("--render", help="Write the documents in DOCS from the results.")] = False,
    queue: Annotated[bool, typer.Option("--queue", help="List the GPU jobs: done, and a plan of those open.")] = False,
    block: Annotated[int | None, typer.Option(help="With --queue and --run: the block of the plan to run.")] = None,
    run_: Annotated[
        Path | None,
        typer.Option("--run", help="With --block: run its jobs, with their logs and seconds in this folder."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="With --queue and --run: how long a block is, after which what still runs is stopped.")
    ] = ((BLOCK + SPARE) / 60),
    recipe: Annotated[str, typer.Option(help="Training: fast, or paper for the paper's own.")] = "fast",
    epochs: Annotated[float | None, typer.Option(help="Train for this long instead of the recipe's epochs.")] = None,
    limit: Annotated[int | None, typer.Option(help="Use only the first test images.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Measure only this row; repeatable.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="Measure only this column, into rows measured before; repeatable.")
    ] = None,
    ensemble: Annotated[
        list[str] | None,
        typer.Option(help="Use this folder or zoo:NAME instead of training: DIR, or NAME=DIR; repeatable."),
    ] = None,
    tight: Annotated[str | None, typer.Option(help="Preset of the tight attack: quick ... thorough, or none.")] = None,
    points: Annotated[
        int | None, typer.Option(help="At most so many points of each sweep, the first and last.")
    ] = None,
    train_only: Annotated[bool, typer.Option("--train-only", help="Make the ensembles and stop.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Ensembles and runs (reproduce by default); rerun the command to resume.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="Where results go: OUT/results by default (--list, --claims, --render: paper/results)."),
    ] = None,
    docs: Annotated[Path, typer.Option(help="Where --render writes.")] = HERE.parent / "docs",
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
    verbose: Annotated[bool, typer.Option("--verbose", help="Tracebacks of errors.")] = False,
) -> None:
    """Reproduce a table or a figure of the paper: train or load, choose alpha, attack, draw, compare.

    Example: `python -m paper table3 --limit 1000 --device cuda`

    In some minutes on a CPU: `python -m paper table5-cifar10 --only linf --limit 50`

    With an ensemble of your own: `python -m paper figure3 --only alpha --limit 50 --tight none --ensemble DIR`

    On several GPUs: `torchrun --nproc-per-node=8 -m paper table2 --only imagenet-linf --train-only`

    A benchmark: `python -m paper bench-attacks --only arc --limit 512`
    """
    if recipe not in ("fast", "paper"):
        raise unknown("recipe", recipe, ("fast", "paper"))
    measured = HERE / "results" if results is None and out is None else None
    out = out or Path("reproduce")
    folder = results or out / "results"
    if block is not None or run_ is not None:
        raise typer.Exit(run_block(gathered(measured or folder), block, run_, minutes, json_))
    if queue:
        print_queue(gathered(measured or folder), minutes, json_)
        return
    if list_ or claims or render_:
        _show(measured or folder, docs, recipe, data_dir, json_, list_, claims, render_)
        return
    if item is None:
        raise InputError("which item? `python -m paper --list` names them, e.g. python -m paper table3")
    _check_numbers(tight, limit, points, epochs)
    wanted = item_named(item)
    rows = rows_of(wanted, only or ())
    if world_size() > 1 and not train_only:
        raise InputError("several processes can only train (--train-only); measure with one")
    where = use_device(device)
    precision = precision or ("tf32" if where.type == "cuda" else "float32")
    check_precision(precision, where)
    setup = Setup(
        out,
        where,
        recipe=recipe,
        data_dir=data_dir,
        limit=limit,
        given=dict(_given(text) for text in ensemble or ()),
        scale=TOY if toy else replace(FULL, tight=tight, points=points),
        report=None if quiet else print_note,
        precision=precision,
        epochs=epochs,
    )
    parts = parts_of(wanted, only or ())
    if rows and not only:
        rows = setup.available(rows)
        parts = [row.name for row in rows]
    setup.check_epochs(wanted, rows)
    if train_only:
        _train(wanted, rows, setup)
        return
    result = measure(wanted, setup, folder, parts, not quiet, column or ())
    if json_:
        print_json({"results": str(folder / f"{result.item}.json"), **asdict(result)})
    elif not quiet:
        for grid in grids(result):
            grid.print(result.title)
        print_note(f"kept in {folder / f'{result.item}.json'}; rerun the command to add to it")
        if item == "throughput":
            print(f"\n{costs_table({item: [result]})}")


def _check_numbers(tight: str | None, limit: int | None, points: int | None, epochs: float | None) -> None:
    if tight is not None and tight not in PRESETS:
        raise unknown("--tight", tight, PRESETS)
    if limit is not None and limit < 1:
        raise InputError(f"--limit is {limit}; expected a number of images >= 1")
    if points is not None and points < 1:
        raise InputError(f"--points is {points}; expected a number of points >= 1")
    if epochs is not None and not epochs > 0:
        raise InputError(f"--epochs is {epochs:g}; expected a number > 0")


def _given(text: str) -> tuple[str, str]:
    name, equals, folder = text.partition("=")
    return (name, folder) if equals else ("", text)


def _train(item: Item, rows: list[Row], setup: Setup) -> None:
    setup.check(item, rows)
    for row in rows:
        setup.ensemble(row.ensemble)


def _show(
    folder: Path,
    docs: Path,
    recipe: str,
    data_dir: Path | None,
    as_json: bool,
    list_: bool,
    claims: bool,
    render_: bool,
) -> None:
    """What needs no computation: the list of items, the claims, the documents."""
    if list_:
        _list(folder, recipe, data_dir, as_json)
    elif claims:
        judged = claims_of(gathered(folder), folder)
        if as_json:
            print_json({"claims": [asdict(claim) for claim in judged]})
        else:
            print("\n".join(claim.markdown() for claim in judged))
    elif render_:
        for path in render(folder, docs):
            print(path)


def _list(folder: Path, recipe: str, data_dir: Path | None, as_json: bool) -> None:
    states = {row.name: row.state for row in available(data_dir)}
    entries: list[dict[str, Any]] = []
    measured = gathered(folder)
    for name, item in ITEMS.items():
        found = [row.row for result in measured[name] for row in result.rows]
        partial = [
            row.name
            for row in item.rows
            for result in measured[name]
            if (known := result.row(row.name)) is not None and not row.is_complete(known)
        ]
        entries.append(
            {
                "item": name,
                "title": item.title,
                "data": {data: states[data] for data in item.data},
                "rows": parts_of(item),
                "ensembles": [ensemble.name for ensemble in item.ensembles],
                "cost": costs.shown(item, recipe),
                "measured": [row for row in found if row not in partial],
                "measured_in_part": partial,
            }
        )
    if as_json:
        print_json({"items": entries})
        return
    print("Costs: roughly, on one H200, for all rows of an item.\n")
    for entry in entries:
        data = ", ".join(f"{name} {state}" for name, state in entry["data"].items())
        count = f"{len(_parts_measured(entry))} of {len(entry['rows']) or len(entry['measured']) or 1} rows measured"
        if entry["measured_in_part"]:
            lacking = len(entry["measured_in_part"])
            count += f" ({lacking} {'lacks' if lacking == 1 else 'lack'} some columns)"
        if ITEMS[entry["item"]].page == "performance":
            machines = [found.rows[0].hardware for found in measured[entry["item"]]]
            count = f"measured on {' and '.join(machines)}" if machines else "not measured"
        print_entry(entry["item"], entry["title"], "; ".join(part for part in (data, entry["cost"], count) if part))


def _parts_measured(entry: dict[str, Any]) -> list[str]:
    """The rows that were measured; those of one part that differ in the seed (`PART, seed 0`) count once."""
    measured: list[str] = entry["measured"]
    return [part for part in entry["rows"] or measured if any(f"{row}, ".startswith(f"{part}, ") for row in measured)]


def main(arguments: list[str]) -> int:
    """The exit code: 0 done, 2 bad input, 3 interrupted and resumable, 1 anything else."""
    return run(arguments, app, "python -m paper")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
app.command()(guarded(paper))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
