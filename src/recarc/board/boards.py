"""The board: rows on one data set, its file, and how its rows compare."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from recarc.atomic import Lock, read_plain, write_bytes
from recarc.board.kinds import Kind, Over, mean, paired_difference
from recarc.board.rows import Place, Row, check_row, number
from recarc.errors import InputError, first_line
from recarc.evaluation.intervals import holm, p_value

FORMAT = 1  # boards of older date hold a vote without a run of its own: scored where other attacks ended, not read
EPS = {"linf": 8 / 255, "l2": 128 / 255}  # the problems of a new board
RIVAL = "IAT"  # independently trained members: what other methods must beat


@dataclass(frozen=True)
class Board:
    """Rows on one data set, one radius per norm."""

    data: str = "cifar10"
    split: str = "test"
    eps: dict[str, float] = field(default_factory=lambda: dict(EPS))
    rows: tuple[Row, ...] = ()
    again: str = ""  # a command that makes a row again from its name, which follows it

    @classmethod
    def read(cls, path: str | Path) -> Board:
        """A board file; an empty board if there is none."""
        try:
            document = json.loads(read_plain(Path(path)))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"{path} cannot be read ({first_line(error)}); restore it or start another board"
            ) from None
        try:
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']!r}, expected {FORMAT}")
            names = {f.name for f in fields(Row)}
            rows = tuple(Row(**{key: row[key] for key in names & set(row)}) for row in document["rows"])
            for row in rows:
                check_row(row)
            if len({row.name for row in rows}) < len(rows):
                raise ValueError("two rows have the same name")
            rows = tuple(row if "vote" in row.rivals else replace(row, vote=None) for row in rows)  # see FORMAT
            eps = {str(norm): number(radius, "eps") for norm, radius in document["eps"].items()}
            return cls(str(document["data"]), str(document["split"]), eps, rows, str(document.get("again") or ""))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is not a board of recarc: {first_line(error)}") from None

    def write(self, path: str | Path) -> Path:
        document = {"format": FORMAT, **asdict(self)}
        write_bytes(Path(path), (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
        return Path(path)

    def with_row(self, new: Row, replacing: bool = False) -> Board:
        """Add a row, or its new run, which inherits its rivals; norms, then methods, then members, are in order."""
        try:
            check_row(new)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"the row of {new.method!r:.40} could not be read again: {first_line(error)}") from None
        self.check_place(new.place, replacing)
        rows = {row.name: row for row in self.rows}
        rows[new.name] = new.inheriting(rows[new.name]) if new.name in rows else new
        order = sorted(rows.values(), key=lambda row: (row.norm != "linf", row.norm, row.method, row.members, row.name))
        return replace(self, rows=tuple(order))

    def check_place(self, new: Place, replacing: bool = False) -> None:
        """Refuse a row that would take the place of one on more images, or join a kind that was trained otherwise.

        One of other weights takes the place of a row only when it is `replacing` it; an ensemble has one row.
        """
        for row in self.rows:
            old = row.place
            if old.name == new.name and new.samples < old.samples:
                raise InputError(
                    f"{new.name} is on the board with {old.samples:,} images, and this run has {new.samples:,}; "
                    "evaluate on as many, or name it otherwise with --method"
                )
            known = bool(old.weights and new.weights)
            if known and old.name == new.name and old.weights != new.weights and not replacing:
                raise InputError(
                    f"{new.name} is on the board with other weights; name these otherwise with --method, record their "
                    "seed (save_ensemble(..., made_by={'seed': 1})), or take that row's place with --replace"
                )
            if known and old.name != new.name and old.same_ensemble(new):
                raise InputError(f"these members are on the board with this alpha already, as {old.name}")
            theirs, mine = options_of(old.training), options_of(new.training)
            replaced = replacing and old.name == new.name
            if old.kind == new.kind and theirs and mine and theirs != mine and not replaced:
                raise InputError(
                    f"{row.name} is on the board with members trained with {_only(theirs, mine)}, and these with "
                    f"{_only(mine, theirs)}; name it otherwise with --method"
                )

    @property
    def kinds(self) -> list[Kind]:
        """The randomized ensembles, those that differ in the seed alone together."""
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if row.drawn > 1:
                found.setdefault((row.kind, row.samples), []).append(row)
        return [Kind(tuple(rows)) for rows in found.values()]

    @property
    def counted(self) -> list[Kind]:
        """Those whose gain means something: not broken, not masked, and on as many images as any of these."""
        found = [kind for kind in self.kinds if kind.counts]
        most = max((kind.rows[0].samples for kind in found), default=0)
        return [kind for kind in found if kind.rows[0].samples == most]

    def helping(self) -> list[Kind]:
        """Those of `counted` that keep more than their best member, corrected for their number (Holm)."""
        return [kind for kind in self._clear() if kind.gain[0] > 0]

    def hurting(self) -> list[Kind]:
        return [kind for kind in self._clear() if kind.gain[0] < 0]

    def _clear(self) -> list[Kind]:
        kinds = self.counted
        return [kind for kind, clear in zip(kinds, holm([p_value(*kind.gain[1:]) for kind in kinds])) if clear]

    def against_one_network(self) -> tuple[list[Kind], list[Kind]]:
        """Those of `counted` that can be compared, by sample, with one network of their cost; those that keep more."""
        singles = [(kind, self.single(kind.rows[0])) for kind in self.counted]
        pairs = [(kind, paired_difference(kind.rows, [one])) for kind, one in singles if one is not None]
        known = [(kind, difference) for kind, difference in pairs if difference is not None]
        clear = holm([p_value(*difference[1:]) for _, difference in known])
        more = [kind for (kind, difference), sure in zip(known, clear) if sure and difference[0] > 0]
        return [kind for kind, _ in known], more

    def single(self, row: Row, members: int = 1) -> Row | None:
        """The best one network on the same images whose query costs no more than so many members, within 5 %.

        An ensemble that draws a member costs one of them, a vote or an average all.
        """
        alike = [r for r in self.rows if r.members == 1 and (r.norm, r.samples) == (row.norm, row.samples)]
        affordable = [r for r in alike if r.flops and row.flops and r.flops <= 1.05 * members * row.flops]
        return max(affordable, key=lambda r: float(r.tight["value"]), default=None) if row.members > 1 else None

    def seeds_of(self, row: Row) -> list[Row]:
        """The rows that differ from this one in the seed alone."""
        return [other for other in self.rows if other.kind == row.kind and other.samples == row.samples]

    def over(self, row: Row, rival: str = RIVAL) -> Over | None:
        """How much more a kind of ensemble keeps than the rival of as many equiprobable members; None without one."""
        like = replace(row, method=rival, alpha=[1 / row.members] * row.members).kind
        mine, theirs = self.seeds_of(row), [r for r in self.rows if r.kind == like and r.samples == row.samples]
        tight = paired_difference(mine, theirs)
        if row.method == rival or tight is None:
            return None
        believed = {
            name: mean(getattr(r, name) for r in mine) - mean(getattr(r, name) for r in theirs)
            for name in ("adaptive_pgd", "arc")
        }
        versions = {str(r.provenance.get("recarc")) for r in (*mine, *theirs)}
        return Over(row.kind, rival, len(mine), len(theirs), **believed, tight=tight, versions=tuple(sorted(versions)))


def options_of(training: str | None) -> list[tuple[str, str]]:
    """The options of a command that trains, without those in which the rows of a kind may differ."""
    try:
        words = shlex.split(training or "")[3:]  # recarc train METHOD
    except ValueError:
        return []
    pairs = zip(words[::2], words[1::2])
    return sorted(pair for pair in pairs if pair[0] not in ("--seed", "--out"))


def _only(some: list[tuple[str, str]], others: list[tuple[str, str]]) -> str:
    """The options that the others do not have."""
    return " ".join(" ".join(pair) for pair in some if pair not in others) or "fewer options"


def add_row(path: str | Path, row: Row, replacing: bool = False) -> Board:
    """Put a row into a board file."""
    return changed_board(path, lambda board: board.with_row(row, replacing))


def changed_board(path: str | Path, change: Callable[[Board], Board]) -> Board:
    """Change a board file; several processes may do so at the same time."""
    path = Path(path)
    with Lock(path.with_name(f".{path.name}.lock"), wait=True):
        board = change(Board.read(path))
        board.write(path)
    return board
