"""`recarc train`: an ensemble folder from a method's name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from recarc.cli.options import assignments, number, numbers
from recarc.cli.output import print_json


def train(
    method: Annotated[str, typer.Argument(help="natural, at, bat, iat, free, adp, gal, dverge, trs, mrboost, barre.")],
    out: Annotated[Path, typer.Option(help="The ensemble folder to make; must be new or empty.")],
    data: Annotated[str, typer.Option(help="A data set's name (cifar10, digits, ...) or a folder.")] = "cifar10",
    arch: Annotated[str, typer.Option(help="The members' architecture.")] = "resnet20",
    arch_option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the architecture: NAME=VALUE, such as stem=imagenet; repeatable."),
    ] = None,
    norm: Annotated[str | None, typer.Option(help="linf, l2, l1 or a number p >= 1.")] = None,
    eps: Annotated[str | None, typer.Option(help="The radius for images in [0, 1], such as 8/255.")] = None,
    recipe: Annotated[str, typer.Option(help="fast, or paper for the paper's hyper-parameters.")] = "fast",
    members: Annotated[int | None, typer.Option(help="How many; the method's own number by default.")] = None,
    seed: Annotated[int, typer.Option(help="Member i starts from seed + i.")] = 0,
    start: Annotated[
        Path | None, typer.Option(help="An ensemble with the first members, or dverge's baseline.")
    ] = None,
    alpha: Annotated[str | None, typer.Option(help="Sampling probabilities, such as 0.9,0.1.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Instead of the recipe's.")] = None,
    batch: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    lr: Annotated[float | None, typer.Option(help="Instead of the recipe's peak.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Instead of the recipe's.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Instead of the recipe's.")] = None,
    ema: Annotated[float | None, typer.Option(help="Decay of the weight average; 0: none.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any field of the recipe: FIELD=VALUE, repeatable.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set's files are (else RECARC_DATA).")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...; auto is a GPU where there is one.")] = "auto",
    bf16: Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="On on a GPU.")] = None,
    channels_last: Annotated[
        bool | None, typer.Option("--channels-last/--no-channels-last", help="On on a GPU.")
    ] = None,
    compile_: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Off.")] = None,
    cuda_graph: Annotated[bool | None, typer.Option("--cuda-graph/--no-cuda-graph", help="On on a GPU.")] = None,
    fold: Annotated[
        bool | None, typer.Option("--fold/--no-fold", help="Attack with batch norm folded; on on a GPU.")
    ] = None,
    fuse: Annotated[
        bool | None, typer.Option("--fuse/--no-fuse", help="Attack with fused convolutions; on on a GPU.")
    ] = None,
    side_by_side: Annotated[
        bool | None,
        typer.Option("--side-by-side/--one-by-one", help="Independent members at the same time; on on a GPU."),
    ] = None,
    checkpoint_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 5.0,
    tensorboard: Annotated[Path | None, typer.Option(help="A folder for TensorBoard curves.")] = None,
    force: Annotated[bool, typer.Option(help="The eps is meant as it is.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Train a randomized ensemble and leave it as a folder that `recarc evaluate` takes.

    Says what it will cost before it starts. Killed or interrupted, the same command goes on.

    Example: `recarc train bat --data cifar10 --arch resnet20 --norm linf --eps 8/255 --out bat-linf`

    On several GPUs: `torchrun --nproc-per-node=4 -m recarc train ... --out bat-linf`
    """
    from recarc.training import Switches
    from recarc.training import train as run
    from recarc.training.progress import to_stderr

    changes: dict[str, Any] = assignments("--set", "FIELD=VALUE", set_ or [])
    own = {"epochs": epochs, "batch": batch, "lr": lr, "weight_decay": weight_decay, "ema": ema}
    changes |= {k: v for k, v in {**own, "label_smoothing": label_smoothing}.items() if v is not None}
    with training_errors():
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
            switches=Switches(bf16, channels_last, compile_, cuda_graph, fold, fuse, side_by_side),
            checkpoint_minutes=checkpoint_minutes,
            confirm=force,
            data_dir=data_dir,
            tensorboard=tensorboard,
            say=None if quiet else to_stderr,
        )
    from recarc.runtime import first_process

    if json_ and first_process():
        alpha_found = [round(a, 12) for a in ensemble.alpha.tolist()]
        print_json({"out": str(out), "method": method, "members": len(ensemble), "alpha": alpha_found})


@contextmanager
def training_errors() -> Iterator[None]:
    """What training has to say in one line, with its own exit code."""
    from recarc.training import Interrupted, TrainingError

    try:
        yield
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(3 if isinstance(error, Interrupted) else 1) from None
