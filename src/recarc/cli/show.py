"""`recarc show`: what a run folder says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli.output import print_evaluation, print_json, summary
from recarc.cli.parsing import numbers


def show(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.")],
    alpha: Annotated[str | None, typer.Option(help="Also re-score at other probabilities, such as 0.5,0.5.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Print the figures of a run again, recomputed from its per-sample records.

    Example: `recarc show runs/arc --alpha 0.5,0.5`
    """
    probabilities = None if alpha is None else numbers("--alpha", alpha)
    from recarc.evaluation import Evaluation

    result = Evaluation.load(run, partial=True)
    other = None if probabilities is None else result.robust_at(probabilities)
    if json_:
        bound = None if other is None else {"alpha": probabilities, "robust_upper_bound": other.value}
        print_json({**summary(result), **({"rescored": bound} if bound else {})})
        return
    print_evaluation(result)
    for text in result.warnings:
        print(f"warning: {text}")
    if other is not None:
        print(f"at alpha {alpha}: {other}")
