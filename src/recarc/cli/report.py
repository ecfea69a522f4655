"""`recarc report`: one HTML page from run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli import options
from recarc.cli.output import print_json


def report(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them such as that of `recarc sweep`.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder for figures as PDF, SVG and PNG.")] = None,
    tables: Annotated[Path | None, typer.Option(help="A folder for tables as LaTeX (booktabs) and Markdown.")] = None,
    ensemble: Annotated[
        str, typer.Option(help="Folder of the ensemble, for the lines that repeat runs started from Python.")
    ] = "ENSEMBLE",
    data_dir: options.DataDirOption = None,
    json_: options.JsonOption = False,
) -> None:
    """Combine runs on one self-contained HTML page: verdict, attacks, sweeps, members, pictures.

    Example: `recarc report runs/tight runs/adaptive_pgd runs/arc --out report.html --tables tables`

    Pictures need runs made with --save-inputs.
    """
    from recarc.report import build_report, load_runs, write_figures, write_page, write_tables
    from recarc.training.progress import counted

    content = build_report(load_runs(run), title, data_dir, ensemble=ensemble)
    page = write_page(content, out)
    drawn = [] if figures is None else write_figures(content, figures)
    written = [] if tables is None else write_tables(content, tables)
    if json_:
        verdict = None if content.verdict is None else content.verdict.to_json()
        rows = {row.name: row.estimate.value for row in content.rows}
        files = {"figures": [str(f) for f in drawn], "tables": [str(f) for f in written]}
        print_json({"page": str(page), "runs": len(content.runs), "attacks": rows, "verdict": verdict, **files})
        return
    if content.verdict is not None:
        print("; ".join(f"{name} {value}" for name, value in content.facts))
        print(content.verdict.sentence)
    for note in content.notes:
        print(note)
    print(f"{page}: {counted(len(content.runs), 'run')}, {page.stat().st_size / 1024:.0f} kB; open it in a browser")
    if drawn or written:
        print(f"{counted(len(drawn), 'figure')} and {counted(len(written), 'table')}")
