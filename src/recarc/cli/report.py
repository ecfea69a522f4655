"""`recarc report`: a page to look at, from run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli.output import print_json


def report(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them such as one of `recarc sweep`.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its heading.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder for figures as PDF, SVG and PNG.")] = None,
    tables: Annotated[Path | None, typer.Option(help="A folder for tables as LaTeX (booktabs) and Markdown.")] = None,
    ensemble: Annotated[str, typer.Option(help="Its folder, for the commands that repeat the runs.")] = "ENSEMBLE",
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set's files are, for the pictures.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Put runs together on one self-contained HTML page: the verdict, every attack, sweeps, members, pictures.

    Example: `recarc report runs/tight runs/adaptive_pgd runs/arc --out report.html --tables tables`

    Pictures need runs made with --save-inputs.
    """
    from recarc.report import build_report, load_runs, write_figures, write_page, write_tables

    made = build_report(load_runs(run), title, data_dir, ensemble=ensemble)
    page = write_page(made, out)
    drawn = [] if figures is None else write_figures(made, figures)
    written = [] if tables is None else write_tables(made, tables)
    if json_:
        verdict = None if made.verdict is None else made.verdict.to_json()
        rows = {row.name: row.estimate.value for row in made.rows}
        files = {"figures": [str(f) for f in drawn], "tables": [str(f) for f in written]}
        print_json({"page": str(page), "runs": len(made.runs), "attacks": rows, "verdict": verdict, **files})
        return
    if made.verdict is not None:
        print("; ".join(f"{name} {said}" for name, said in made.facts))
        print(made.verdict.sentence)
    for note in made.notes:
        print(note)
    print(f"{page}: {len(made.runs)} runs, {page.stat().st_size / 1024:.0f} kB; open it in a browser")
    if drawn or written:
        print(f"{len(drawn)} figures and {len(written)} tables")
