"""Results for people (tables on standard output), for machines (one JSON object), and notes on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from recarc.errors import printable

if TYPE_CHECKING:
    from recarc.evaluation import Evaluation


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, allow_nan=False))


def print_line(text: object) -> None:
    """One line on standard output, whatever the names in it contain."""
    print(printable(text))


def print_note(text: str) -> None:
    """One line on standard error; under torchrun it names the process."""
    rank = f"[rank {os.environ['RANK']}] " if int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    print(f"{rank}{printable(text)}", file=sys.stderr, flush=True)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """A table whose first column is text and whose others are numbers; a list where the terminal is too narrow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, head, rows = Console(), [printable(name) for name in head], [[*map(printable, row)] for row in rows]
    widths = _widths([list(column) for column in zip(head, *rows)], console.width - 3 * len(head) - 1)
    if widths is None:
        if title is not None:
            print_line(title)
        for name, *numbers in rows:
            print_entry(name, "", "; ".join(f"{what} {cell}" for what, cell in zip(head[1:], numbers) if cell))
        return
    table = Table(title=None if title is None else Text(printable(title)), title_justify="left")
    for k, (name, width) in enumerate(zip(head, widths)):
        table.add_column(Text(name), justify="right" if k else "left", width=width, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def _widths(columns: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Of columns that fit: as their longest cells, the widest narrowed as far as needed; None if that is too far.

    Cells break between words; only in the first column, names may be broken within.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in columns]
    words = [" ".join(column[:1] if k == 0 else column).split() for k, column in enumerate(columns)]
    least = [max(map(cell_len, found), default=1) for found in words]
    while sum(widths) > room:
        wide = [k for k in range(len(widths)) if widths[k] > least[k]]
        if not wide:
            return None
        widths[max(wide, key=lambda k: widths[k])] -= 1
    return widths


def print_entry(name: str, title: str, detail: str) -> None:
    """One entry of a list: a line that names it and, indented below, the details in full on any terminal."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    console.print(Text.assemble((printable(name), "bold"), printable(f"  {title}".rstrip())))
    console.print(Padding(Text(printable(detail), overflow="fold"), (0, 0, 0, 4)))


def percent(fraction: float) -> str:
    return f"{100 * fraction:.2f}"


def alpha_text(alpha: Iterable[float], digits: int = 3) -> str:
    """Sampling probabilities, separated by commas."""
    return ", ".join(f"{round(a, 6):.{digits}g}" for a in alpha)


def summary(result: Evaluation) -> dict[str, Any]:
    """What --json prints of a run: its figures, and the verdict if it has one."""
    if result.alone is None:
        return result.to_json()
    from recarc.evaluation import Verdict

    return {**result.to_json(), "verdict": Verdict.of(result).to_json()}


def print_evaluation(result: Evaluation) -> None:
    """The figures with their intervals, the members, the stages and the verdict."""
    _print_headline(result)
    members = result.to_json()["members"]
    columns = {"clean_accuracy": "clean %", "robust_accuracy": "under attack %"}
    columns |= {"robust_alone": "alone %"} if result.alone is not None else {}
    rows = [[str(i), f"{m['alpha']:.4g}", *(percent(m[c]) for c in columns if c in m)] for i, m in enumerate(members)]
    print_table(["member (from 0)", "alpha", *columns.values()], rows)
    if result.stages:
        decided = result.to_json()["decided_by"]
        stages = result.stage_accuracies.items()
        rows = [[name, percent(accuracy.value), str(decided.get(name, ""))] for name, accuracy in stages]
        print_table(["stage", "accuracy %", "samples decided"], rows)
    if result.alone is not None:
        from recarc.evaluation import Verdict

        print_line(Verdict.of(result).sentence)
    if len(nan := result.nan_samples):
        print_line(f"NaN logits on {len(nan)} samples, counted as wrong; the first: {nan[:10].tolist()}")


def _print_headline(result: Evaluation) -> None:
    from rich.console import Console
    from rich.table import Table

    from recarc.evaluation.fingerprint import attack_text, eps_text

    ball, data = result.configuration.get("ball", {}), result.configuration.get("data", {})
    split = f" {data['split']}" if data.get("split") else ""
    count = f"{len(result)}" if result.complete else f"{len(result)} of {result.expected_samples}"
    passes = f"{result.forward_passes:,} forward and {result.backward_passes:,} backward sample-passes"
    rows = {
        "data": _escaped(f"{data.get('name')}{split}, {count} samples{'' if result.complete else ' so far'}"),
        "attack": _escaped(attack_text(result.configuration.get("attack"))),
        "ball": _escaped(f"{ball.get('norm')}, eps {eps_text(ball.get('eps'))}"),
        "clean accuracy": str(result.clean),
        "robust accuracy": f"[bold]{result.robust}[/bold]",
    }
    if result.floor is not None:
        gap = 100 * (result.robust_accuracy - result.floor)
        rows["floor"] = f"{percent(result.floor)} %, a gap of {gap:.2f} points"
    if (certified := result.certified_floor) is not None:
        rows["certified floor"] = f"{percent(certified.mean)} %: no attack whatever leaves less"
    if result.challenge is not None:
        rows["challenge"] = _escaped(str(result.challenge))
    rows["cost"] = f"{result.seconds:.1f} s, {passes}"
    table = Table.grid(padding=(0, 2))
    for row in rows.items():
        table.add_row(*row)
    Console().print(table)


def _escaped(text: str) -> str:
    """A name that somebody chose, as it is: no markup, no control characters."""
    from rich.markup import escape

    return escape(printable(text))
