"""`recarc train`: from the name of a method to an ensemble folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recarc.cli import options
from recarc.cli.options import assignments, number, numbers
from recarc.cli.output import print_entry, print_json
from recarc.models.registry import names as architectures
from recarc.training.methods import method_named, names

METHODS = ", ".join(names())
ON_GPU = "On by default on a GPU."


def _list_methods(wanted: bool) -> None:
    if wanted:
        for method in map(method_named, names()):
            count = f"{method.default_members} member{'s' * (method.default_members > 1)}"
            print_entry(method.name, count, method.summary)
        raise typer.Exit


def train(
    method: Annotated[
        str,
        typer.Argument(help=f"{METHODS}, or with --trust-code your own, as package.module:Class."),
    ],
    out: Annotated[Path, typer.Option(help="The ensemble folder to create; must be new or empty.")],
    data: options.DataOption = "cifar10",
    arch: Annotated[
        str, typer.Option(help=f"{', '.join(architectures())}; or with --trust-code your own module:function.")
    ] = "resnet20",
    arch_option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the architecture: NAME=VALUE, such as stem=imagenet; repeatable."),
    ] = None,
    norm: Annotated[str | None, options.NORM] = None,
    eps: Annotated[str | None, options.EPS] = None,
    recipe: Annotated[str, typer.Option(help="fast, or paper for the paper's hyper-parameters.")] = "fast",
    members: Annotated[int | None, typer.Option(help="Number of members; by default that of the method.")] = None,
    seed: Annotated[int, typer.Option(help="Member i is initialised with seed + i.")] = 0,
    start: Annotated[
        Path | None, typer.Option(help="Ensemble folder with the first members, or with the baseline of dverge.")
    ] = None,
    alpha: options.AlphaOption = None,
    epochs: Annotated[float | None, typer.Option(help="Overrides the recipe.")] = None,
    batch: Annotated[int | None, typer.Option(help="Overrides the recipe.")] = None,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; overrides the recipe.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Overrides the recipe.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Overrides the recipe.")] = None,
    ema: Annotated[float | None, typer.Option(help="Decay of the weight average, 0 for none.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any field of the recipe: FIELD=VALUE; repeatable.")
    ] = None,
    data_dir: options.DataDirOption = None,
    device: options.DeviceOption = "auto",
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help=f"bfloat16 passes. {ON_GPU}")] = None,
    channels_last: Annotated[
        bool | None,
        typer.Option("--channels-last/--no-channels-last", help=f"Memory layout for convolutions. {ON_GPU}"),
    ] = None,
    compile_: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="torch.compile every member. Off by default.")
    ] = None,
    cuda_graph: Annotated[
        bool | None, typer.Option("--cuda-graph/--no-cuda-graph", help=f"Replay steps as a CUDA graph. {ON_GPU}")
    ] = None,
    fold: Annotated[
        bool | None, typer.Option("--fold/--no-fold", help=f"Fold batch norm in the attacked copy. {ON_GPU}")
    ] = None,
    fuse: Annotated[
        bool | None, typer.Option("--fuse/--no-fuse", help=f"Fuse convolutions of the attacked copy. {ON_GPU}")
    ] = None,
    side_by_side: Annotated[
        bool | None,
        typer.Option("--side-by-side/--one-by-one", help=f"Train independent members at the same time. {ON_GPU}"),
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Minutes between checkpoints.")] = 5.0,
    tensorboard: Annotated[Path | None, typer.Option(help="As --track tensorboard:FOLDER.")] = None,
    track: options.TrackOption = None,
    force: Annotated[bool, typer.Option(help="Accept an eps of an unlikely scale.")] = False,
    trust_code: options.TrustCodeOption = False,
    list_methods: Annotated[
        bool,
        typer.Option("--list-methods", callback=_list_methods, is_eager=True, help="Describe the methods and exit."),
    ] = False,
    quiet: options.QuietOption = False,
    json_: options.JsonOption = False,
) -> None:
    """Train a randomized ensemble and save it as a folder for `recarc evaluate`.

    Estimates the cost before it starts. After a crash or an interruption, rerun the command to resume.

    Example: `recarc train bat --data cifar10 --arch resnet20 --norm linf --eps 8/255 --out bat-linf`

    On several GPUs: `torchrun --nproc-per-node=4 -m recarc train ... --out bat-linf`
    """
    from recarc.runtime import first_process
    from recarc.training import SpeedOptions
    from recarc.training import train as run
    from recarc.training.progress import to_stderr

    overrides = {"epochs": epochs, "batch": batch, "lr": lr, "weight_decay": weight_decay, "ema": ema}
    overrides["label_smoothing"] = label_smoothing
    changes: dict[str, Any] = assignments("--set", "FIELD=VALUE", set_ or [])
    changes |= {name: value for name, value in overrides.items() if value is not None}
    ensemble = run(
        method,
        data,
        arch,
        norm=norm,
        eps=None if eps is None else number("--eps", eps),
        out=out,
        recipe=recipe,
        members=members,
        seed=seed,
        start=start,
        alpha=None if alpha is None else numbers("--alpha", alpha),
        changes=changes,
        arch_options=assignments("--arch-option", "NAME=VALUE", arch_option or []),
        device=None if device == "auto" else device,
        speed=SpeedOptions(bf16, channels_last, compile_, cuda_graph, fold, fuse, side_by_side),
        checkpoint_minutes=checkpoint_minutes,
        confirm=force,
        data_dir=data_dir,
        tensorboard=tensorboard,
        callbacks=options.trackers(track),
        trust_code=trust_code,
        say=None if quiet else to_stderr,
    )
    if json_ and first_process():
        probabilities = [round(a, 12) for a in ensemble.alpha.tolist()]
        print_json({"out": str(out), "method": method, "members": len(ensemble), "alpha": probabilities})
