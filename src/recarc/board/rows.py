"""A row of the board: what the run of a tight attack says about an ensemble, its members and their rivals."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from recarc.atomic import Lock, read_plain, write_bytes
from recarc.errors import InputError, first_line
from recarc.evaluation.intervals import holm, paired_interval
from recarc.evaluation.result import Estimate, Evaluation, estimate
from recarc.evaluation.verdict import Verdict
from recarc.report.runs import Run
from recarc.sampling import best_for_patterns

FORMAT = 1
EPS = {"linf": 8 / 255, "l2": 128 / 255}  # the problems of a new board
MOST = 1e18  # of any figure
POINTS = 21  # of a curve over alpha
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
    def name(self) -> str:
        """Tells rows apart: a new row of the same name takes the place of the old one."""
        weights = "uniform" if np.ptp(self.alpha) < 1e-6 else ", ".join(f"{a:.3g}" for a in self.alpha)
        return f"{self.method}, {self.norm}, M = {self.members}, alpha {weights}, seed {self.provenance.get('seed', 0)}"

    @property
    def best(self) -> int:
        """The member that keeps most alone, of those that are drawn."""
        kept = [value if a > 0 else -1.0 for value, a in zip(self.alone, self.alpha)]
        return kept.index(max(kept)) if kept else 0

    @property
    def scores(self) -> np.ndarray | None:
        """(N,) what each sample keeps; None in a row of older date."""
        if not self.kept:
            return None
        return np.array(self.alpha) @ unpacked(self.kept, len(self.alpha), self.samples)

    @property
    def p_value(self) -> float:
        """p-value of the gain being 0, from its paired interval."""
        half = (self.gain["high"] - self.gain["low"]) / 2
        if half <= 0:
            return 1.0
        return 2 * NormalDist().cdf(-abs(self.gain["value"]) * 1.96 / half)


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
        rows = {row.name: row for row in self.rows} | {new.name: new}
        order = sorted(rows.values(), key=lambda row: (row.norm != "linf", row.norm, row.method, row.members, row.name))
        return replace(self, rows=tuple(order))

    def helping(self) -> list[Row]:
        """Rows that keep more than their best member, corrected for the number of rows (Holm)."""
        return [row for row, clear in zip(self.rows, self._clear()) if clear and row.gain["value"] > 0]

    def hurting(self) -> list[Row]:
        return [row for row, clear in zip(self.rows, self._clear()) if clear and row.gain["value"] < 0]

    def _clear(self) -> list[bool]:
        mixtures = [row.members > 1 for row in self.rows]
        rejected = iter(holm([row.p_value for row, mixed in zip(self.rows, mixtures) if mixed]))
        return [next(rejected) if mixed else False for mixed in mixtures]

    @property
    def answer(self) -> str:
        """Does any randomized ensemble help? In two sentences."""
        mixed = [row for row in self.rows if row.members > 1]
        if not mixed:
            return "No randomized ensemble is on this board yet."
        helping, hurting = self.helping(), self.hurting()
        best = max(mixed, key=lambda row: row.gain["value"])
        unclear = len(mixed) - len(helping) - len(hurting)
        first = (
            f"Of {len(mixed)} randomized ensembles, {_keep(len(helping))} more under the strongest attack than their "
            f"best member does alone, {_keep(len(hurting))} less, and {unclear} cannot be told apart from it (paired "
            "intervals, corrected for the number of comparisons)."
        )
        second = (
            f"The largest gain is {100 * best.gain['value']:+.2f} points [{100 * best.gain['low']:+.2f}, "
            f"{100 * best.gain['high']:+.2f}], of {best.name} on {best.samples:,} images"
        )
        if best.verdict != "conclusive":
            second += f"; its verdict is open, and at its floor the gain would be {100 * best.gain_at_floor:+.2f}"
        return f"{first} {second}."


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


def _keep(count: int) -> str:
    return f"{count} {'keeps' if count == 1 else 'keep'}"


def add_row(path: str | Path, row: Row) -> Board:
    """Put a row into a board file; several processes may do so at the same time."""
    path = Path(path)
    with Lock(path.with_name(f".{path.name}.lock"), wait=True):
        board = Board.read(path).with_row(row)
        board.write(path)
    return board


def row_of(run: Run, method: str, average: Run | None = None, **known: Any) -> Row:
    """The row of a tight run; `known`: flops, minutes, provenance."""
    evaluation = run.evaluation
    alone, floors = evaluation.alone, evaluation.floor_scores
    if alone is None or floors is None:
        raise InputError(f"{run.name} attacked no member alone; a row needs a run of --attack tight")
    if average is not None and average.data != run.data:
        raise InputError(f"{average.name} is on other images than {run.name}; both belong to one row")
    attacked = np.where((evaluation.alpha > 0)[:, None], alone, False)
    best = int(attacked.mean(1).argmax())
    seen = patterns(evaluation)
    stages = evaluation.stage_accuracies
    gains = evaluation.robust_scores - attacked[best]
    gain = Estimate(float(gains.mean()), *((0.0, 0.0) if len(evaluation.alpha) == 1 else paired_interval(gains)))
    return Row(
        method=method,
        norm=str(run.ball["norm"]),
        eps=float(run.eps or math.nan),
        members=len(evaluation.alpha),
        alpha=run.alpha,
        samples=len(evaluation),
        clean=evaluation.clean_accuracy,
        adaptive_pgd=stages["adaptive_pgd"].value,
        arc=stages["arc"].value,
        tight=_json(evaluation.robust),
        floor=float(floors.mean()),
        verdict="conclusive" if Verdict.of(evaluation).conclusive else "open",
        best_member=float(attacked[best].mean()),
        gain=_json(gain),
        gain_at_floor=float((floors - attacked[best]).mean()),
        most=max(0.0, 1 - best_for_patterns(seen)[1] - float(attacked[best].mean())),
        vote=float(estimate(vote_scores(evaluation)).value),
        average=None if average is None else average.evaluation.robust_accuracy,
        joint=_joint(seen) if len(evaluation.alpha) == 2 else None,
        alone=alone.mean(1).tolist(),
        curve=curve_over_alpha(seen, alone, run.alpha, best),
        kept=packed(evaluation.adversarial_predictions[0] == evaluation.labels),
        signals=sorted({signal.name for signal in evaluation.signals}),
        **known,
    )


def patterns(evaluation: Evaluation) -> list[np.ndarray]:
    """(M, N) each: who is fooled at every point that the run kept, and each member that was fooled alone."""
    points = _points(evaluation)
    seen = [predictions != evaluation.labels for predictions in points]
    if evaluation.alone is not None:
        for i, bits in enumerate(evaluation.alone):
            only = np.zeros_like(evaluation.alone)
            only[i] = ~bits
            seen.append(only)
    return seen


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


def curve_over_alpha(
    seen: Sequence[np.ndarray], alone: np.ndarray, alpha: Sequence[float], best: int
) -> list[list[float]]:
    """(t, accuracy at the points found, floor) as the best member's probability t goes from 0 to 1.

    The other members keep their proportions. No more than the accuracy, as other points may be worse at another alpha.
    """
    if len(alpha) == 1:
        return []
    others = np.array(alpha, dtype=float)
    others[best] = 0.0
    if not others.any():  # the best member was the only one drawn
        others = np.ones_like(others)
        others[best] = 0.0
    curve = []
    for t in np.linspace(0, 1, POINTS):
        weights = (1 - t) * others / others.sum()
        weights[best] = t
        error = np.max([weights @ pattern for pattern in seen], axis=0).mean()
        curve.append([float(t), float(1 - error), float(weights @ alone.mean(1))])
    return curve


def vote_scores(evaluation: Evaluation) -> np.ndarray:
    """(N,) the lowest chance that the majority vote is right, over the points that the run kept; ties are drawn."""
    labels = evaluation.labels.astype(np.int64)
    worst = np.ones(len(evaluation))
    for predictions in _points(evaluation):
        classes = int(max(predictions.max(), labels.max())) + 1
        votes = np.zeros((classes, len(labels)), dtype=np.int64)
        for answers in predictions.astype(np.int64):
            given = answers >= 0
            votes[answers[given], np.flatnonzero(given)] += 1
        top = votes.max(0)
        right = (votes[labels, np.arange(len(labels))] == top) & (top > 0)
        worst = np.minimum(worst, np.where(right, 1 / np.maximum((votes == top).sum(0), 1), 0.0))
    return worst


def _points(evaluation: Evaluation) -> Sequence[np.ndarray]:
    return [evaluation.clean_predictions, *evaluation.stages.values(), *evaluation.adversarial_predictions]


def _joint(seen: Sequence[np.ndarray]) -> float:
    """P(R): both members were fooled somewhere, but never at one point."""
    alone, both = np.any(seen, axis=0).all(0), np.any([pattern.all(0) for pattern in seen], axis=0)
    return float((alone & ~both).mean())


def _json(figure: Estimate) -> Json:
    return {"value": figure.value, "low": figure.low, "high": figure.high}
