"""All commands, and what happens when one of them fails."""

from __future__ import annotations

import functools
import os
import signal
import sys
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

import recarc
from recarc.cli.alpha import alpha
from recarc.cli.board import board
from recarc.cli.certify import certify
from recarc.cli.data import data
from recarc.cli.demo import demo
from recarc.cli.ensembles import import_, zoo
from recarc.cli.evaluate import evaluate
from recarc.cli.output import print_line, print_note
from recarc.cli.report import compare, report, show, theory
from recarc.cli.sweep import sweep
from recarc.cli.train import train
from recarc.errors import AttackViolation, InputError, Interrupted, RecarcWarning, RunError
from recarc.provenance import started_by

COMMANDS: dict[str, Callable[..., None]] = {
    "alpha": alpha,
    "certify": certify,
    "compare": compare,
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


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def inner(*args: Any, **kwargs: Any) -> None:
        try:
            with working_folder_importable() if kwargs.get("trust_code") else nullcontext():
                command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            raise Interrupted(str(stop)) from None  # the command-line library would handle Ctrl-C itself

    return inner


@contextmanager
def working_folder_importable() -> Iterator[None]:
    """Find modules in the working folder, as `python script.py` does beside the script; installed ones come first."""
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """SIGTERM, as schedulers send it, ends a command like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"recarc {recarc.__version__}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print tracebacks of errors; also allowed after a command.")
    ] = False,
) -> None:
    pass


for name, command in COMMANDS.items():
    app.command(name)(guarded(command))
for group in (board, data, zoo):
    for entry in group.registered_commands:
        assert entry.callback is not None
        entry.callback = guarded(entry.callback)
    app.add_typer(group)


def run(arguments: Sequence[str], program: typer.Typer = app, name: str = "recarc") -> int:
    """Run a command line, of this program or of another one whose commands are `guarded`; return its exit code."""
    verbose = "--verbose" in arguments
    words = [word for word in arguments if word != "--verbose"]
    try:
        with warnings.catch_warnings(), sigterm_interrupts(), started_by([*name.split(), *words]):
            warnings.showwarning = _show_warning
            code = program(["--verbose"] * verbose + words, prog_name=name, standalone_mode=False)
            return code if isinstance(code, int) else 0
    except (Interrupted, KeyboardInterrupt) as stop:
        print_note(str(stop) or "interrupted")
        return 3
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except Exception as error:
        if hasattr(error, "format_message"):  # of the command-line library, whichever its version
            return refused(error)
        if isinstance(error, PermissionError) and error.filename:
            error = InputError(f"{error.filename} cannot be read or written: permission denied")
        known = isinstance(error, (InputError, RunError, AttackViolation))
        kind, place = ("", "") if known else (f"{type(error).__name__}: ", own_line(error))
        print_note(f"error: {kind}{' '.join(str(error).split())}{place}")
        if verbose:
            traceback.print_exception(error)
        return 2 if isinstance(error, InputError) else 1


def refused(error: Any) -> int:
    """One line on what cannot be understood of a command; only where all of it is missing, the help."""
    message, context = " ".join(error.format_message().split()).rstrip("."), getattr(error, "ctx", None)
    if context is None or type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        see = " See" if message.endswith("?") else "; see"
        print_note(f"error: {message[:1].lower()}{message[1:]}{see} {context.command_path} --help")
    return int(error.exit_code)


def own_line(error: BaseException) -> str:
    """Where an unforeseen error was last in code of the user's own, neither ours nor an installed package's."""
    others = (str(Path(recarc.__file__).parent), sysconfig.get_path("stdlib"), "<")
    places = traceback.extract_tb(error.__traceback__)
    own = [p for p in places if "site-packages" not in p.filename and not p.filename.startswith(others)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno}; --verbose shows the way there)" if own else ""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, RecarcWarning):
        print_note(f"warning: {message}")
    else:
        for text in warnings.formatwarning(message, category, filename, lineno).rstrip().splitlines():
            print_note(text)
