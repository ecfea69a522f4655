"""`recarc alpha`: the best sampling probabilities of an ensemble."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from recarc.cli import options
from recarc.cli.options import number
from recarc.cli.output import joined, percent, print_json, print_note, print_table
from recarc.errors import unknown

if TYPE_CHECKING:
    from recarc.sampling import AttackedSamples, Choice, TwoMembers

METHODS = ("grid", "osp", "lp")


def alpha(
    ensemble: options.EnsembleArgument,
    data: options.DataOption,
    eps: options.EpsOption,
    norm: options.NormOption = "linf",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Some of grid (the paper's), osp and lp, separated by commas. "
            "By default all, but no grid of more than 1,000 points.",
            show_default=False,
        ),
    ] = None,
    points: Annotated[int, typer.Option(help="Grid points per side of the simplex.")] = 11,
    rounds: Annotated[int, typer.Option(help="Rounds of osp, and of lp after the vertices.")] = 10,
    preset: Annotated[str, typer.Option(help="Effort of the tight attack that judges every choice.")] = "quick",
    box: options.BoxOption = "0,1",
    split: Annotated[
        str, typer.Option(help="Split of the data set; choosing on the test set would overfit to it.")
    ] = "train",
    data_dir: options.DataDirOption = None,
    limit: Annotated[int, typer.Option(help="Use only the first LIMIT samples.")] = 500,
    device: options.DeviceOption = "auto",
    trust_code: options.TrustCodeOption = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print no progress.")] = False,
    json_: options.JsonOption = False,
) -> None:
    """Choose alpha by up to three methods and report the accuracy of each choice under the worst of all attacks.

    grid: the paper's search with AdaptivePGD. osp: projected subgradient descent with Climb in the loop. lp: a
    cutting-plane program over all patterns of fooled members found so far. For two members it also says whether
    randomizing helps at all.

    Example: `recarc alpha my-ensemble --data cifar10 --split train --eps 8/255 --limit 1000`
    """
    chosen = list(METHODS) if methods is None else [name.strip() for name in methods.split(",")]
    for name in chosen:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    radius, valid = number("--eps", eps), options.box(box)

    import recarc
    from recarc import sampling
    from recarc.data import load
    from recarc.runtime import use_device

    ball, judge = recarc.Ball(norm, radius, valid), recarc.Tight(preset)
    rec = recarc.load_ensemble(ensemble, use_device(device), allow_factories=trust_code)
    if methods is None and (size := sampling.grid_size(len(rec), points)) > sampling.MOST_POINTS:
        chosen.remove("grid")
        print_note(f"grid is left out: {points} points per side for {len(rec)} members would take {size:,} attacks")
    if "grid" in chosen:
        sampling.check_grid(len(rec), points)
    x, y = load(data, split, data_dir=data_dir, limit=limit).tensors()
    home = rec.device_of_members() or x.device
    samples = sampling.AttackedSamples(x.to(home), y.to(home), ball)
    watch = None if quiet else _print_progress
    search = {
        "grid": lambda: sampling.grid_search(rec, samples, points=points, watch=watch),
        "osp": lambda: sampling.osp(rec, samples, rounds=rounds, watch=watch),
        "lp": lambda: sampling.cutting_planes(rec, samples, rounds=rounds, watch=watch),
    }
    choices = [search[name]() for name in chosen]
    for choice in choices:
        samples.patterns(rec.with_alpha(choice.alpha), judge)
    two = sampling.two_members(rec, samples, judge) if len(rec) == 2 else None
    rows = [(choice, samples.accuracy(choice.alpha)) for choice in choices]  # under the worst of all attacks so far
    _print_choices(rows, best_choice(choices, samples, two), two, json_)


def best_choice(choices: list[Choice], samples: AttackedSamples, two: TwoMembers | None) -> tuple[Choice, float]:
    """The choice of highest accuracy; where randomizing does not help, the better member alone if that is as good."""
    from recarc.sampling import Choice

    best = max(choices, key=lambda choice: samples.accuracy(choice.alpha))
    if two is not None and not two.helps:
        alone = [1.0, 0.0] if two.e_1 <= two.e_2 else [0.0, 1.0]
        if samples.accuracy(alone) >= samples.accuracy(best.alpha):
            best = Choice("the analysis of two members", alone, samples.accuracy(alone), [])
    return best, samples.accuracy(best.alpha)


def _print_progress(method: str, alpha: list[float], accuracy: float) -> None:
    print_note(f"{method}: alpha ({joined(alpha)}) keeps {percent(accuracy)} %")


def _print_choices(
    rows: list[tuple[Choice, float]], chosen: tuple[Choice, float], two: TwoMembers | None, as_json: bool
) -> None:
    best, accuracy = chosen
    if as_json:
        choices = {c.method: {"alpha": c.alpha, "believed": c.believed, "robust_accuracy": v} for c, v in rows}
        analysis = two and {**asdict(two), "helps": two.helps, "says": two.sentence}
        print_json({"alpha": best.alpha, "robust_accuracy": accuracy, "choices": choices, "two_members": analysis})
        return
    cells = [[c.method, joined(c.alpha), percent(c.believed), percent(value)] for c, value in rows]
    print_table(["method", "alpha", "own estimate %", "worst of all attacks %"], cells)
    print(
        f"Best: alpha = ({joined(best.alpha, 4)}) by {best.method}, {percent(accuracy)} % under the worst attack seen."
    )
    if two is not None:
        print(two.sentence)
