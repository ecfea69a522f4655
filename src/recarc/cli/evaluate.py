"""`recarc evaluate`: the robust accuracy of an ensemble folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recarc.attacks.registry import DEFAULT, attack_named, names
from recarc.cli import options
from recarc.cli.options import assignments, number, numbers, size
from recarc.cli.output import print_evaluation, print_json, print_note, summary
from recarc.cli.process import gpu_starting, importing
from recarc.errors import InputError


def evaluate(
    ensemble: options.EnsembleArgument,
    data: options.DataOption,
    eps: options.EpsOption,
    norm: options.NormOption = "linf",
    attack: Annotated[
        str, typer.Option(help=f"One of {', '.join(names())}; or your own package.module:Class with --trust-code.")
    ] = DEFAULT,
    preset: options.PresetOption = None,
    steps: options.StepsOption = None,
    step_size: options.StepSizeOption = None,
    planes: options.PlanesOption = None,
    loss: Annotated[str | None, typer.Option(help="Loss of gradient attacks, such as ce or margin.")] = None,
    random_init: Annotated[
        bool | None, typer.Option("--random-init/--no-random-init", help="Start at a random point of the ball.")
    ] = None,
    knob: Annotated[list[str] | None, typer.Option(help="Another knob of the attack: NAME=VALUE; repeatable.")] = None,
    restarts: Annotated[int, typer.Option(help="Run with seeds seed, seed + 1, ... and keep the worst.")] = 1,
    seed: options.SeedOption = None,
    alpha: options.AlphaOption = None,
    average: Annotated[
        bool, typer.Option("--average", help="Attack the mean of the members' probabilities, one classifier, instead.")
    ] = False,
    vote: Annotated[
        bool, typer.Option("--vote", help="Attack the members' majority vote, one classifier, instead.")
    ] = False,
    box: options.BoxOption = "0,1",
    split: options.SplitOption = "test",
    data_dir: options.DataDirOption = None,
    limit: options.LimitOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder for the records; rerun to resume.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Resume a run that --out holds.")] = True,
    save_inputs: Annotated[bool, typer.Option("--save-inputs", help="Save the adversarial inputs (float32).")] = False,
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
    batch_size: Annotated[str, typer.Option(help="Samples per batch; auto halves it when memory runs out.")] = "auto",
    shard_size: Annotated[
        str, typer.Option(help="Samples per file of records; what is done of one is kept every 20 seconds.")
    ] = "auto",
    track: options.TrackOption = None,
    trust_code: options.TrustCodeOption = False,
    quiet: options.QuietOption = False,
    json_: options.JsonOption = False,
) -> None:
    """Attack an ensemble on a data set and report the accuracy that remains, with a 95 % interval.

    Example: `recarc evaluate my-ensemble --data cifar10 --eps 8/255 --attack arc --limit 1000 --out runs/arc`

    On several GPUs: `torchrun --nproc-per-node=4 -m recarc evaluate ... --out runs/arc`
    """
    if average and vote:
        raise InputError("--average and --vote are two classifiers; evaluate one at a time")
    step = None if step_size is None else number("--step-size", step_size)
    knobs: dict[str, Any] = {"preset": preset, "steps": steps, "step_size": step, "planes": planes, "seed": seed}
    knobs = _with_others(knobs | {"loss": loss, "random_init": random_init}, knob or [])
    radius, valid = number("--eps", eps), options.box(box)
    batch, shard = size("--batch-size", batch_size), size("--shard-size", shard_size)
    probabilities = None if alpha is None else numbers("--alpha", alpha)

    with gpu_starting(device):
        with importing():
            import recarc
            from recarc.data import load
            from recarc.evaluation.checks import collect_warnings
            from recarc.evaluation.engine import evaluate as run
            from recarc.runtime import first_process, use_device

            method = attack_named(attack, restarts, trust_code=trust_code, **knobs)
        ball = recarc.Ball(norm, radius, valid)
        rec = recarc.load_ensemble(ensemble, use_device(device), trust_code=trust_code)
        if probabilities is not None:
            rec = rec.with_alpha(probabilities)
        rec = rec.averaged() if average else rec.voted() if vote else rec
        images = load(data, split, data_dir=data_dir, limit=limit)
    with collect_warnings():
        result = run(
            rec,
            method,
            images,
            ball,
            batch_size=batch,
            shard_size=shard,
            out=out,
            resume=resume,
            progress=not quiet,
            save_inputs=save_inputs,
            precision=precision,
            callbacks=options.trackers(track),
        )
    if not first_process():
        return
    if json_:
        print_json(summary(result))
    elif not quiet:
        print_evaluation(result)
    if out is not None and not quiet:
        print_note(f"records in {out}")
    elif not quiet:
        print_note("the per-sample records were not kept; --out DIR keeps them, for `recarc show` and `recarc report`")


def _with_others(knobs: dict[str, Any], given: list[str]) -> dict[str, Any]:
    """The knobs that have options of their own, and those given as --knob NAME=VALUE; none may be set twice."""
    others = assignments("--knob", "NAME=VALUE", given)
    for name, value in others.items():
        if knobs.get(name) is not None:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} and --knob {name}={value} set the same knob; leave one of them out")
    return knobs | others
