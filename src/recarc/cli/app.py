"""All commands together, and what happens when one fails."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any, TextIO

import typer

import recarc
from recarc.cli.alpha import alpha
from recarc.cli.data import data
from recarc.cli.demo import demo
from recarc.cli.evaluate import evaluate
from recarc.cli.import_ import import_
from recarc.cli.report import report
from recarc.cli.show import show
from recarc.cli.sweep import sweep
from recarc.cli.theory import theory
from recarc.cli.train import train
from recarc.cli.zoo import zoo
from recarc.errors import InputError

COMMANDS: dict[str, Callable[..., None]] = {
    "alpha": alpha,
    "demo": demo,
    "evaluate": evaluate,
    "import": import_,
    "report": report,
    "show": show,
    "sweep": sweep,
    "theory": theory,
    "train": train,
}

app = typer.Typer(
    help="How robust is a randomized ensemble of classifiers, really?",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


class Failed(Exception):
    """Carries a failure out of the command-line library, which has its own idea of Ctrl-C."""

    def __init__(self, code: int) -> None:
        self.code = code


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def inner(*args: Any, **kwargs: Any) -> None:
        try:
            with working_folder_importable() if kwargs.get("trust_code") else nullcontext():
                command(*args, **kwargs)
        except KeyboardInterrupt:
            hint = "; with a run folder (--out), the same command goes on where it stopped" if "out" in kwargs else ""
            tell(f"interrupted{hint}")
            raise Failed(3) from None
        except InputError as error:
            tell(f"error: {error}")
            raise Failed(2) from error
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            name = "" if type(error).__name__ in ("RunError", "AttackViolation") else f"{type(error).__name__}: "
            tell(f"error: {name}{' '.join(str(error).split())}")
            raise Failed(1) from error

    return inner


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """As for `python script.py`, whose own modules lie beside it; after everything installed."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def tell(text: str) -> None:
    """One line on standard error, with the rank where there are several."""
    rank = f"[rank {os.environ['RANK']}] " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"{rank}{text}", file=sys.stderr, flush=True)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"recarc {recarc.__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Tracebacks of errors; valid after a command too.")
    ] = False,
) -> None:
    pass


for name, command in COMMANDS.items():
    app.command(name)(guarded(command))
for group in (data, zoo):
    for entry in group.registered_commands:
        assert entry.callback is not None
        entry.callback = guarded(entry.callback)
    app.add_typer(group)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if category.__name__ == "RecarcWarning":
        tell(f"warning: {message}")
    else:
        tell(warnings.formatwarning(message, category, filename, lineno).rstrip())


def run(arguments: Sequence[str], program: typer.Typer = app, name: str = "recarc") -> int:
    """The exit code of a command line of this or another program whose commands are `guarded`."""
    verbose = "--verbose" in arguments
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            program(["--verbose"] * verbose + [a for a in arguments if a != "--verbose"], prog_name=name)
        except Failed as failed:
            if verbose and failed.__cause__ is not None:
                traceback.print_exception(failed.__cause__)
            return failed.code
        except KeyboardInterrupt:
            return 3
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
    return 0
