"""The settings of a run and what it works with: image sets, and ensembles that are given, found or trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from paper.recipe import EnsembleRecipe, Item, Row, radius
from paper.scale import FULL, Scale
from recarc import zoo
from recarc.cli.output import print_note
from recarc.data.held_out import HeldOut, held_out
from recarc.data.imageset import ImageSet
from recarc.data.loading import load
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.models.store import load_ensemble, read_manifest
from recarc.training import train

HERE = Path(__file__).parent
ENSEMBLES = HERE / "ensembles"  # trained for the paper and too large for the zoo


@dataclass(frozen=True)
class LoadedEnsemble:
    """An ensemble and where it comes from; `made_by` is what its folder says of how it was made."""

    ensemble: RandomizedEnsemble
    source: str
    recipe: str
    made_by: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Setup:
    """`given` maps names of ensembles to folders (or zoo:NAME); "" stands for the only one that is needed."""

    out: Path
    device: torch.device
    recipe: str = "fast"
    data_dir: Path | None = None
    limit: int | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    scale: Scale = FULL
    report: Callable[[str], None] | None = print_note  # None: no progress
    precision: str = "float32"  # of the attacks' search
    epochs: float | None = None  # of what is trained; None: the recipe's
    _ensembles: dict[str, LoadedEnsemble] = field(default_factory=dict)
    _images: dict[tuple[str, str, bool], ImageSet] = field(default_factory=dict)

    def say(self, text: str) -> None:
        if self.report is not None:
            self.report(text)

    def images(self, data: str, split: str = "test", last: bool = False) -> ImageSet:
        """All images of a training set; of a test set the first `limit`, or the last."""
        if (data, split, last) not in self._images:
            limit = self.limit if split == "test" else None
            found = load(data, split, data_dir=self.data_dir, limit=None if last else limit)
            if last and limit is not None:
                found = found.subset(slice(max(0, len(found) - limit), len(found)))
            self._images[data, split, last] = self.scale.images(found)
        return self._images[data, split, last]

    def held_out(self, data: str, loaded: LoadedEnsemble) -> HeldOut:
        """The images to choose alpha on: training images, so that none is scored afterwards."""
        found = held_out(self.images(data, "train"), loaded.made_by)
        return replace(found, images=found.images.limit(self.scale.grid_images))

    def available(self, rows: list[Row]) -> list[Row]:
        """The rows whose images are available; the others are reported. If there is none, the reason is raised."""
        missing: dict[str, InputError] = {}
        for data in dict.fromkeys(row.data for row in rows):
            try:
                self.images(data)
            except InputError as error:
                missing[data] = error
        kept = [row for row in rows if row.data not in missing]
        if rows and not kept:
            raise next(iter(missing.values()))
        for data, why in missing.items():
            self.say(f"left out, without its data: {', '.join(r.name for r in rows if r.data == data)} ({why})")
        return kept

    def check(self, item: Item, rows: list[Row]) -> None:
        """Refuse what cannot work before anything is computed."""
        needed = {row.ensemble.name for row in rows}
        starts = {row.ensemble.start.name for row in rows if row.ensemble.start is not None}
        if "" in self.given and len(needed) != 1:
            raise InputError(
                f"--ensemble gives one folder, but these rows of {item.name} need {len(needed)} ensembles: choose rows "
                f"with --only, or name it, e.g. --ensemble {sorted(needed)[0]}=DIR"
            )
        for name in self.given:
            if name and name not in needed | starts:
                raise InputError(
                    f"--ensemble {name}=... is not needed by {item.name}; it needs {sorted(needed | starts)}"
                )
        for data in dict.fromkeys(row.data for row in rows):
            self.images(data)
        for data in dict.fromkeys(row.data for row in rows if row.alpha == "grid"):
            try:
                self.images(data, "train")
            except InputError as error:
                raise InputError(f"alpha is chosen on training images: {error}") from None

    def check_epochs(self, item: Item, rows: list[Row]) -> None:
        """Refuse --epochs where nothing is trained."""
        if self.epochs is not None and not any(self.trains(row.ensemble) for row in rows):
            raise InputError(f"--epochs is for training, and these rows of {item.name} train nothing: leave it out")

    def folder(self, recipe: EnsembleRecipe) -> Path:
        length = "" if self.epochs is None else f"-{self.epochs:g}-epochs"
        return self.out / "ensembles" / f"{self.scale.ensemble(recipe).name}-{self.training_of(recipe)}{length}"

    def training_of(self, recipe: EnsembleRecipe) -> str:
        """fast or paper."""
        return recipe.recipe or self.recipe

    def ensemble(self, recipe: EnsembleRecipe) -> LoadedEnsemble:
        """As given, or trained before, or shipped, or trained now."""
        if recipe.name not in self._ensembles:
            self._ensembles[recipe.name] = self._load(recipe)
        return self._ensembles[recipe.name]

    def given_for(self, recipe: EnsembleRecipe) -> str | None:
        """The folder or zoo:NAME that --ensemble gives for it."""
        return self.given.get(recipe.name, self.given.get(""))

    def trains(self, recipe: EnsembleRecipe) -> bool:
        """Whether the ensemble is one that training makes, now or in an earlier run."""
        return not recipe.package and self.given_for(recipe) is None and self._shipped(recipe) is None

    def _load(self, recipe: EnsembleRecipe) -> LoadedEnsemble:
        given = self.given_for(recipe)
        if recipe.package and given is None:
            return LoadedEnsemble(pretrained(recipe).to(self.device), f"package {recipe.arch}", "pretrained")
        place = self._place(recipe)
        if place is None:
            ensemble, made_by = self._train(recipe), read_manifest(self.folder(recipe)).made_by
            return LoadedEnsemble(ensemble, recipe.name, _training_of(made_by), made_by)
        source = place if place.startswith(zoo.PREFIX) else recipe.name
        if given is not None and source != place:
            source = f"given ({Path(place).name})"
        ensemble, made_by = load_ensemble(place, self.device), read_manifest(place).made_by
        return LoadedEnsemble(ensemble, source, _training_of(made_by), made_by)

    def _place(self, recipe: EnsembleRecipe) -> str | None:
        """The folder or zoo:NAME that the ensemble is read from; None if it has to be trained."""
        folder = self.folder(recipe)
        trained = str(folder) if (folder / "ensemble.json").exists() else None
        return self.given_for(recipe) or trained or self._shipped(recipe)

    def _shipped(self, recipe: EnsembleRecipe) -> str | None:
        return shipped(recipe, self.training_of(recipe)) if self.scale.name == "full" else None

    def _train(self, recipe: EnsembleRecipe) -> RandomizedEnsemble:
        small, folder, training = self.scale.ensemble(recipe), self.folder(recipe), self.training_of(recipe)
        start = None
        if recipe.start is not None:
            self.ensemble(recipe.start)
            start = self._place(recipe.start)
        self.say(f"{recipe.name}: training into {folder}")
        ensemble = train(
            small.method,
            self.images(recipe.data, "train"),
            small.arch,
            norm=small.norm,
            eps=None if small.eps is None else radius(small.eps),
            out=folder,
            recipe=training,
            members=small.members,
            seed=small.seed,
            start=start,
            changes={**small.changes.get(training, {}), **({} if self.epochs is None else {"epochs": self.epochs})},
            arch_options=dict(small.arch_options),
            device=self.device,
            say=self.report,
        )
        return ensemble.to(self.device).eval()


def shipped(ensemble: EnsembleRecipe, training: str) -> str | None:
    """What a recipe makes, from the zoo or from paper/ensembles, trained for as long as its members need."""
    for entry in zoo.entries():
        if (entry.made, entry.recipe) == (ensemble.name, training):
            return f"{zoo.PREFIX}{entry.name}"
    folder = ENSEMBLES / f"{ensemble.name}-{training}"
    return str(folder) if (folder / "ensemble.json").exists() else None


def _training_of(made_by: Mapping[str, Any]) -> str:
    """How an ensemble was trained, in words."""
    recipe = made_by.get("recipe")
    if isinstance(recipe, dict):
        first = " from a trained first member" if made_by.get("start") else ""
        copies = f" on {recipe['copies']} copies" if recipe.get("copies") else ""
        return f"{recipe.get('name')}, {recipe.get('epochs'):g} epochs{copies}{first}"
    return "imported" if "import" in made_by else "training unknown"


def pretrained(recipe: EnsembleRecipe) -> RandomizedEnsemble:
    """Members that a package provides."""
    from recarc.adapters import members

    if recipe.arch != "efficientnet-lite":
        raise InputError(f"no adapter makes {recipe.arch!r}")
    return RandomizedEnsemble([members.efficientnet_lite(size) for size in range(recipe.members)])
