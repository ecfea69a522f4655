"""`recarc evaluate`: the robust accuracy of an ensemble folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from recarc.attacks.registry import DEFAULT, attack_named, names
from recarc.cli.output import print_evaluation, print_json, summary
from recarc.cli.parsing import assignments, number, numbers, size
from recarc.cli.parsing import box as parsed_box


def evaluate(
    ensemble: Annotated[
        Path,
        typer.Argument(help="A folder of `recarc train` or `recarc import`, or zoo:NAME (`recarc zoo list`)."),
    ],
    data: Annotated[str, typer.Option(help="A data set's name (`recarc data list`) or a folder of images.")],
    eps: Annotated[str, typer.Option(help="Radius of the ball in the units of the inputs, such as 8/255.")],
    norm: Annotated[str, typer.Option(help="linf, l2, l1 or a number p >= 1.")] = "linf",
    attack: Annotated[
        str, typer.Option(help=f"One of {', '.join(names())}; or your own package.module:Class with --trust-code.")
    ] = DEFAULT,
    preset: Annotated[str | None, typer.Option(help="Effort of tight: quick, standard or thorough.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterations of the attack.")] = None,
    step_size: Annotated[str | None, typer.Option(help="Its step, such as 2/255.")] = None,
    planes: Annotated[
        int | None, typer.Option(help="ARC's G: rivals looked at a step; all by default, fewer within tight.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Loss of gradient attacks, such as ce or margin.")] = None,
    random_init: Annotated[bool | None, typer.Option("--random-init/--no-random-init", help="Random start.")] = None,
    knob: Annotated[list[str] | None, typer.Option(help="Another knob of the attack, NAME=VALUE; repeatable.")] = None,
    restarts: Annotated[int, typer.Option(help="Runs with seeds seed, seed + 1, ...; the worst is kept.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of the attack's random numbers.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Other sampling probabilities, such as 0.9,0.1.")] = None,
    box: Annotated[str, typer.Option(help="Valid inputs: low,high, or none.")] = "0,1",
    split: Annotated[str, typer.Option(help="Split of the data set.")] = "test",
    data_dir: Annotated[Path | None, typer.Option(help="Where its files are (else RECARC_DATA).")] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first samples.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder for the records; the same command goes on.")] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Go on with a run that is there.")] = True,
    save_inputs: Annotated[bool, typer.Option("--save-inputs", help="Keep the adversarial inputs (float32).")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Of the attack: float32, float64, tf32, float16 (GPU), bfloat16.")
    ] = "float32",
    batch_size: Annotated[str, typer.Option(help="Samples at a time; auto halves it when memory runs out.")] = "auto",
    shard_size: Annotated[str, typer.Option(help="Samples a file of records; what a kill can lose.")] = "auto",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Import code the ensemble or --attack names.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar and no table.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Attack an ensemble on a data set and print what is left of its accuracy, with a 95 % interval.

    Example: `recarc evaluate my-ensemble --data cifar10 --eps 8/255 --attack arc --limit 1000 --out runs/arc`

    On several GPUs: `torchrun --nproc-per-node=4 -m recarc evaluate ... --out runs/arc`
    """
    knobs: dict[str, Any] = {
        "preset": preset,
        "steps": steps,
        "step_size": None if step_size is None else number("--step-size", step_size),
        "planes": planes,
        "loss": loss,
        "random_init": random_init,
        "seed": seed,
        **assignments("--knob", "NAME=VALUE", knob or []),
    }
    radius, valid, batch = number("--eps", eps), parsed_box(box), size("--batch-size", batch_size)
    probabilities = None if alpha is None else numbers("--alpha", alpha)

    import recarc
    from recarc.data import load
    from recarc.evaluation.checks import heard
    from recarc.runtime import use_device

    method = attack_named(attack, restarts, trust_code=trust_code, **knobs)
    ball = recarc.Ball(norm, radius, valid)
    rec = recarc.load_ensemble(ensemble, use_device(device), allow_factories=trust_code)
    if probabilities is not None:
        rec = rec.with_alpha(probabilities)
    images = load(data, split, data_dir=data_dir, limit=limit)
    with heard():
        _compare_norms(ensemble, ball)
        result = recarc.evaluate(
            rec,
            method,
            images,
            ball,
            batch_size=batch,
            shard_size=size("--shard-size", shard_size),
            out=out,
            resume=resume,
            progress=not quiet,
            save_inputs=save_inputs,
            precision=precision,
        )
    from recarc.runtime import first_process

    if not first_process():
        return
    if json_:
        print_json(summary(result))
    elif not quiet:
        print_evaluation(result)


def _compare_norms(ensemble: Path, ball: Any) -> None:
    """A word where the members were trained for another norm than they are attacked in."""
    from recarc.evaluation.checks import warn
    from recarc.models.manifest import read_manifest
    from recarc.zoo import resolved

    trained = read_manifest(resolved(ensemble)).made_by.get("norm")
    if trained is not None and trained != str(ball.norm):
        warn(f"the members were trained in {trained} and are attacked in {ball.norm}: did you mean --norm {trained}?")
