"""Errors a user can act on: one line that names the value, what was expected and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, found before any compute. The command line prints it as one line and exits with 2."""


class RunError(RuntimeError):
    """A run stopped for a reason outside it (disk full, memory); what was finished is kept."""


class Interrupted(RunError):
    """Stopped from outside; rerunning the command resumes. The command line exits with 3."""


class AttackViolation(RuntimeError):
    """An attack returned something it was not allowed to return."""


class RecarcWarning(UserWarning):
    """The evaluation continues, but its result may mislead."""


def unknown(kind: str, name: object, known: Iterable[str], own: str = "") -> InputError:
    """The error for an unknown name: lists the known ones, suggests the nearest, and says how to name one's `own`."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    yours = f"; your own is module:{own}, with --trust-code" if own and "." in str(name) else ""
    return InputError(f"unknown {kind} {name!r}{hint}; known: {', '.join(names)}{yours}")


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__


def printable(text: object) -> str:
    """Text for one line of a terminal: control characters, by which a name could fake another line, are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(text))


def spreadsheet_cell(value: object) -> object:
    """A cell of a CSV file: text that a spreadsheet would run as a formula is marked as text by an apostrophe."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(tuple("=+-@＝＋－＠")) else text
