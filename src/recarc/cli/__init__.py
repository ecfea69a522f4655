"""The command line: each command is a thin wrapper around the library.

Exit codes: 0 done, 2 bad input, 3 interrupted and resumable, 1 anything else.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; errors are one line on standard error, a traceback only with --verbose."""
    from recarc.cli.app import run
    from recarc.cli.process import leave

    leave(run(sys.argv[1:]))


__all__ = ["main"]
