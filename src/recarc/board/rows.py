"""A row of the board: what is known of one ensemble under attack."""

from __future__ import annotations

import base64
import math
import re
import zlib
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from recarc.board.names import CHAINED, OURS, kind_name, row_name
from recarc.evaluation.intervals import paired_interval, wilson

MOST = 1e18  # of any figure
Json = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a row belongs on a board, and what must agree with the row that is there."""

    method: str
    norm: str
    alpha: list[float]
    seed: Any
    samples: int
    training: str | None  # the command that trains such members
    weights: list[str] | None

    @property
    def kind(self) -> str:
        """What rows have in common that differ in the seed alone."""
        return kind_name(self.method, self.norm, len(self.alpha), self.alpha)

    @property
    def name(self) -> str:
        """Tells rows apart: a new run of the same name takes the place of the old one."""
        return row_name(self.kind, self.seed)

    def same_ensemble(self, other: Place) -> bool:
        """Whether both are of the same weights, norm and alpha."""
        alike = (self.norm, self.weights) == (other.norm, other.weights)
        return alike and kind_name("", "", 0, self.alpha) == kind_name("", "", 0, other.alpha)


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
    vote: float | None = None  # what the majority vote of the members keeps under an attack of its own
    average: float | None = None  # what their averaged probabilities keep under an attack of their own
    joint: float | None = None  # P(R), where two are drawn: each can be fooled, but not both by one perturbation
    alone: list[float] = field(default_factory=list)  # what each drawn member keeps alone, under the same attacks
    cross: list[list[float]] = field(default_factory=list)  # what member i keeps at PGD's points for member j
    curve: list[list[float]] = field(default_factory=list)  # see `curve_over_alpha`
    most_ends: list[float] = field(default_factory=list)  # 95 % interval of `most`; none in a row of older date
    kept: str = ""  # which members are right at the worst point of each sample, see `packed`: rows can be paired
    kept_alone: str = ""  # which members nothing fooled, not even alone, likewise; not in a row of older date
    signals: list[str] = field(default_factory=list)  # of masked gradients
    flops: float | None = None  # expected, per query
    minutes: float | None = None  # of training
    provenance: Json = field(default_factory=dict)

    @property
    def place(self) -> Place:
        known = self.provenance
        seed, training, weights = known.get("seed", 0), known.get("training"), known.get("weights")
        return Place(self.method, self.norm, self.alpha, seed, self.samples, training, weights)

    @property
    def kind(self) -> str:
        return self.place.kind

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def verdict_text(self) -> str:
        """The verdict, with the signals of masked gradients that keep it open."""
        return f"{self.verdict}: {in_words(self.signals)}" if self.signals else self.verdict

    @property
    def rivals(self) -> Json:
        """How the average and the vote were measured, if they have runs of their own."""
        found: Json = self.provenance.get("rivals", {})
        return found

    def rival_signals(self, name: str) -> list[str]:
        """Signals of masked gradients in the run of the average or the vote."""
        found: list[str] = self.rivals.get(name, {}).get("signals", [])
        return found

    def rival_notes(self, name: str) -> str:
        """What keeps the figure of the average or the vote from counting like the others, in words."""
        if getattr(self, name) is not None and name not in self.rivals:
            return "no record"
        return in_words(self.rival_signals(name))

    def rival_text(self, name: str) -> str:
        """What the average or the vote keeps, in %, with `rival_notes`; nothing if it is not known."""
        kept, notes = getattr(self, name), self.rival_notes(name)
        return "" if kept is None else f"{100 * kept:.2f}" + (f" ({notes})" if notes else "")

    @property
    def gain_text(self) -> str:
        """The gain over the best member, in points, with its interval."""
        value, low, high = (100 * self.gain[end] for end in ("value", "low", "high"))
        return f"{value:+.2f} [{low:+.2f}, {high:+.2f}]"

    @property
    def most_text(self) -> str:
        """The most that any alpha could gain, in points, with its interval if that is known; nothing for one member."""
        ends = f" [{', '.join(f'{100 * end:.2f}' for end in self.most_ends)}]" if self.most_ends else ""
        return f"{100 * self.most:.2f}{ends}" if self.members > 1 else ""

    @property
    def joint_text(self) -> str:
        """P(R) as found, in %, with its interval; nothing unless two members are drawn."""
        if self.joint is None or self.joint_interval is None:
            return ""
        return f"{100 * self.joint:.2f} [{', '.join(f'{100 * end:.2f}' for end in self.joint_interval)}]"

    def with_rival(self, name: str, known: Json, kept: float | None = None) -> Row:
        """This row with a rival; `kept` is its figure where `known` does not hold, as `kept`, where it is right.

        A vote is wrong, too, where the row's own attack fooled every member that votes.
        """
        points = "those of an earlier run of the row"
        if "kept" in known:
            right, still = unpacked(known["kept"], 1, self.samples)[0], self._still_right(name, known)
            kept, points = float(still.mean()), "not known"
            if self.kept:
                lost = int(right.sum() - still.sum())
                points = f"{lost} {'sample more is' if lost == 1 else 'samples more are'} lost at the row's own points"
        if name == "vote":
            known = known | {"checked": {**known["checked"], "points_of_the_row": points}}
        figures: Json = {name: kept, "provenance": self.provenance | {"rivals": self.rivals | {name: known}}}
        return replace(self, **figures)

    def rival_scores(self, name: str) -> np.ndarray | None:
        """(N,) what the average or the vote keeps at each sample; None in a row of older date."""
        known = self.rivals.get(name, {})
        return self._still_right(name, known).astype(float) if "kept" in known else None

    def _still_right(self, name: str, known: Json) -> np.ndarray:
        """(N,) where a rival is right: a vote is not where the row's own attack fooled every member that votes."""
        right = unpacked(known["kept"], 1, self.samples)[0]
        if name != "vote" or not self.kept:
            return right
        voting = np.array(self.alpha) > 0
        still: np.ndarray = right & unpacked(self.kept, len(self.alpha), self.samples)[voting].any(0)
        return still

    @property
    def ours(self) -> bool:
        """Whether its method is one of recarc's own."""
        return self.method.partition(",")[0] in OURS

    def same_ensemble(self, other: Row) -> bool:
        """Whether both rows are of the same weights, alpha and images."""
        mine, theirs = ((row.provenance.get("weights"), row.alpha, row.samples) for row in (self, other))
        return mine == theirs and mine[0] is not None

    def inheriting(self, old: Row) -> Row:
        """This row with the rivals of the one whose place it takes, if both are of the same members."""
        if not self.same_ensemble(old):
            return self
        row = replace(self, average=old.average) if self.average is None else self
        for name, known in old.rivals.items():
            if name not in self.rivals:
                row = row.with_rival(name, known, getattr(old, name))
        return row

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
    def joint_interval(self) -> tuple[float, float] | None:
        """95 % interval of P(R) as found."""
        if self.joint is None:
            return None
        return wilson(min(max(self.joint, 0.0), 1.0), self.samples)

    @property
    def epochs(self) -> str | None:
        """For how long each member was trained, as the command of the training says.

        None if some were given to it, or if one starts from another, whose epochs it has had as well.
        """
        training = str(self.provenance.get("training") or "")
        found = re.match(r"recarc train (\S+) .*--epochs (\S+)", training)
        return found[2] if found and found[1] not in CHAINED and "--start" not in training else None

    @property
    def alone_right(self) -> np.ndarray | None:
        """(M, N) where nothing fooled a member, not even alone; None in a row of older date."""
        return unpacked(self.kept_alone, len(self.alpha), self.samples) if self.kept_alone else None

    @property
    def scores(self) -> np.ndarray | None:
        """(N,) what each sample keeps; None in a row of older date."""
        if not self.kept:
            return None
        return np.array(self.alpha) @ unpacked(self.kept, len(self.alpha), self.samples)


def check_row(row: Row) -> None:
    """Raise unless everything in a row that was read is of its kind."""
    for part in fields(Row):
        value = getattr(row, part.name)
        if part.type in ("int", "float") or (part.type == "float | None" and value is not None):
            number(value, part.name)
        elif part.type == "str" and not isinstance(value, str):
            raise ValueError(f"{part.name} is {value!r:.40}")
    for name, figure in (("tight", row.tight), ("gain", row.gain)):
        for end in ("value", "low", "high"):
            number(figure[end], name)
    known = row.provenance
    for name in ("hardware", "commit", "command", "trained_on", "training", "alpha_by"):
        if not isinstance(known.get(name, ""), str | None):
            raise ValueError(f"its {name} is {known[name]!r:.40}")
    number(known.get("seconds", 0.0), "seconds")
    for name, rival in row.rivals.items():
        if name not in ("average", "vote") or not isinstance(rival["checked"], dict):
            raise ValueError(f"the row of {row.method!r:.40} has a rival {name!r:.40} that cannot be read")
        check_signals(rival.get("signals", []))
        if "kept" in rival:
            unpacked(rival["kept"], 1, row.samples)
    if not row.method or not isinstance(known.get("checked", {}), dict):
        raise ValueError(f"the row of {row.method!r:.40} has no method, or checks of another kind")
    if not isinstance(known.get("weights") or [], list):
        raise ValueError(f"its weights are {known['weights']!r:.40}, expected a list")
    check_signals(row.signals)
    for name, values in (("alpha", row.alpha), ("alone", row.alone), ("most_ends", row.most_ends)):
        for value in values:
            number(value, name)
    if len(row.most_ends) not in (0, 2):
        raise ValueError(f"most_ends has {len(row.most_ends)} numbers, expected 2")
    if len(row.alpha) != row.members or min(row.alpha) < 0 or not math.isclose(sum(row.alpha), 1, abs_tol=1e-3):
        raise ValueError(f"the row of {row.method!r:.40} has {row.members} members and alpha {row.alpha!r:.60}")
    shares = [row.clean, row.adaptive_pgd, row.arc, row.floor, row.best_member, row.tight["value"], *row.alone]
    if not all(-1e-9 <= share <= 1 + 1e-9 for share in shares) or (row.minutes or 0.0) < 0:
        raise ValueError(f"the row of {row.method!r:.40} has an accuracy that is no share, or negative minutes")
    _check_samples(row)
    if len(row.alone) not in (0, len(row.alpha)) or len(row.cross) not in (0, len(row.alone)):
        raise ValueError(f"the row of {row.method!r:.40} has figures of more or fewer members than alpha")
    for name, lines, length in (("cross", row.cross, len(row.alpha)), ("curve", row.curve, 3)):
        for line in lines:
            if len([number(value, name) for value in line]) != length:
                raise ValueError(f"{name} has a line of {len(line)} numbers, expected {length}")


def _check_samples(row: Row) -> None:
    """Raise unless its figures are those of its samples, as far as it holds them."""
    scores, alone = row.scores, row.alone_right
    figures = [(row.gain["value"], row.tight["value"] - row.best_member, "gain")]
    if scores is not None:
        figures.append((row.tight["value"], scores.mean(), "accuracy"))
    if scores is not None and alone is not None:
        best = alone[np.array(row.alpha) > 0].mean(1).max()
        figures.append((row.best_member, best, "best member"))
        if row.members > 1:
            low, high = paired_interval(scores - alone[row.best])
            figures += [(row.gain["low"], low, "interval"), (row.gain["high"], high, "interval")]
    for said, found, name in figures:
        if not math.isclose(said, found, abs_tol=1e-6):
            raise ValueError(f"the row of {row.method!r:.40} has another {name} than its samples")


def check_signals(signals: Any) -> None:
    """Raise unless these are names."""
    if not isinstance(signals, list) or not all(isinstance(signal, str) for signal in signals):
        raise ValueError(f"signals are {signals!r:.40}, expected a list of names")


def in_words(signals: list[str]) -> str:
    """Signals of masked gradients as they are shown."""
    return ", ".join(signal.replace("_", " ") for signal in signals)


def number(value: Any, name: str) -> float:
    """A number of a size that can be true."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < MOST:
        raise ValueError(f"{name} is {value!r:.40}, expected a number")
    return value


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
