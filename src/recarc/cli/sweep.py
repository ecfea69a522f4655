"""`recarc sweep`: robust accuracy along alpha, eps, steps, planes or size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recarc.attacks.registry import attack_named, knobs_of
from recarc.cli import options
from recarc.cli.options import number, numbers
from recarc.cli.output import percent, print_json, print_line, print_note, print_table
from recarc.errors import InputError

if TYPE_CHECKING:
    from recarc.sweep import Sweep


def sweep(
    ensemble: options.EnsembleArgument,
    over: Annotated[str, typer.Option(help="What changes: alpha, eps, steps, planes or size.")],
    values: Annotated[str, typer.Option(help="Its values, such as 0.5,0.7,0.9 or 2/255,4/255,8/255.")],
    data: options.DataOption,
    out: Annotated[Path, typer.Option(help="Folder for the run folders; rerun to resume.")],
    eps: Annotated[str | None, typer.Option(help="Radius of the ball, such as 8/255; not with --over eps.")] = None,
    norm: options.NormOption = "linf",
    attack: Annotated[str, typer.Option(help="Attacks, separated by commas.")] = "adaptive_pgd,arc,tight",
    preset: options.PresetOption = None,
    steps: options.StepsOption = None,
    step_size: options.StepSizeOption = None,
    planes: options.PlanesOption = None,
    seed: options.SeedOption = None,
    alpha: options.AlphaOption = None,
    box: options.BoxOption = "0,1",
    split: options.SplitOption = "test",
    data_dir: options.DataDirOption = None,
    limit: options.LimitOption = None,
    device: options.DeviceOption = "auto",
    trust_code: options.TrustCodeOption = False,
    quiet: options.QuietOption = False,
    json_: options.JsonOption = False,
) -> None:
    """Evaluate along one parameter; every point is a run folder, and `recarc report` draws the curve.

    Example: `recarc sweep my-ensemble --over alpha --values 0.5,0.7,0.9 --data cifar10 --eps 8/255 --out sweeps/alpha`

    If tight is among the attacks, adaptive_pgd and arc are read off its stages at no extra cost (arc with as many
    planes as there); with --planes or --step-size they are run by themselves.
    """
    points = numbers("--values", values)
    if eps is None and over != "eps":
        raise InputError("--eps is missing; give the radius of the ball, such as 8/255")
    if eps is not None and over == "eps":
        raise InputError("--eps and --over eps exclude each other: the radii are the --values")
    radius = points[0] if eps is None else number("--eps", eps)
    step = None if step_size is None else number("--step-size", step_size)
    knobs = {"preset": preset, "steps": steps, "step_size": step, "planes": planes, "seed": seed}
    valid = options.box(box)
    probabilities = None if alpha is None else numbers("--alpha", alpha)
    attacks = {name: with_its_knobs(name, knobs, trust_code) for name in (part.strip() for part in attack.split(","))}
    if planes is None and step is None and {"arc", "tight"} <= attacks.keys():
        attacks["arc"] = replace(attacks["arc"], planes=attacks["tight"].plain_stages()["arc"].planes)

    import recarc
    from recarc.data import load
    from recarc.runtime import use_device
    from recarc.sweep import sweep as run

    rec = recarc.load_ensemble(ensemble, use_device(device), trust_code=trust_code)
    if probabilities is not None:
        rec = rec.with_alpha(probabilities)
    images = load(data, split, data_dir=data_dir, limit=limit)
    ball, say = recarc.Ball(norm, radius, valid), None if quiet else print_note
    result = run(rec, attacks, images, ball, over, points, out, say=say, progress=not quiet, precision="auto")
    if json_:
        print_json({**result.to_json(), "out": str(out)})
    elif not quiet:
        print_sweep(result)
        print_line(f"recarc report {out} --out report.html draws it")


def with_its_knobs(name: str, knobs: dict[str, Any], trust_code: bool) -> Any:
    """The attack of this name with those of the knobs that it has."""
    known = knobs_of(name, trust_code)
    return attack_named(name, trust_code=trust_code, **{key: value for key, value in knobs.items() if key in known})


def print_sweep(result: Sweep) -> None:
    cells = {value: [result.at(value, name) for name in result.columns] for value in result.values}
    rows = [[f"{value:g}", *(percent(c.estimate.value) if c else "" for c in row)] for value, row in cells.items()]
    print_table([result.over, *result.columns], rows, title=f"expected accuracy (%) against {result.over}")
