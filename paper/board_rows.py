"""`python -m paper.board_rows [NAME ...] [--device cuda]`: attack the board's ensembles again, and add their rows.

NAME is the beginning of a row's name, such as `IAT, linf`; without one, every row is made. The average and the vote of
the members are attacked where the board has no record of them. What was finished before is taken from its folder.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from paper.setup import HERE
from recarc.board import Board, Row
from recarc.cli.app import guarded, run
from recarc.cli.output import print_note
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError, unknown
from recarc.evaluation.fingerprint import eps_text
from recarc.models import load_ensemble, save_ensemble

BOARD, RUNS = HERE / "results" / "board.json", Path("reproduce/board")
OSP, PROGRAM = "osp, held-out images", "program, held-out images"


@dataclass(frozen=True)
class Source:
    """The ensemble of a row: a folder or zoo:NAME, or its first members, which took a `share` of its training."""

    ensemble: str
    members: int | None = None
    share: float = 1.0
    alpha: str = ""  # as on the command line; empty: the folder's
    alpha_by: str = ""


def _kept(name: str, members: int | None = None, share: float = 1.0, **alpha: str) -> Source:
    return Source(f"paper/ensembles/{name}-fast", members, share, **alpha)


# Members of IAT take the same time each. A step of MRBoost takes 10 passes through every member so far, and one update.
TWO_OF_THREE = (11 + 21) / (11 + 21 + 31)
MRBOOST, BARRE = "mrboost-cifar10-resnet20-", "barre-cifar10-resnet20-"
DVERGE = Source("dverge")  # the public checkpoint after `recarc import dverge epoch_200.pth --out dverge`
ADP, GAL, TRS = (_kept(f"{name}-cifar10-resnet20-linf") for name in ("adp", "gal", "trs"))
LINF = {
    "AT, linf, M = 1, alpha uniform": Source("zoo:at-resnet20-linf"),
    "AT, width 28, linf, M = 1, alpha uniform": _kept("at-width28-cifar10-resnet20-linf"),
    "IAT, linf, M = 3, alpha uniform": _kept("iat3-cifar10-resnet20-linf"),
    "IAT, linf, M = 4, alpha uniform": _kept("iat4-cifar10-resnet20-linf"),
    "IAT, width 8, linf, M = 4, alpha uniform": _kept("iat4-width8-cifar10-resnet20-linf"),
    "BAT, linf, M = 2, alpha 0.9, 0.1": Source("zoo:bat-resnet20-linf"),
    "MRBoost, linf, M = 2, alpha uniform": _kept(MRBOOST + "linf", 2, TWO_OF_THREE),
    "MRBoost, linf, M = 3, alpha uniform": _kept(MRBOOST + "linf"),
    "MRBoost, linf, M = 3, alpha 0.269, 0.357, 0.374": _kept(
        MRBOOST + "linf", alpha="0.2691,0.3572,0.3737", alpha_by=OSP
    ),
    "MRBoost, linf, M = 3, alpha 0, 0.5, 0.5": _kept(MRBOOST + "linf", alpha="0,0.5,0.5", alpha_by=PROGRAM),
    "BARRE, linf, M = 3, alpha 0.309, 0.345, 0.346": _kept(BARRE + "linf"),
    "BARRE, linf, M = 4, alpha 0.212, 0.26, 0.268, 0.259": _kept("barre4-cifar10-resnet20-linf"),
    "ADP, linf, M = 3, alpha uniform": ADP,
    "GAL, linf, M = 3, alpha uniform": GAL,
    "DVERGE, linf, M = 3, alpha uniform": DVERGE,
    "TRS, linf, M = 3, alpha uniform": TRS,
    "Cover, 0.5, linf, M = 2, alpha uniform": _kept("cover2-0.5-s0-cifar10-resnet20-linf"),
    "Tournament, 1, linf, M = 2, alpha uniform": _kept("tournament2-1-s0-cifar10-resnet20-linf"),
}
L2 = {
    "AT, l2, M = 1, alpha uniform": Source("zoo:at-resnet20-l2"),
    "IAT, l2, M = 2, alpha uniform": _kept("iat8-cifar10-resnet20-l2", 2, 2 / 8),
    "IAT, l2, M = 3, alpha uniform": _kept("iat8-cifar10-resnet20-l2", 3, 3 / 8),
    "IAT, l2, M = 8, alpha uniform": _kept("iat8-cifar10-resnet20-l2"),
    "BAT, l2, M = 2, alpha 0.9, 0.1": Source("zoo:bat-resnet20-l2"),
    "MRBoost, l2, M = 2, alpha uniform": _kept(MRBOOST + "l2", 2, TWO_OF_THREE),
    "MRBoost, l2, M = 3, alpha uniform": _kept(MRBOOST + "l2"),
    "BARRE, l2, M = 3, alpha 0.339, 0.323, 0.338": _kept(BARRE + "l2"),
    "ADP, l2, M = 3, alpha uniform": ADP,
    "GAL, l2, M = 3, alpha uniform": GAL,
    "DVERGE, l2, M = 3, alpha uniform": DVERGE,
    "TRS, l2, M = 3, alpha uniform": TRS,
}
SEEDS = {  # of members trained three times
    f"{kind}, linf, M = 2, alpha uniform, seed {seed}": _kept(f"{folder}-s{seed}-cifar10-resnet20-linf")
    for kind, folder in (("IAT", "iat2"), ("JAT, 0.5", "jat2-share0.5"))
    for seed in (0, 10, 20)
}
ROWS = {f"{kind}, seed 0": source for kind, source in (LINF | L2).items()} | SEEDS


def named(beginnings: list[str]) -> list[str]:
    """The rows whose names begin so; all of them without a beginning."""
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in ROWS):
            raise unknown("row of the board", beginning, ROWS)
    return [name for name in ROWS if not beginnings or name.startswith(tuple(beginnings))]


def folder_of(source: Source, home: Path) -> str:
    """Where the ensemble of a row lies; first members are put into a folder of their own."""
    if source.members is None:
        return source.ensemble
    whole = load_ensemble(source.ensemble)
    made_by = {key: value for key, value in whole.made_by.items() if key != "curve"}
    made_by |= {"members": source.members, "seconds": made_by["seconds"] * source.share}
    first = RandomizedEnsemble(whole.members[: source.members])
    return str(save_ensemble(first, home / "ensemble", made_by=made_by, overwrite=True))


def commands(name: str, source: Source, file: Path, runs: Path, device: str) -> Iterator[list[str]]:
    """The commands of recarc that attack an ensemble and add its row, then those for its average and its vote."""
    board, home = Board.read(file), runs / re.sub(r"[^\w.]+", "-", name).lower()
    norm = next(norm for norm in board.eps if f", {norm}, " in name)
    folder, where = folder_of(source, home), ["--board", str(file), "--device", device]
    attack = ["evaluate", folder, "--data", board.data, "--norm", norm, "--eps", eps_text(board.eps[norm])]
    attack += ["--attack", "tight", "--device", device, "--save-inputs", "--quiet"]
    alpha = ["--alpha", source.alpha] if source.alpha else []
    yield [*attack, *alpha, "--out", str(home / "drawn")]
    by = ["--alpha-by", source.alpha_by] if source.alpha_by else []
    yield ["board", "add", str(home / "drawn"), *where, *by, "--replace"]  # members may have been trained again
    rows = {row.name: row for row in Board.read(file).rows}
    if name not in rows:
        raise InputError(f"{folder} became another row than {name}: correct its entry in paper/board_rows.py")
    for rival in lacking(rows[name]):
        yield [*attack, *alpha, f"--{rival}", "--out", str(home / rival)]
        yield ["board", "add", str(home / rival), *where]


def lacking(row: Row) -> list[str]:
    """The rivals of a row that the board does not hold sample by sample."""
    return [] if row.drawn < 2 else [name for name in ("average", "vote") if "kept" not in row.rivals.get(name, {})]


def measure(names: list[str], file: Path = BOARD, runs: Path = RUNS, device: str = "auto") -> int:
    """Run the commands of these rows. A row that fails does not keep the others back; the exit code is the first such.

    An interruption (3) ends it.
    """
    failed = 0
    for name in names:
        code = 0
        try:
            for words in commands(name, ROWS[name], file, runs, device):
                if code := run(words):
                    break
        except InputError as error:
            print_note(f"error: {error}")
            code = 2
        if code == 3:
            return code
        if code:
            print_note(f"{name}: not measured")
        failed = failed or code
    return failed


def board_rows(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME ...]", help="How names of rows begin.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Attack ensembles of the board again, and add their rows.

    Example: `python -m paper.board_rows 'IAT, linf' 'JAT' --device cuda`
    """
    if code := measure(named(names or []), device=device):
        raise SystemExit(code)


def main(arguments: list[str]) -> int:
    """The exit code: 0 done, 2 bad input, 3 interrupted and resumable, 1 anything else."""
    return run(arguments, app, "python -m paper.board_rows")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
app.command()(guarded(board_rows))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
