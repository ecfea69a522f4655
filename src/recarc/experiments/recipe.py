"""What a recipe is made of: ensembles, rows, measurements, and the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from recarc.attacks import Attack
from recarc.geometry import Ball

Alpha = tuple[float, ...]
Kind = Literal["robust", "clean", "floor", "minutes", "cross", "showable"]


@dataclass(frozen=True)
class Made:
    """How the members of an ensemble come about: a training method, or `package` for pretrained ones."""

    method: str
    data: str
    arch: str
    norm: str | None = None
    eps: str | None = None  # as people write it: "8/255"
    members: int = 2
    start: Made | None = None  # trained first; gives the first members
    arch_options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the training recipe, by its name
    package: bool = False

    @property
    def name(self) -> str:
        if self.package:
            return self.arch
        count = str(self.members) if self.method == "iat" else ""
        parts = (f"{self.method}{count}", self.data, self.arch, self.norm)
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Reading:
    """One figure taken from an attacked ensemble. `paper` is in percent (minutes for "minutes"), as printed."""

    column: str
    what: Kind = "robust"
    paper: float | None = None


@dataclass(frozen=True)
class Measurement:
    """One attack on (some of) the members, and what is read from it. `x` is the place on the axis of a sweep."""

    attack: Attack
    readings: tuple[Reading, ...]
    x: float | None = None
    members: tuple[int, ...] | None = None  # None: all
    alpha: Alpha | None = None  # None: the row's
    eps: str | None = None  # None: the row's
    extra: bool = False  # not the paper's: the tight attack and its floor


@dataclass(frozen=True)
class Difference:
    """`column` = `of` - `less`, in points; in a sweep at the places `of_x` and `less_x`."""

    column: str
    of: str
    less: str
    paper: float | None = None
    of_x: float | None = None
    less_x: float | None = None


@dataclass(frozen=True)
class Row:
    """One row of a table, or one curve or matrix of a figure.

    `alpha`: "grid" searches with AdaptivePGD as the paper does, "equal" is equiprobable, else the numbers.
    """

    name: str
    made: Made
    norm: str
    eps: str
    measurements: tuple[Measurement, ...]
    alpha: str | Alpha = "grid"
    differences: tuple[Difference, ...] = ()
    axis: str = ""  # what x is, where the row is a sweep

    @property
    def data(self) -> str:
        return self.made.data

    def ball(self, eps: str | None = None) -> Ball:
        return Ball(self.norm, radius(eps or self.eps))


@dataclass(frozen=True)
class Item:
    """A table or a figure. `drawing`: scatter, lines, matrix, images or plane; empty for a table."""

    name: str
    title: str
    rows: tuple[Row, ...]
    drawing: str = ""
    says: tuple[str, ...] = ()  # what the paper says in words, where it prints no number
    note: str = ""  # what one must know of the data or the members

    @property
    def data(self) -> list[str]:
        return list(dict.fromkeys(row.data for row in self.rows))

    @property
    def ensembles(self) -> list[Made]:
        return list({row.made.name: row.made for row in self.rows}.values())


def radius(text: str) -> float:
    """8/255 as a number."""
    return float(Fraction(text))
