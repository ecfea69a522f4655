"""The board and its rows: what is known of each ensemble under the same attack, and the answer they give."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from recarc.atomic import Lock, read_plain, write_bytes
from recarc.board.names import kind_name, row_name
from recarc.errors import InputError, first_line
from recarc.evaluation.intervals import holm, p_value, paired_interval, wilson

FORMAT = 1
EPS = {"linf": 8 / 255, "l2": 128 / 255}  # the problems of a new board
RIVAL = "IAT"  # independently trained members: what other methods must beat
BROKEN = 0.1  # below, an ensemble keeps too little for its gains to mean anything
MOST = 1e18  # of any figure
Json = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """Accuracies are fractions. A negative gain: the ensemble keeps less than its best member does alone."""

    method: str
    norm: str
    eps: float
    members: int
    alpha: list[float]
    samples: int
    clean: float
    adaptive_pgd: float
    arc: float
    tight: Json  # value, low, high
    floor: float
    verdict: str  # conclusive or open
    best_member: float  # alone, under the same attacks
    gain: Json  # of the ensemble over its best member; value, low, high, paired over the samples
    gain_at_floor: float  # the same if the truth is the floor
    most: float  # the most that any alpha could gain over the best member, as far as these attacks reach
    vote: float  # what the majority vote of the members keeps at the points of the same attacks
    average: float | None = None  # what the averaged probabilities keep under an attack of their own
    joint: float | None = None  # P(R), for two members: each can be fooled, but not both by one perturbation
    alone: list[float] = field(default_factory=list)  # what each member keeps alone, under the same attacks
    cross: list[list[float]] = field(default_factory=list)  # what member i keeps at PGD's points for member j
    curve: list[list[float]] = field(default_factory=list)  # see `curve_over_alpha`
    kept: str = ""  # which members are right at the worst point of each sample, see `packed`: rows can be paired
    signals: list[str] = field(default_factory=list)  # of masked gradients
    flops: float | None = None  # expected, per query
    minutes: float | None = None  # of training
    provenance: Json = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What rows have in common that differ in the seed alone."""
        return kind_name(self.method, self.norm, self.members, self.alpha)

    @property
    def name(self) -> str:
        """Tells rows apart: a new row of the same name takes the place of the old one."""
        return row_name(self.kind, self.provenance.get("seed", 0))

    @property
    def verdict_text(self) -> str:
        """The verdict, with the signals of masked gradients that keep it open."""
        signals = ", ".join(signal.replace("_", " ") for signal in self.signals)
        return f"{self.verdict}: {signals}" if signals else self.verdict

    @property
    def drawn(self) -> int:
        """Members that are ever drawn."""
        return sum(a > 0 for a in self.alpha)

    @property
    def best(self) -> int:
        """The member that keeps most alone, of those that are drawn."""
        kept = [value if a > 0 else -1.0 for value, a in zip(self.alone, self.alpha)]
        return kept.index(max(kept)) if kept else 0

    @property
    def joint_interval(self) -> tuple[float, float]:
        """95 % interval of P(R) as found."""
        return wilson(min(max(self.joint or 0.0, 0.0), 1.0), self.samples)

    @property
    def scores(self) -> np.ndarray | None:
        """(N,) what each sample keeps; None in a row of older date."""
        if not self.kept:
            return None
        return np.array(self.alpha) @ unpacked(self.kept, len(self.alpha), self.samples)


@dataclass(frozen=True)
class Board:
    """Rows on one data set, one radius per norm."""

    data: str = "cifar10"
    split: str = "test"
    eps: dict[str, float] = field(default_factory=lambda: dict(EPS))
    rows: tuple[Row, ...] = ()

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
                _check_row(row)
            eps = {str(norm): _number(radius, "eps") for norm, radius in document["eps"].items()}
            return cls(str(document["data"]), str(document["split"]), eps, rows)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is not a board of recarc: {first_line(error)}") from None

    def write(self, path: str | Path) -> Path:
        document = {"format": FORMAT, **asdict(self)}
        write_bytes(Path(path), (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
        return Path(path)

    def with_row(self, new: Row) -> Board:
        """Add or replace a row; norms, then methods, then members, are in order."""
        self.check_not_shorter(new.name, new.samples)
        rows = {row.name: row for row in self.rows} | {new.name: new}
        order = sorted(rows.values(), key=lambda row: (row.norm != "linf", row.norm, row.method, row.members, row.name))
        return replace(self, rows=tuple(order))

    def check_not_shorter(self, name: str, samples: int) -> None:
        """Refuse a row on fewer images than the one whose place it would take."""
        for row in self.rows:
            if row.name == name and samples < row.samples:
                raise InputError(
                    f"{name} is on the board with {row.samples:,} images, and this run has {samples:,}; evaluate on as "
                    "many, or name it otherwise with --method"
                )

    @property
    def kinds(self) -> list[Kind]:
        """The randomized ensembles, those that differ in the seed alone together."""
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if row.drawn > 1:
                found.setdefault((row.kind, row.samples), []).append(row)
        return [Kind(tuple(rows)) for rows in found.values()]

    def helping(self) -> list[Kind]:
        """Those that keep more than their best member, corrected for their number (Holm)."""
        return [kind for kind in self._clear() if kind.gain[0] > 0]

    def hurting(self) -> list[Kind]:
        return [kind for kind in self._clear() if kind.gain[0] < 0]

    def _clear(self) -> list[Kind]:
        kinds = self.kinds
        return [kind for kind, clear in zip(kinds, holm([p_value(*kind.gain[1:]) for kind in kinds])) if clear]

    def against_one_network(self) -> tuple[list[Kind], list[Kind]]:
        """Those that can be compared, sample by sample, with one network of their cost, and those that keep more."""
        singles = [(kind, self.single(kind.rows[0])) for kind in self.kinds]
        pairs = [(kind, paired_difference(kind.rows, [one])) for kind, one in singles if one is not None]
        known = [(kind, difference) for kind, difference in pairs if difference is not None]
        clear = holm([p_value(*difference[1:]) for _, difference in known])
        more = [kind for (kind, difference), sure in zip(known, clear) if sure and difference[0] > 0]
        return [kind for kind, _ in known], more

    @property
    def answer(self) -> str:
        """Does any randomized ensemble help? In two sentences."""
        kinds, helping, hurting = self.kinds, self.helping(), self.hurting()
        if not kinds:
            return "No randomized ensemble is on this board yet."
        trained, sure = sum(len(kind.rows) for kind in kinds), sum(kind.conclusive for kind in helping)
        certainty = f" ({sure} of these with a conclusive verdict)" if helping else ""
        first = (
            f"Of {len(kinds)} randomized ensembles{_with_seeds(trained, len(kinds))}, {_keep(len(helping))} more under "
            f"the strongest attack than their best member does alone{certainty}, {_keep(len(hurting))} less, and "
            f"{len(kinds) - len(helping) - len(hurting)} cannot be told apart from it "
            "(paired intervals, corrected for the number of comparisons)."
        )
        compared, paying = self.against_one_network()
        best = max(paying or kinds, key=lambda kind: kind.gain[0])
        second = "The largest gain over the best member "
        if compared:
            second = (
                f"Of {len(compared)} that can be compared with one network of the same cost per query, "
                f"{_keep(len(paying))} more than the best of these; "
                + ("its gain over its best member " if len(paying) == 1 else "the largest gain over the best member ")
                + ("among them " if paying[1:] else "")
            )
        second += best.sentence
        return f"{first} {second}."

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
            name: _mean(getattr(r, name) for r in mine) - _mean(getattr(r, name) for r in theirs)
            for name in ("adaptive_pgd", "arc")
        }
        versions = {str(r.provenance.get("recarc")) for r in (*mine, *theirs)}
        return Over(row.kind, rival, len(mine), len(theirs), **believed, tight=tight, versions=tuple(sorted(versions)))

    @property
    def remarks(self) -> list[str]:
        """Drawn or averaged; then what each other kind keeps more than independently trained members, one by one."""
        kinds = {row.kind: row for row in self.rows if row.members > 1}
        return [*self._averaged(), *(over.sentence for row in kinds.values() if (over := self.over(row)) is not None)]

    def _averaged(self) -> list[str]:
        """What averaging the members' probabilities keeps more than drawing one, where there is something to keep."""
        kept = [(kind, kind.average) for kind in self.kinds if kind.tight >= BROKEN]
        known = [(kind, average) for kind, average in kept if average is not None]
        if not known:
            return []
        more = [100 * (average - kind.tight) for kind, average in known]
        words = (
            f"Averaging the members' probabilities, which costs all of them per query, keeps more than drawing one in "
            f"{sum(value > 0 for value in more)} of {len(more)} ensembles that keep {100 * BROKEN:.0f} % or more: by "
            f"{np.median(more):+.2f} points in the median, {min(more):+.2f} to {max(more):+.2f}"
        )
        singles = [(kind, average, self.single(kind.rows[0], kind.rows[0].drawn)) for kind, average in known]
        large = [
            (kind.rows[0].norm, one.tight["value"] > average)
            for kind, average, one in singles
            if one is not None and one != self.single(kind.rows[0])
        ]
        if large:
            norms = " and ".join(sorted({norm for norm, _ in large}))
            words += (
                f"; one larger network that costs no more than all members keeps more than the average in "
                f"{sum(ahead for _, ahead in large)} of {len(large)} ({norms})"
            )
        return [f"{words}."]


@dataclass(frozen=True)
class Kind:
    """Rows that differ in the seed alone."""

    rows: tuple[Row, ...]

    @property
    def gain(self) -> tuple[float, float, float]:
        """Value, low, high: means over the seeds, as if they erred alike, which is on the safe side."""
        value, low, high = (_mean(row.gain[end] for row in self.rows) for end in ("value", "low", "high"))
        return value, low, high

    @property
    def tight(self) -> float:
        return _mean(row.tight["value"] for row in self.rows)

    @property
    def average(self) -> float | None:
        """None if it is not known for every seed."""
        known = [row.average for row in self.rows if row.average is not None]
        return _mean(known) if len(known) == len(self.rows) else None

    @property
    def conclusive(self) -> bool:
        return all(row.verdict == "conclusive" for row in self.rows)

    @property
    def sentence(self) -> str:
        value, low, high = (100 * end for end in self.gain)
        gains = [100 * row.gain["value"] for row in self.rows]
        seeds = f"mean of {len(gains)} seeds ({min(gains):+.2f} to {max(gains):+.2f})" if gains[1:] else "one seed"
        text = f"is {value:+.2f} points [{low:+.2f}, {high:+.2f}], of {self.rows[0].kind}, "
        text += f"on {self.rows[0].samples:,} images, {seeds}"
        if not self.conclusive:
            floor = 100 * _mean(row.gain_at_floor for row in self.rows)
            text += f"; its verdict is open, and at its floor the gain would be {floor:+.2f}"
        return text


@dataclass(frozen=True)
class Over:
    """A difference in accuracy between two kinds of ensembles, means over their seeds."""

    kind: str
    rival: str
    seeds: int
    rival_seeds: int
    adaptive_pgd: float
    arc: float
    tight: tuple[float, float, float]  # value, low, high, paired over the samples
    versions: tuple[str, ...] = ()  # of recarc: where they differ, so may the strength of the attack

    @property
    def sentence(self) -> str:
        value, low, high = (100 * end for end in self.tight)
        return (
            f"{self.kind} ({_counted(self.seeds)}): {value:+.2f} points [{low:+.2f}, {high:+.2f}] over {self.rival} "
            f"with as many members ({_counted(self.rival_seeds)}) under tight; by AdaptivePGD it would be "
            f"{100 * self.adaptive_pgd:+.2f}, by ARC {100 * self.arc:+.2f}"
            + (f" (not the same attack: recarc {' and '.join(self.versions)})." if len(self.versions) > 1 else ".")
        )


def paired_difference(mine: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, float, float] | None:
    """Value, low, high of what some rows keep more than others in the mean, paired over the samples.

    None if there are none, or if one does not hold its samples.
    """
    scores = [[row.scores for row in rows if row.scores is not None] for rows in (mine, theirs)]
    if not all(scores) or [*map(len, scores)] != [len(mine), len(theirs)]:
        return None
    difference = np.mean(scores[0], axis=0) - np.mean(scores[1], axis=0)
    return float(difference.mean()), *paired_interval(difference)


def _check_row(row: Row) -> None:
    """Raise unless everything in a row that was read is of its kind."""
    for part in fields(Row):
        value = getattr(row, part.name)
        if part.type in ("int", "float") or (part.type == "float | None" and value is not None):
            _number(value, part.name)
        elif part.type == "str" and not isinstance(value, str):
            raise ValueError(f"{part.name} is {value!r:.40}")
    for name, figure in (("tight", row.tight), ("gain", row.gain)):
        for end in ("value", "low", "high"):
            _number(figure[end], name)
    known = row.provenance
    for name in ("hardware", "commit", "command", "trained_on", "training", "alpha_by"):
        if not isinstance(known.get(name, ""), str | None):
            raise ValueError(f"its {name} is {known[name]!r:.40}")
    if not row.alpha or not isinstance(known.get("checked", {}), dict) or not isinstance(row.signals, list):
        raise ValueError(f"the row of {row.method!r:.40} has no alpha, or signals or checks of another kind")
    for name, values in (("alpha", row.alpha), ("alone", row.alone)):
        for value in values:
            _number(value, name)
    scores = row.scores
    if scores is not None and not math.isclose(scores.mean(), row.tight["value"], abs_tol=1e-6):
        raise ValueError(f"the row of {row.method!r:.40} keeps another accuracy than its samples")
    if len(row.alone) not in (0, len(row.alpha)) or len(row.cross) not in (0, len(row.alone)):
        raise ValueError(f"the row of {row.method!r:.40} has figures of more or fewer members than alpha")
    for name, lines, length in (("cross", row.cross, len(row.alpha)), ("curve", row.curve, 3)):
        for line in lines:
            if len([_number(value, name) for value in line]) != length:
                raise ValueError(f"{name} has a line of {len(line)} numbers, expected {length}")


def _number(value: Any, name: str) -> float:
    """A number of a size that can be true."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST:
        raise ValueError(f"{name} is {value!r:.40}, expected a number")
    return value


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _counted(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"


def _with_seeds(trained: int, kinds: int) -> str:
    return f" ({trained} with their seeds)" if trained > kinds else ""


def _keep(count: int) -> str:
    return f"{count} {'keeps' if count == 1 else 'keep'}"


def add_row(path: str | Path, row: Row) -> Board:
    """Put a row into a board file; several processes may do so at the same time."""
    path = Path(path)
    with Lock(path.with_name(f".{path.name}.lock"), wait=True):
        board = Board.read(path).with_row(row)
        board.write(path)
    return board


def packed(right: np.ndarray) -> str:
    """(M, N) booleans as text: eight to a byte, compressed, in base 64."""
    return base64.b64encode(zlib.compress(np.packbits(right, axis=1).tobytes(), 9)).decode()


def unpacked(text: str, members: int, samples: int) -> np.ndarray:
    """(M, N) booleans from `packed`; a ValueError if there are more or fewer."""
    length = members * -(-samples // 8)
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), length + 1)
    except zlib.error as error:
        raise ValueError(f"kept cannot be unpacked ({error})") from None
    if len(data) != length:
        raise ValueError(f"kept does not hold {members} x {samples} bits")
    rows = np.frombuffer(data, np.uint8).reshape(members, -1)
    return np.unpackbits(rows, axis=1, count=samples).astype(bool)
