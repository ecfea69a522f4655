"""What an item of the paper consists of: ensembles, rows, measurements, and the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from recarc.attacks import Attack, RandomAttacker
from recarc.errors import unknown
from recarc.geometry import Ball

if TYPE_CHECKING:
    from paper.results import RowResult
    from paper.setup import Setup

Alpha = tuple[float, ...]
Kind = Literal["robust", "clean", "floor", "minutes", "seconds", "gradients", "cross", "none-all", "most-all"]


@dataclass(frozen=True)
class EnsembleRecipe:
    """How the members of an ensemble come about: a training method, or `package` for pretrained ones."""

    method: str
    data: str
    arch: str
    norm: str | None = None
    eps: str | None = None  # as people write it: "8/255"
    members: int = 2
    start: EnsembleRecipe | None = None  # trained first; provides the first members
    arch_options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # to the training recipe, by its name
    package: bool = False
    recipe: str = ""  # fast or paper; empty: whichever the run asks for
    variant: str = ""  # tells apart recipes that differ in their changes or seeds only
    seed: int = 0

    @property
    def name(self) -> str:
        if self.package:
            return self.arch
        count = str(self.members) if self.method == "iat" else ""
        parts = (f"{self.method}{count}", self.data, self.arch, self.norm, self.variant)
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Reading:
    """One figure read off an attacked ensemble. `paper` is in percent (minutes for "minutes"), as printed."""

    column: str
    what: Kind = "robust"
    paper: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One attack on (some of) the members, and what is read off it. `x` is the position on the axis of a sweep."""

    attack: Attack
    readings: tuple[Reading, ...]
    x: float | None = None
    members: tuple[int, ...] | None = None  # None: all
    alpha: Alpha | None = None  # None: the row's
    eps: str | None = None  # None: the row's
    temperature: float = 1.0  # the last member's logits are divided by it, which changes no answer
    extra: bool = False  # not in the paper: the tight attack and its floor

    @property
    def run(self) -> str:
        """What its run depends on, beside the row: measurements with the same text share one."""
        return repr(
            (self.attack, self.members, None if ignores_alpha(self.attack) else self.alpha, self.eps, self.temperature)
        )


@dataclass(frozen=True)
class Difference:
    """`column` = `plus` - `minus`, in points; in a sweep at the positions `plus_x` and `minus_x`."""

    column: str
    plus: str
    minus: str
    paper: float | None = None
    plus_x: float | None = None
    minus_x: float | None = None


@dataclass(frozen=True)
class Row:
    """One row of a table, or one curve or matrix of a figure.

    `alpha`: "grid" searches with AdaptivePGD as the paper does, on training images that no member was trained on;
    "equal" is equiprobable, otherwise the numbers.
    """

    name: str
    ensemble: EnsembleRecipe
    norm: str
    eps: str
    measurements: tuple[Measurement, ...]
    alpha: str | Alpha = "grid"
    differences: tuple[Difference, ...] = ()
    axis: str = ""  # what x is, where the row is a sweep
    last: bool = False  # on the last images of the test set instead of the first

    @property
    def data(self) -> str:
        return self.ensemble.data

    def ball(self, eps: str | None = None) -> Ball:
        return Ball(self.norm, radius(eps or self.eps))

    @property
    def question(self) -> str:
        """What the row asks, whatever it is called."""
        return repr(replace(self, name=""))

    @property
    def columns(self) -> set[str]:
        """What is read off, but for the entries of a matrix."""
        read = {r.column for m in self.measurements for r in m.readings if r.what != "cross"}
        return read | {difference.column for difference in self.differences}

    def only(self, columns: Sequence[str]) -> Row:
        """With the measurements of these columns alone."""
        known = dict.fromkeys(r.column for m in self.measurements for r in m.readings)
        for column in columns:
            if column not in known:
                raise unknown(f"column of {self.name}", column, known)
        kept = tuple(m for m in self.measurements if any(r.column in columns for r in m.readings))
        return replace(self, measurements=kept)

    def is_complete(self, result: RowResult) -> bool:
        """Whether a result has every column of this row; of a sweep, some points may still be missing."""
        return self.columns <= {figure.column for figure in result.figures}


Measure = Callable[["Setup", Path, "list[str]"], "Iterator[RowResult]"]  # setup, results folder, parts


@dataclass(frozen=True)
class Item:
    """A table, a figure or a benchmark: rows to be attacked, or a function that measures and yields finished rows."""

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    drawing: str = ""  # scatter, lines, gradients, growth, matrix, images or plane; empty for a table
    claims: tuple[str, ...] = ()  # what the paper says in words, where it prints no number
    note: str = ""  # what one must know about the data or the members
    measure: Measure | None = None
    parts: tuple[str, ...] = ()  # what --only chooses from, if the item measures by itself
    cost: str = "seconds"  # of one that measures by itself
    page: str = "results"  # the document it is shown in; a benchmark has a results file per machine

    @property
    def data(self) -> list[str]:
        return list(dict.fromkeys(row.data for row in self.rows))

    @property
    def ensembles(self) -> list[EnsembleRecipe]:
        return list({row.ensemble.name: row.ensemble for row in self.rows}.values())


ITEMS: dict[str, Item] = {}  # in the order of registration; `import paper.items` fills it


def item(name: str, title: str, **options: Any) -> Callable[[Callable[[], tuple[Row, ...]]], Item]:
    """Register an item whose rows the decorated function returns."""

    def register(rows: Callable[[], tuple[Row, ...]]) -> Item:
        return _add(Item(name, title, rows(), **options))

    return register


def measured_item(name: str, title: str, **options: Any) -> Callable[[Measure], Item]:
    """Register an item that the decorated function measures: (setup, results folder, parts) -> rows."""

    def register(measure: Measure) -> Item:
        return _add(Item(name, title, measure=measure, **options))

    return register


def _add(new: Item) -> Item:
    if new.name in ITEMS:
        raise ValueError(f"two items are called {new.name!r}")
    ITEMS[new.name] = new
    return new


def ignores_alpha(attack: Attack) -> bool:
    """Whether an attack finds the same perturbations whatever alpha is: it attacks one member, or each in turn."""
    return isinstance(attack, RandomAttacker) or getattr(attack, "member", None) is not None


def radius(text: str) -> float:
    """8/255 as a number."""
    return float(Fraction(text))
