"""`recarc report`, `compare`, `show` and `theory`: a page and tables from run folders, and the paper's picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recarc.cli import options
from recarc.cli.output import print_evaluation, print_json, print_line, print_table, summary
from recarc.errors import InputError

RunsArgument = Annotated[
    list[str],
    typer.Argument(
        help="Run folders, or folders of them such as that of `recarc sweep`; NAME=RUN gives the ensemble a name."
    ),
]


def compare(
    run: RunsArgument,
    against: Annotated[
        str | None, typer.Option(help="The ensemble that the others are compared with (default: the first).")
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print the table for LaTeX (booktabs).")] = False,
    figure: Annotated[Path | None, typer.Option(help="A forest plot to write: .svg, .pdf or .png.")] = None,
    out: Annotated[Path | None, typer.Option(help="A page to write, as `recarc report` does.")] = None,
    json_: options.JsonOption = False,
) -> None:
    """Compare ensembles on the samples that their runs share, with paired 95 % intervals of the differences.

    Example: `recarc compare BAT=runs/bat IAT=runs/iat MRBoost=runs/mrboost --figure forest.pdf --out compare.html`
    """
    from recarc.report import build_report, compare, load_runs, render
    from recarc.report.figures import FORMATS, drawn_bytes, forest_figure
    from recarc.report.writing import write_files

    kind = "" if figure is None else figure.suffix.removeprefix(".")
    if figure is not None and kind not in FORMATS:
        raise InputError(f"--figure is {figure}; its name must end in {', '.join('.' + k for k in FORMATS)}")
    runs = load_runs(run)
    found = compare(runs, against)
    files = {} if out is None else {out: render(build_report(runs)).encode()}
    if figure is not None:
        files[figure] = drawn_bytes(lambda: forest_figure(found), kind)
    written = write_files(files) if files else []
    if json_:
        print_json({**found.to_json(), "files": [str(file) for file in written]})
        return
    if latex:
        for line in found.to_latex().splitlines():
            print_line(line)
        return
    print_table(found.head, found.rows, found.caption)
    for text in (*found.sentences, *found.notes, *map(str, written)):
        print_line(text)


def report(
    run: RunsArgument,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder for figures as PDF, SVG and PNG.")] = None,
    tables: Annotated[Path | None, typer.Option(help="A folder for tables as LaTeX (booktabs) and Markdown.")] = None,
    data_dir: options.DataDirOption = None,
    json_: options.JsonOption = False,
) -> None:
    """Combine runs on one self-contained HTML page: verdict, attacks, sweeps, members, pictures.

    Example: `recarc report runs/tight runs/adaptive_pgd runs/arc --out report.html --tables tables`

    Pictures need runs made with --save-inputs.
    """
    from recarc.report import build_report, load_runs, render
    from recarc.report.figures import figure_files
    from recarc.report.writing import table_files, write_files
    from recarc.training.progress import counted

    content = build_report(load_runs(run), title, data_dir)
    drawn = {} if figures is None else figure_files(content, figures)
    written = {} if tables is None else table_files(content, tables)
    page, *_ = write_files({out: render(content).encode(), **drawn, **written})  # all of them or none
    if json_:
        verdict = None if content.verdict is None else content.verdict.to_json()
        rows = {row.name: row.estimate.value for row in content.rows}
        files = {"figures": [str(f) for f in drawn], "tables": [str(f) for f in written]}
        print_json({"page": str(page), "runs": len(content.runs), "attacks": rows, "verdict": verdict, **files})
        return
    if content.verdict is not None:
        print_line("; ".join(f"{name} {value}" for name, value in content.facts))
        print_line(content.verdict.sentence)
    for note in content.notes:
        print_line(note)
    print_line(
        f"{page}: {counted(len(content.runs), 'run')}, {page.stat().st_size / 1024:.0f} kB; open it in a browser"
    )
    if drawn or written:
        print_line(f"{counted(len(drawn), 'figure')} and {counted(len(written), 'table')}")


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
    probabilities = None if alpha is None else options.numbers("--alpha", alpha)
    from recarc.evaluation import Evaluation

    result = Evaluation.load(run, partial=True)
    rescored = None if probabilities is None else result.robust_at(probabilities)
    if json_:
        bound = {} if rescored is None else {"alpha": probabilities, "robust_upper_bound": rescored.value}
        print_json({**summary(result), **({"rescored": bound} if bound else {})})
        return
    print_evaluation(result)
    for text in result.warnings:
        print_line(f"warning: {text}")
    if rescored is not None:
        print_line(f"at alpha {alpha}: {rescored}")


def theory(
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .svg or .pdf.")] = Path("theory.png"),
    certificates: Annotated[
        bool, typer.Option("--certificates", help="Draw what a joint certificate is, instead.")
    ] = False,
    json_: options.JsonOption = False,
) -> None:
    """Draw linear members in the plane: the ball, the path on which AdaptivePGD stalls, ARC's point, the optimum.

    Example: `recarc theory --out theory.svg`

    With --certificates: two ReLU networks that are wrong in different places of the ball, and the bounds that prove it.
    """
    from recarc.report.plane import THREE, TWO, solved, write_picture, write_plane

    if certificates:
        from recarc.report import regions

        picture = write_picture(out, regions.draw_regions)
        drawn = {f"eps {eps:g}": regions.solved(eps) for eps in regions.RADII}
        accuracies = {name: {"certified": s.certified, "exact": s.exact} for name, s in drawn.items()}
    else:
        picture = write_plane(out)
        accuracies = {plane.title: solved(plane).accuracy for plane in (TWO, THREE)}
    if json_:
        print_json({"picture": str(picture), "expected_accuracy": accuracies})
        return
    for title, accuracy in accuracies.items():
        print_line(
            f"{title}: expected accuracy{'' if certificates else ' after'} "
            + ", ".join(f"{k} {100 * v:.0f} %" for k, v in accuracy.items())
        )
    print_line(f"drawn in {picture}")
