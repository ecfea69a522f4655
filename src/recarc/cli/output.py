"""Results for people (tables on standard output) and for machines (one JSON object)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from recarc.evaluation import Evaluation


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, allow_nan=False))


def print_entry(name: str, title: str, detail: str) -> None:
    """One entry of a list: a line that names it, and below it what is to be known, whole on any terminal."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    console.print(Text.assemble((name, "bold"), f"  {title}"))
    console.print(Padding(Text(detail, overflow="fold"), (0, 0, 0, 4)))


def summary(result: Evaluation) -> dict[str, Any]:
    """What --json prints of a run: its figures, and the verdict where it has one."""
    if result.alone is None:
        return result.to_json()
    from recarc.evaluation import Verdict

    return {**result.to_json(), "verdict": Verdict.of(result).to_json()}


def print_evaluation(result: Evaluation) -> None:
    """Figures with their intervals, then the members."""
    from rich.console import Console

    console = Console()
    console.print(_headline(result))
    console.print(_members(result))
    if result.stages:
        console.print(_stages(result))
    if result.alone is not None:
        from recarc.evaluation import Verdict

        console.print(Verdict.of(result).sentence, soft_wrap=True)
    nan = result.nan_samples
    if len(nan):
        console.print(f"NaN logits on {len(nan)} samples, counted as wrong; first: {nan[:10].tolist()}")


def _headline(result: Evaluation) -> Table:
    from rich.markup import escape
    from rich.table import Table

    from recarc.evaluation.fingerprint import attack_text, eps_text

    ball, told = result.configuration.get("ball", {}), result.configuration.get("data", {})
    attack = result.configuration.get("attack")
    table = Table.grid(padding=(0, 2))
    split = f" {told['split']}" if told.get("split") else ""
    count = (
        f"{len(result)} samples" if result.complete else f"{len(result)} of {result.expected_samples} samples so far"
    )
    table.add_row("data", f"{told.get('name')}{split}, {count}")
    table.add_row("attack", escape(attack_text(attack)))
    table.add_row("ball", f"{ball.get('norm')}, eps {eps_text(ball.get('eps'))}")
    table.add_row("clean accuracy", str(result.clean))
    table.add_row("robust accuracy", f"[bold]{result.robust}[/bold]")
    if result.floor is not None:
        table.add_row("floor", f"{100 * result.floor:.2f} %, a gap of {gap(result):.2f} points")
    passes = f"{result.forward_passes:,} forward and {result.backward_passes:,} backward sample-passes"
    table.add_row("cost", f"{result.seconds:.1f} s, {passes}")
    return table


def gap(result: Evaluation) -> float:
    return 100 * (result.robust_accuracy - (result.floor or 0.0))


def _members(result: Evaluation) -> Table:
    from rich.table import Table

    table = Table("member", "alpha", "clean %", "under attack %")
    if result.alone is not None:
        table.add_column("alone %")
    for i, member in enumerate(result.to_json()["members"]):
        row = [str(i + 1), f"{member['alpha']:.4g}"]
        row += [f"{100 * member[key]:.2f}" for key in ("clean_accuracy", "robust_accuracy")]
        if "robust_alone" in member:
            row.append(f"{100 * member['robust_alone']:.2f}")
        table.add_row(*row)
    return table


def _stages(result: Evaluation) -> Table:
    from rich.table import Table

    table = Table("stage", "accuracy %", "decided")
    decided = result.to_json()["decided_by"]
    for name, found in result.stage_accuracies.items():
        table.add_row(name, f"{100 * found.value:.2f}", str(decided.get(name, "")))
    return table
