"""`recarc show`: the figures of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli import options
from recarc.cli.options import numbers
from recarc.cli.output import print_evaluation, print_json, summary
from recarc.errors import printable


def show(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")],
    alpha: Annotated[
        str | None, typer.Option(help="Also score the saved inputs at other probabilities, such as 0.5,0.5.")
    ] = None,
    json_: options.JsonOption = False,
) -> None:
    """Print the figures of a run again, recomputed from its per-sample records.

    Example: `recarc show runs/arc --alpha 0.5,0.5`
    """
    probabilities = None if alpha is None else numbers("--alpha", alpha)
    from recarc.evaluation import Evaluation

    result = Evaluation.load(run, partial=True)
    rescored = None if probabilities is None else result.robust_at(probabilities)
    if json_:
        bound = {} if rescored is None else {"alpha": probabilities, "robust_upper_bound": rescored.value}
        print_json({**summary(result), **({"rescored": bound} if bound else {})})
        return
    print_evaluation(result)
    for text in result.warnings:
        print(f"warning: {printable(text)}")
    if rescored is not None:
        print(f"at alpha {alpha}: {rescored}")
