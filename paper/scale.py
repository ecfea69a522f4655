"""The size of a reproduction: the paper's, or a toy size that takes seconds and shows that everything works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from paper.recipe import EnsembleRecipe, Row
from recarc.attacks import Attack, Tight
from recarc.data.imageset import ImageSet, fingerprint


@dataclass(frozen=True)
class Scale:
    """Limits; None: the recipe's own. `tight` replaces the effort of the tight attack, "none" leaves it out."""

    name: str = "full"
    arch: str | None = None
    arch_options: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    pixels: int | None = None  # images are thinned out to about this size
    steps: int | None = None
    points: int | None = None  # of a sweep
    members: int | None = None
    grid: int = 11  # points of the search for alpha
    grid_images: int = 1000  # at most, of the training images that training held out
    tight: str | None = None
    tile: int | str = "auto"  # samples fed to a member at a time

    def ensemble(self, full: EnsembleRecipe) -> EnsembleRecipe:
        """The same ensemble at this size."""
        if full.package:
            return full
        smaller = replace(
            full,
            start=None if full.start is None else self.ensemble(full.start),
            members=min(full.members, self.members or full.members),
            changes={recipe: {**full.changes.get(recipe, {}), **self.changes} for recipe in ("fast", "paper")},
        )
        return smaller if self.arch is None else replace(smaller, arch=self.arch, arch_options=self.arch_options)

    def row(self, row: Row) -> Row:
        """The same row with fewer points and cheaper attacks."""
        ensemble = self.ensemble(row.ensemble)
        kept = [m for m in row.measurements if not (m.extra and self.tight == "none")]
        kept = [m for m in kept if m.members is None or max(m.members) < ensemble.members]
        places = list(dict.fromkeys(m.x for m in kept if m.x is not None))
        if self.points is not None and len(places) > self.points:
            chosen = {places[i] for i in np.linspace(0, len(places) - 1, self.points).round().astype(int)}
            kept = [m for m in kept if m.x is None or m.x in chosen]
        return replace(
            row, ensemble=ensemble, measurements=tuple(replace(m, attack=self.attack(m.attack)) for m in kept)
        )

    def attack(self, attack: Attack) -> Attack:
        """With at most `steps` steps, also inside attacks made of attacks."""
        changes: dict[str, Any] = {}
        if isinstance(attack, Tight) and self.tight not in (None, "none"):
            changes["preset"] = self.tight
        for knob in fields(attack) if is_dataclass(attack) else ():
            value = getattr(attack, knob.name)
            if self.steps is not None and knob.name in ("steps", "search_steps", "n"):
                changes[knob.name] = min(value, self.steps)
            elif self.steps is not None and knob.name == "queries":
                changes[knob.name] = min(value, 10 * self.steps)
            elif isinstance(value, Attack):
                changes[knob.name] = self.attack(value)
            elif knob.name == "attacks":  # of WorstOf
                changes[knob.name] = tuple(map(self.attack, value))
        return replace(attack, **changes)

    def images(self, data: ImageSet) -> ImageSet:
        """Every k-th row and column of pixels."""
        stride = 1 if self.pixels is None else max(1, data.shape[1] // self.pixels)
        if stride == 1:
            return data
        thinned = np.ascontiguousarray(np.asarray(data.images[:])[:, :, ::stride, ::stride])
        return replace(data, images=thinned, fingerprint=fingerprint(thinned, data.labels, data.levels))


FULL = Scale()
TOY = Scale(
    name="toy",
    arch="cnn",
    arch_options={"width": 2},
    changes={"epochs": 1, "batch": 8, "validation": 4, "attack_steps": 1, "replays": 1, "lr": 0.02},
    pixels=16,
    steps=2,
    points=2,
    members=3,
    grid=3,
    grid_images=8,
    tight="quick",
    tile=8,
)
