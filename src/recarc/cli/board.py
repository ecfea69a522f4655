"""`recarc board`: the board of randomized ensembles, and entries by others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from recarc.cli import options
from recarc.cli.output import percent, print_json, print_line, print_table

board = typer.Typer(name="board", help="Does randomizing help? One row per ensemble.", no_args_is_help=True)
BoardOption = Annotated[Path, typer.Option("--board", help="The board's file.")]
NewBoardOption = Annotated[Path, typer.Option("--board", help="The board's file; made if there is none.")]
FILE = Path("board.json")


@board.command("add")
def add(
    run: Annotated[Path, typer.Argument(help="A run folder of `recarc evaluate --attack tight`, or a folder of runs.")],
    ensemble: Annotated[
        Path | None, typer.Option(help="The ensemble folder, if it is no longer where the run's command had it.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Name of the method; by default that of its training.")] = None,
    alpha_by: Annotated[
        str | None, typer.Option(help="How alpha was chosen, if not by training, such as 'osp, held-out images'.")
    ] = None,
    again: Annotated[int, typer.Option(help="Samples to attack again, 64 or more.")] = 64,
    replacing: Annotated[
        bool, typer.Option("--replace", help="Take the place of the row of the same name, though its weights differ.")
    ] = False,
    board_file: NewBoardOption = FILE,
    data_dir: options.DataDirOption = None,
    device: options.DeviceOption = "auto",
    trust_code: options.TrustCodeOption = False,
    json_: options.JsonOption = False,
) -> None:
    """Check an ensemble and its run, and add its row to the board; or say in one line why not.

    A run of `recarc evaluate --average` or `--vote` belongs to the rows of the same members, and is added to them.

    The weights must be those of the run. Saved inputs (`--save-inputs`) are judged again in float32, and samples drawn
    now are attacked again.

    Example: `recarc board add runs/mine --board board.json`
    """
    from recarc.board.boards import Board, add_row
    from recarc.board.entry import check_entry, tight_runs
    from recarc.board.rivals import Rival, add_rival, lost_rivals
    from recarc.board.rows import in_words
    from recarc.runtime import use_device

    before = Board.read(board_file)
    found = check_entry(
        run,
        before,
        ensemble,
        method,
        data_dir,
        device=use_device(device),
        again=again,
        alpha_by=alpha_by,
        trust_code=trust_code,
        replacing=replacing,
    )
    content = add_rival(board_file, found) if isinstance(found, Rival) else add_row(board_file, found, replacing)
    names = [row.name for row in found.rows] if isinstance(found, Rival) else [found.name]
    changed = [row for row in content.rows if row.name in names]
    notes = [note for row in changed if (note := lost_rivals(before, row))]
    if not isinstance(found, Rival) and any(row.name == found.name for row in before.rows):
        notes.append("it took the place of the row of this name")
    if others := [str(other.evaluation.path or other.name) for other in tight_runs(run)[1:]]:
        notes.append(f"not added, as one run is added at a time: {', '.join(others)}")
    rows = len(content.rows)
    if json_:
        shown = [asdict(row) for row in changed]
        print_json({"board": str(board_file), "rows": rows, "changed": shown, "notes": notes})
        return
    for row in changed:
        line = f"{percent(row.tight['value'])} %, {row.gain_text} points over its best member alone; {row.verdict_text}"
        known = row.provenance
        if isinstance(found, Rival):
            known = row.rivals[found.name]
            line = f"{found.name} {percent(getattr(row, found.name))} %, drawn {percent(row.tight['value'])} %"
            signals = row.rival_signals(found.name)
            line += f"; signals of masked gradients: {in_words(signals)}" if signals else ""
        print_line(f"{row.name}: {line}")
        for what, said in known["checked"].items():
            print_line(f"{what.replace('_', ' ')}: {said}")
    for note in notes:
        print_line(note)
    print_line(f"{board_file}: {rows} {'row' if rows == 1 else 'rows'}")


@board.command("show")
def show(
    board_file: BoardOption = FILE,
    page: Annotated[Path | None, typer.Option(help="Also write the board as a static page.")] = None,
    json_: options.JsonOption = False,
) -> None:
    """Print the board, and the answer to its question.

    Example: `recarc board show --board paper/results/board.json --page board.html`
    """
    from recarc.board.answer import answer, remarks
    from recarc.board.boards import Board
    from recarc.board.page import write_board
    from recarc.errors import InputError

    if not board_file.exists():
        raise InputError(f"{board_file} does not exist; `recarc board add RUN` makes it")
    content = Board.read(board_file)
    if page is not None:
        write_board(content, page)
    if json_:
        print_json(
            {
                **asdict(content),
                "rows": [
                    {
                        "name": row.name,
                        **asdict(row),
                        "epochs": row.epochs,
                        "joint_interval": row.joint_interval,
                        "one_network": one.name if (one := content.single(row)) else None,
                    }
                    for row in content.rows
                ],
                "answer": answer(content),
                "remarks": remarks(content),
                "page": None if page is None else str(page),
            }
        )
        return
    head = ["ensemble", "clean", "AdaptivePGD", "ARC", "tight", "floor", "best member", "gain", "most", "P(R)"]
    rows = [
        [
            row.name,
            *(percent(v) for v in (row.clean, row.adaptive_pgd, row.arc, row.tight["value"], row.floor)),
            percent(row.best_member),
            row.gain_text if row.members > 1 else "",
            row.most_text,
            row.joint_text,
            *(row.rival_text(name) for name in ("vote", "average")),
            percent(one.tight["value"]) if (one := content.single(row)) else "",
            row.verdict_text,
        ]
        for row in content.rows
    ]
    print_table([*head, "vote", "average", "one network", "verdict"], rows)
    for line in [answer(content), *remarks(content)]:
        print_line(line)
    if page is not None:
        print_line(f"{page}: open it in a browser")
