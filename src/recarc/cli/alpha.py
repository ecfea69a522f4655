"""`recarc alpha`: the best sampling probabilities of an ensemble."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recarc.cli.output import print_json
from recarc.cli.parsing import box as parsed_box
from recarc.cli.parsing import number
from recarc.errors import unknown

if TYPE_CHECKING:
    from recarc.sampling import Choice

METHODS = ("grid", "osp", "lp")


def alpha(
    ensemble: Annotated[Path, typer.Argument(help="An ensemble folder, or zoo:NAME (`recarc zoo list`).")],
    data: Annotated[str, typer.Option(help="A data set's name (`recarc data list`) or a folder of images.")],
    eps: Annotated[str, typer.Option(help="Radius of the ball in the units of the inputs, such as 8/255.")],
    norm: Annotated[str, typer.Option(help="linf, l2, l1 or a number p >= 1.")] = "linf",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Of grid (the paper's), osp and lp, separated by commas. By default all, but no grid of over 1,000.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Grid points a side of the simplex.")] = 11,
    rounds: Annotated[int, typer.Option(help="Rounds of osp, and of lp after the vertices.")] = 10,
    preset: Annotated[str, typer.Option(help="Effort of the tight attack that judges each choice.")] = "quick",
    box: Annotated[str, typer.Option(help="Valid inputs: low,high, or none.")] = "0,1",
    split: Annotated[str, typer.Option(help="Split of the data set; choosing on the test set flatters.")] = "train",
    data_dir: Annotated[Path | None, typer.Option(help="Where its files are (else RECARC_DATA).")] = None,
    limit: Annotated[int, typer.Option(help="Only the first samples.")] = 500,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Load members made by importable code.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Choose alpha three ways and say what each choice is worth under the tight attack.

    grid: the paper's search with AdaptivePGD. osp: projected sub-gradient with Climb in the loop. lp: the
    cutting-plane program over all patterns of fooled members found. For two members it also says in plain words
    whether randomising helps at all.

    Example: `recarc alpha my-ensemble --data cifar10 --split train --eps 8/255 --limit 1000`
    """
    wanted = list(METHODS) if methods is None else [name.strip() for name in methods.split(",")]
    for name in wanted:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    radius, valid = number("--eps", eps), parsed_box(box)

    import recarc
    from recarc import sampling as choosing
    from recarc.data import load
    from recarc.runtime import use_device

    ball, judge = recarc.Ball(norm, radius, valid), recarc.Tight(preset)
    rec = recarc.load_ensemble(ensemble, use_device(device), allow_factories=trust_code)
    if methods is None and (size := choosing.grid_size(len(rec), points)) > choosing.MOST_POINTS:
        wanted.remove("grid")
        print(f"grid is left out: {points} points a side for {len(rec)} members are {size:,} attacks", file=sys.stderr)
    if "grid" in wanted:
        choosing.check_grid(len(rec), points)
    x, y = load(data, split, data_dir=data_dir, limit=limit).tensors()
    home = rec.device_of_members() or x.device
    samples = choosing.Samples(x.to(home), y.to(home), ball)
    watch = choosing.silent if quiet else _tell
    find = {
        "grid": lambda: choosing.grid_search(rec, samples, points=points, watch=watch),
        "osp": lambda: choosing.osp(rec, samples, rounds=rounds, watch=watch),
        "lp": lambda: choosing.cutting_planes(rec, samples, rounds=rounds, watch=watch),
    }
    choices = [find[name]() for name in wanted]
    for choice in choices:
        samples.patterns(rec.with_alpha(choice.alpha), judge)
    two = choosing.two_members(rec, samples, judge) if len(rec) == 2 else None
    rows = [(choice, samples.accuracy(choice.alpha)) for choice in choices]  # under the worst that anybody found
    _print(rows, two, json_)


def _tell(method: str, alpha: list[float], accuracy: float) -> None:
    shown = ", ".join(f"{round(a, 6):.3g}" for a in alpha)
    print(f"{method}: alpha ({shown}) keeps {100 * accuracy:.2f} %", file=sys.stderr)


def _print(rows: list[tuple[Choice, float]], two: Any, as_json: bool) -> None:
    best, accuracy = max(rows, key=lambda row: row[1])
    if as_json:
        choices = {c.method: {"alpha": c.alpha, "believed": c.believed, "robust_accuracy": v} for c, v in rows}
        analysis = two and {"e_1": two.e_1, "e_2": two.e_2, "p_r": two.p_r, "helps": two.helps, "says": two.sentence}
        print_json({"alpha": best.alpha, "robust_accuracy": accuracy, "choices": choices, "two_members": analysis})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("method", "alpha", "it believes %", "tight says %")
    for choice, value in rows:
        shown = ", ".join(f"{a:.3g}" for a in choice.alpha)
        table.add_row(choice.method, shown, f"{100 * choice.believed:.2f}", f"{100 * value:.2f}")
    console = Console()
    console.print(table)
    shown = ", ".join(f"{a:.4g}" for a in best.alpha)
    console.print(f"Best: alpha = ({shown}) by {best.method}, {100 * accuracy:.2f} % under the tight attack.")
    if two is not None:
        console.print(two.sentence)
