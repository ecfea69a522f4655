"""`recarc theory`: the paper's picture of why adaptive PGD stalls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli import options
from recarc.cli.output import print_json


def theory(
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")] = Path("theory.png"),
    json_: options.JsonOption = False,
) -> None:
    """Draw linear members in the plane: the ball, the path on which AdaptivePGD stalls, ARC's point, the optimum.

    Example: `recarc theory --out theory.svg`
    """
    from recarc.report.plane import THREE, TWO, solved, write_plane

    picture = write_plane(out)
    accuracies = {plane.title: solved(plane).accuracy for plane in (TWO, THREE)}
    if json_:
        print_json({"picture": str(picture), "expected_accuracy": accuracies})
        return
    for title, accuracy in accuracies.items():
        print(f"{title}: expected accuracy after " + ", ".join(f"{k} {100 * v:.0f} %" for k, v in accuracy.items()))
    print(f"drawn in {picture}")
