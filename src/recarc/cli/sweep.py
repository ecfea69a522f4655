"""`recarc sweep`: robust accuracy along alpha, eps, steps, planes or size."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recarc.attacks.registry import attack_named
from recarc.cli.output import print_json
from recarc.cli.parsing import box as parsed_box
from recarc.cli.parsing import number, numbers
from recarc.errors import InputError

if TYPE_CHECKING:
    from recarc.sweep import Sweep


def sweep(
    ensemble: Annotated[
        Path,
        typer.Argument(help="A folder of `recarc train` or `recarc import`, or zoo:NAME (`recarc zoo list`)."),
    ],
    over: Annotated[str, typer.Option(help="What changes: alpha, eps, steps, planes or size.")],
    values: Annotated[str, typer.Option(help="Its values, such as 0.5,0.7,0.9 or 2/255,4/255,8/255.")],
    data: Annotated[str, typer.Option(help="A data set's name (`recarc data list`) or a folder of images.")],
    out: Annotated[Path, typer.Option(help="Folder for the run folders; the same command goes on.")],
    eps: Annotated[str | None, typer.Option(help="Radius of the ball, such as 8/255; not with --over eps.")] = None,
    norm: Annotated[str, typer.Option(help="linf, l2, l1 or a number p >= 1.")] = "linf",
    attack: Annotated[str, typer.Option(help="Attacks, separated by commas.")] = "adaptive_pgd,arc,tight",
    preset: Annotated[str | None, typer.Option(help="Effort of tight: quick, standard or thorough.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterations of the attacks that have them.")] = None,
    step_size: Annotated[str | None, typer.Option(help="Their step, such as 2/255.")] = None,
    planes: Annotated[int | None, typer.Option(help="ARC's G: rivals looked at a step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the attacks' random numbers.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Other sampling probabilities, such as 0.9,0.1.")] = None,
    box: Annotated[str, typer.Option(help="Valid inputs: low,high, or none.")] = "0,1",
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    data_dir: Annotated[Path | None, typer.Option(help="Where its files are (else RECARC_DATA).")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first samples.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    trust_code: Annotated[bool, typer.Option("--trust-code", help="Load members made by importable code.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no table.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Evaluate along one parameter; every point is a run folder, and `recarc report` draws the curve.

    Example: `recarc sweep my-ensemble --over alpha --values 0.5,0.7,0.9 --data cifar10 --eps 8/255 --out sweeps/alpha`

    With tight among the attacks, adaptive_pgd and arc are read off its stages and cost nothing more, arc with as many
    planes as there; with --planes or --step-size they are run by themselves.
    """
    points = numbers("--values", values)
    if eps is None and over != "eps":
        raise InputError("--eps is missing; give the radius of the ball, such as 8/255")
    radius = points[0] if eps is None else number("--eps", eps)
    step = None if step_size is None else number("--step-size", step_size)
    knobs = {"preset": preset, "steps": steps, "step_size": step, "planes": planes, "seed": seed}
    valid = parsed_box(box)
    probabilities = None if alpha is None else numbers("--alpha", alpha)
    attacks = {name: fitting(name, knobs) for name in (part.strip() for part in attack.split(","))}
    if planes is None and step is None and {"arc", "tight"} <= attacks.keys():
        attacks["arc"] = replace(attacks["arc"], planes=attacks["tight"].plain_stages()["arc"].planes)

    import recarc
    from recarc.data import load
    from recarc.runtime import use_device
    from recarc.sweep import sweep as run

    rec = recarc.load_ensemble(ensemble, use_device(device), allow_factories=trust_code)
    if probabilities is not None:
        rec = rec.with_alpha(probabilities)
    images = load(data, split, data_dir=data_dir, limit=limit)
    say = None if quiet else _say
    ball = recarc.Ball(norm, radius, valid)
    found = run(rec, attacks, images, ball, over, points, out, tell=say, progress=not quiet, precision="float32")
    if json_:
        print_json({**found.to_json(), "out": str(out)})
    elif not quiet:
        print_sweep(found)
        print(f"recarc report {out} --out report.html draws it")


def fitting(name: str, knobs: dict[str, Any]) -> Any:
    """The attack with those of the knobs that it has."""
    plain = attack_named(name)
    known = {f.name for f in fields(getattr(plain, "attack", plain))}
    return attack_named(name, **{key: value for key, value in knobs.items() if key in known})


def print_sweep(found: Sweep) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"expected accuracy (%) against {found.over}")
    table.add_column(found.over)
    for name in found.columns:
        table.add_column(name, justify="right")
    for value in found.values:
        cells = [found.at(value, name) for name in found.columns]
        table.add_row(f"{value:g}", *("" if c is None else f"{100 * c.estimate.value:.2f}" for c in cells))
    Console().print(table)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
