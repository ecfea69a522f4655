"""Benchmarks: `python -m paper bench attacks|scaling|training`. They only time; accuracies come from `evaluate`.

Each writes one results file, in the format of the tables and figures, from which docs/performance.md is rendered.
"""

from __future__ import annotations

import typer

from recarc.cli.app import guarded

app = typer.Typer(
    help="Time attacks and training against the usual code.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _global(verbose: bool = typer.Option(False, "--verbose", help="Tracebacks of errors.")) -> None:
    pass


def _register() -> None:
    from paper.bench.attacks import attacks
    from paper.bench.scaling import scaling
    from paper.bench.training import training

    for command in (attacks, scaling, training):
        app.command()(guarded(command))


_register()
