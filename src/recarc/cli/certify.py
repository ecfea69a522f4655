"""`recarc certify`: the accuracy below which no attack whatever gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recarc.cli import options
from recarc.cli.options import number, numbers, size
from recarc.cli.output import percent, print_json, print_line, print_note, print_table

if TYPE_CHECKING:
    from recarc.evaluation.certification import Certification


def certify(
    ensemble: options.EnsembleArgument,
    data: options.DataOption,
    eps: options.EpsOption,
    norm: options.NormOption = "linf",
    method: Annotated[
        str, typer.Option(help="bounds (any network with bound rules), or exact (small ReLU networks, linf or l1).")
    ] = "bounds",
    steps: Annotated[int, typer.Option(help="Optimisation steps of the bounds' slopes.")] = 20,
    time_limit: Annotated[
        float, typer.Option(help="Seconds for each program of the exact method; then the set stays unknown.")
    ] = 60.0,
    alpha: options.AlphaOption = None,
    box: options.BoxOption = "0,1",
    split: options.SplitOption = "test",
    data_dir: options.DataDirOption = None,
    limit: options.LimitOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder, best that of `recarc evaluate`; rerun to resume.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume/--no-resume", help="Resume a certificate that --out holds.")] = True,
    device: options.DeviceOption = "auto",
    shard_size: Annotated[str, typer.Option(help="Samples per file of records.")] = "auto",
    trust_code: options.TrustCodeOption = False,
    quiet: options.QuietOption = False,
    json_: options.JsonOption = False,
) -> None:
    """Prove which members, and which sets of members together, no perturbation fools, and the floor that follows.

    Example: `recarc certify my-ensemble --data mnist --eps 0.1 --limit 1000 --out runs/mnist`

    With the --out of `recarc evaluate`, the verdict of that run counts the certificate: certified <= truth <= figure.
    """
    radius, valid, shard = number("--eps", eps), options.box(box), size("--shard-size", shard_size)
    probabilities = None if alpha is None else numbers("--alpha", alpha)

    import recarc
    from recarc.data import load
    from recarc.evaluation.certification import certify as certify_samples
    from recarc.evaluation.checks import collect_warnings
    from recarc.exact.certificate import Certificate
    from recarc.runtime import first_process, use_device

    certificate, ball = Certificate(method, steps, time_limit), recarc.Ball(norm, radius, valid)
    place = use_device("cpu" if method == "exact" and device == "auto" else device)
    rec = recarc.load_ensemble(ensemble, place, allow_factories=trust_code)
    if probabilities is not None:
        rec = rec.with_alpha(probabilities)
    images = load(data, split, data_dir=data_dir, limit=limit)
    with collect_warnings():
        found = certify_samples(
            rec, images, ball, certificate, out=out, resume=resume, progress=not quiet, shard_size=shard
        )
    if not first_process():
        return
    if json_:
        print_json(found.to_json())
    elif not quiet:
        print_certification(found)
    if out is None and not quiet:
        print_note(
            "the certificates were not kept; --out DIR keeps them, for the verdict of `recarc evaluate --out DIR`"
        )


def print_certification(found: Certification) -> None:
    """The members, the sets and what follows."""
    content = found.to_json()
    rows = [
        [str(i), f"{m['alpha']:.4g}", percent(m["clean_accuracy"]), percent(m["certified"])]
        for i, m in enumerate(content["members"])
    ]
    print_table(["member (from 0)", "alpha", "clean %", "certified %"], rows)
    sets = [[name, percent(share)] for name, share in content["sets"].items() if "+" in name]
    if sets:
        print_table(["members", "never wrong together %"], sets)
    print_line(found.sentence)
    if content["certificate"]["method"] == "exact":
        print_line(
            f"The optimum is known on {percent(found.solved)} % of {content['samples']} samples; "
            f"the worst points found leave {found.found}."
        )
