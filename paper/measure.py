"""Measures an item: ensembles, alpha, attacks. Every run is kept, shared between items, and resumed after a kill."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paper import results
from paper.costs import LARGE, MMACS
from paper.plots import draw, draw_gallery
from paper.recipe import Alpha, Item, Measurement, Reading, Row, ignores_alpha
from paper.results import Figure, ItemResult, RowResult
from paper.settings import budget
from paper.setup import LoadedEnsemble, Setup
from paper.tables import gradients_of, point
from recarc import sampling
from recarc.atomic import write_bytes
from recarc.attacks import RandomAttacker
from recarc.data.catalog import CATALOG
from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.evaluation.engine import evaluate
from recarc.evaluation.fingerprint import describe, module_hash
from recarc.evaluation.intervals import paired_interval
from recarc.evaluation.result import Estimate, Evaluation, estimate
from recarc.evaluation.run_folder import RunFolder
from recarc.fast import accelerate
from recarc.geometry import Ball
from recarc.provenance import environment
from recarc.runtime import COARSE, TILE

FEW = 16  # images; padding so few to a whole tile would cost more than it saves


def measure(
    item: Item, setup: Setup, folder: Path, parts: list[str], progress: bool = True, columns: Sequence[str] = ()
) -> ItemResult:
    """Measure these rows of an item into `folder`, or only some columns of them, and draw its figure there."""
    if item.measure is None:
        rows = [row.only(columns) if columns else row for row in item.rows if row.name in parts]
        result = ItemRun(item, rows, setup, folder, progress, tuple(columns)).run()
    elif columns:
        raise InputError(f"{item.name} has no columns to choose from: leave out --column")
    else:
        name = item.name if item.page != "performance" else f"{item.name}-{machine_name(setup.device)}"
        result = results.read(folder, name, item.title)
        for found in item.measure(setup, folder, parts):
            result = results.add_row(folder, name, item.title, found, [])
    draw(item, result, folder)
    return result


def machine_name(device: torch.device) -> str:
    """h200 or cpu, for the file names of benchmarks."""
    return torch.cuda.get_device_name(device).split()[-1].lower() if device.type == "cuda" else device.type


@dataclass
class ItemRun:
    """The measurement of one item. A row is written to `folder` as soon as it is complete."""

    item: Item
    rows: list[Row]
    setup: Setup
    folder: Path
    progress: bool = True
    columns: tuple[str, ...] = ()  # put these into rows that are there; none: whole rows
    evaluations: dict[tuple[str, float | None], Evaluation] = field(default_factory=dict)  # by column and x

    def run(self) -> ItemResult:
        self.setup.check(self.item, self.rows)
        images = {row.name: len(self.setup.images(row.data, last=row.last)) for row in self.rows}
        for row in self.rows if self.columns else ():
            results.mergeable(self.folder, self.item.name, row.name, images[row.name])
        if not self.columns:
            results.check_replaceable(self.folder, self.item.name, images, self.setup.scale.tight != "none")
        order = [row.name for row in self.item.rows]
        for row in self.rows:
            if self.columns:
                results.add_columns(self.folder, self.item.name, self.measured(row), row.differences)
                continue
            results.add_row(self.folder, self.item.name, self.item.title, self.measured(row), order)
        return results.read(self.folder, self.item.name, self.item.title)

    def measured(self, row: Row) -> RowResult:
        """All figures of one row, with its provenance."""
        setup, scale = self.setup, self.setup.scale
        loaded, images = setup.ensemble(row.ensemble), setup.images(row.data, last=row.last)
        small = self._without_missing_members(scale.row(row), len(loaded.ensemble))
        alpha, chosen_by = self.alpha_of(small, loaded)
        figures: list[Figure] = []
        self.evaluations = {}
        attacks: dict[str, str] = {}
        spent: dict[Path | None, float] = {}  # one run may serve several points of a sweep
        commits = set()  # of the runs, some of which may be older
        for measurement in small.measurements:
            evaluation = self.evaluated(small, measurement, loaded.ensemble, alpha, images)
            spent[evaluation.path] = evaluation.seconds
            commits.add(_commit_of(evaluation))
            for reading in measurement.readings:
                self.evaluations[reading.column, measurement.x] = evaluation
                attacks[reading.column] = repr(measurement.attack)  # of a sweep the last one stands for all
                new = self.read(reading, measurement, evaluation)
                figures += new
                self._report(row, new)
        figures += self.differences(small)
        if any(reading.what == "none-all" for m in small.measurements for reading in m.readings):
            self.draw_images(small, loaded, alpha, images)
        shared = any(m.alpha is None for m in small.measurements)  # points of a sweep may have an alpha of their own
        return RowResult(
            row.name,
            tuple(figures),
            images=len(images),
            data=images.name,
            split=images.split,
            norm=row.norm,
            eps=row.eps,
            axis=row.axis,
            alpha=alpha if shared else None,
            alpha_chosen_by=chosen_by if shared else "",
            ensemble=loaded.source,
            recipe=loaded.recipe if scale.name == "full" else f"{loaded.recipe}, {scale.name}",
            precision=setup.precision,
            attacks=attacks,
            seconds=round(sum(spent.values()), 1),
            command=self.command(row),
            commit=" and ".join(sorted(c for c in commits if c)) or None,
            hardware=environment(setup.device)["hardware"],
            date=results.now(),
        )

    def _without_missing_members(self, row: Row, members: int) -> Row:
        """Without the measurements for which a given ensemble has too few members."""
        kept = tuple(m for m in row.measurements if m.members is None or max(m.members) < members)
        if len(kept) < len(row.measurements):
            self.setup.say(f"{row.name}: the ensemble has {members} members; larger sizes are left out")
        return replace(row, measurements=kept)

    def command(self, row: Row) -> str:
        """The command that measures this row again, without the paths of one machine."""
        words = ["python -m paper", self.item.name, "--only", shlex.quote(row.name)]
        words += [word for column in self.columns for word in ("--column", shlex.quote(column))]
        words += ["--recipe", self.setup.recipe]
        count, spec = len(self.setup.images(row.data, last=row.last)), CATALOG[row.data]
        words += ["--limit", str(count)] if count < spec.splits[spec.evaluation] else []
        if self.setup.epochs and self.setup.trains(row.ensemble):
            words += ["--epochs", f"{self.setup.epochs:g}"]
        words += ["--device", self.setup.device.type, "--precision", self.setup.precision]
        given = self.setup.given_for(row.ensemble)
        if given is not None:
            words += ["--ensemble", given if given.startswith("zoo:") else Path(given).name]
        words += ["--tight", self.setup.scale.tight] if self.setup.scale.tight else []
        words += ["--points", str(self.setup.scale.points)] if self.setup.scale.points else []
        return " ".join(words)

    def alpha_of(self, row: Row, loaded: LoadedEnsemble) -> tuple[Alpha, str]:
        """The row's sampling probabilities and how they were chosen; a search is made once and kept.

        Never on the images that are scored: on training images that no member was trained on, as far as is known.
        """
        ensemble = loaded.ensemble
        if row.alpha == "equal":
            return (1 / len(ensemble),) * len(ensemble), "equal"
        if not isinstance(row.alpha, str):
            return row.alpha, "recipe"
        scale, held_out = self.setup.scale, self.setup.held_out(row.data, loaded)
        attack = scale.attack(budget(row.data).apgd())
        part = held_out.images
        chosen_by = f"grid of {scale.grid} points with AdaptivePGD on {len(part)} {held_out.words}"
        digest = self._digest(ensemble, attack, row.ball(), part)
        path = self.setup.out / "runs" / f"alpha-{scale.grid}-{digest}.json"
        if path.exists():
            return tuple(json.loads(path.read_text())["alpha"]), chosen_by
        x, y = part.tensors()
        device, precision = self.setup.device, self.setup.precision
        samples = sampling.AttackedSamples(
            x.to(device), y.to(device), row.ball(), 2048 if device.type == "cuda" else 512
        )
        searched = accelerate(ensemble, precision) if precision in COARSE else ensemble
        choice = sampling.grid_search(searched, samples, attack, scale.grid, watch=self._report_alpha)
        write_bytes(path, json.dumps({"alpha": choice.alpha, "history": choice.history}).encode())
        return tuple(choice.alpha), chosen_by

    def _report_alpha(self, method: str, alpha: list[float], accuracy: float) -> None:
        self.setup.say(f"{method}: alpha {', '.join(f'{a:.3g}' for a in alpha)} keeps {100 * accuracy:.2f} %")

    def evaluated(
        self, row: Row, measurement: Measurement, whole: RandomizedEnsemble, alpha: Alpha, images: ImageSet
    ) -> Evaluation:
        """The run of one measurement. An attack that ignores alpha runs once; its records give every expectation."""
        members = measurement.members or tuple(range(len(whole)))
        *others, last = [whole.modules_of_members[i] for i in members]
        if measurement.temperature != 1:
            last = Tempered(last, measurement.temperature).eval()
        ensemble = RandomizedEnsemble([*others, last], measurement.alpha or alpha)
        if not ignores_alpha(measurement.attack) or len(ensemble) == 1:
            return self._run(row, measurement, ensemble, images)
        weights = ensemble.alpha.numpy()
        result = self._run(row, measurement, ensemble.with_alpha([1 / len(ensemble)] * len(ensemble)), images)
        records = result.records
        if isinstance(measurement.attack, RandomAttacker):  # draws the member to attack with the same probabilities
            records = replace(records, weights=weights)
        return replace(result, records=records, alpha=weights)

    def _run(self, row: Row, measurement: Measurement, ensemble: RandomizedEnsemble, images: ImageSet) -> Evaluation:
        ball = row.ball(measurement.eps)
        digest = self._digest(ensemble, measurement.attack, ball, images)
        out = self.setup.out / "runs" / f"{images.name}-{type(measurement.attack).__name__.lower()}-{digest}"
        few = len(images) < TILE["cpu"] and self.setup.device.type == "cpu"
        tile = min(len(images), FEW) if few else self.setup.scale.tile
        heavy = self.setup.device.type == "cuda" and MMACS.get(row.ensemble.arch, 0) > LARGE
        return evaluate(
            ensemble,
            measurement.attack,
            images,
            ball,
            out=out,
            progress=self.progress,
            precision=self.setup.precision,
            batch_size=2 * TILE["cuda"] if heavy else "auto",  # memory holds the activations of a whole batch
            tile=tile,
        )

    def _digest(self, ensemble: RandomizedEnsemble, attack: Any, ball: Ball, images: ImageSet) -> str:
        """Name a run by everything it depends on, so that items share it and nothing else does."""
        identity = [
            [module_hash(m) for m in ensemble.modules_of_members],
            ensemble.alpha.tolist(),
            describe(attack),
            [str(ball.norm), ball.eps],
            images.fingerprint,
            self.setup.device.type,
            self.setup.precision,
        ]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def read(self, reading: Reading, measurement: Measurement, evaluation: Evaluation) -> list[Figure]:
        """The figures of one reading; a cross-robustness matrix has many."""
        if reading.what == "cross":
            return _matrix(evaluation)
        common = {"paper": reading.paper, "x": measurement.x, "extra": measurement.extra}
        if reading.what in ("minutes", "seconds"):
            size, unit = (60, "min") if reading.what == "minutes" else (1, "s")
            return [Figure(reading.column, round(evaluation.seconds / size, 4), unit=unit, **common)]  # type: ignore[arg-type]
        if reading.what == "gradients":
            each = evaluation.backward_passes / len(evaluation)
            return [Figure(gradients_of(reading.column), round(each, 2), unit="gradients", **common)]  # type: ignore[arg-type]
        if reading.what in ("none-all", "most-all"):
            scores = self.turned_by_arc(apgd_fools_none=reading.what == "none-all").astype(float)
        else:
            kinds = {"robust": "robust_scores", "clean": "clean_scores", "floor": "floor_scores"}
            scores = getattr(evaluation, kinds[reading.what])
        value, interval = _percent(estimate(scores))
        return [Figure(reading.column, value, interval, **common)]  # type: ignore[arg-type]

    def turned_by_arc(self, apgd_fools_none: bool) -> np.ndarray:
        """(N,) whether all members are right on the clean image and ARC turns every one of them wrong.

        While APGD fools none of them, or else only members that are drawn less than half of the time.
        """
        apgd, arc = self.evaluations["APGD", None], self.evaluations["ARC", None]
        clean, under_apgd, under_arc = (
            predictions == apgd.labels
            for predictions in (apgd.clean_predictions, apgd.adversarial_predictions[0], arc.adversarial_predictions[0])
        )
        spared = under_apgd.all(0) if apgd_fools_none else apgd.robust_scores > 0.5
        return clean.all(0) & ~under_arc.any(0) & spared

    def differences(self, row: Row) -> list[Figure]:
        """Paired over the images: mean and 95 % interval of the difference."""
        figures = []
        for wanted in row.differences:
            places = (wanted.plus, wanted.plus_x), (wanted.minus, wanted.minus_x)
            if any(place not in self.evaluations for place in places):  # an ensemble with fewer members was given
                continue
            plus, minus = (self.evaluations[place].robust_scores for place in places)
            low, high = paired_interval(plus - minus)
            interval = (round(100 * low, 4), round(100 * high, 4))
            mean = round(100 * float((plus - minus).mean()), 4)
            figures.append(Figure(wanted.column, mean, interval, wanted.paper, unit="points"))
        return figures

    def draw_images(self, row: Row, loaded: LoadedEnsemble, alpha: Alpha, images: ImageSet) -> None:
        """Up to three images with their perturbations; an attack gives an image the same result in any batch."""
        for apgd_fools_none in (True, False):
            found = np.flatnonzero(self.turned_by_arc(apgd_fools_none))
            if len(found):
                break
        else:
            self.setup.say(f"{row.name}: no image that ARC turns wrong for all members and APGD for few")
            return
        what = "no member" if apgd_fools_none else "members drawn less than half of the time"
        title = f"APGD fools {what}, ARC all ({len(found)} of {len(images)} images)"
        attacks = {m.readings[0].column: m.attack for m in row.measurements}
        path = self.folder / f"{self.item.name}-{row.name}.png"
        draw_gallery(loaded.ensemble.with_alpha(alpha), images.subset(found[:3]), row.ball(), attacks, path, title)

    def _report(self, row: Row, figures: list[Figure]) -> None:
        for f in figures:
            at = "" if f.x is None else f" at {point(row.axis, f.x)}"
            paper = "" if f.paper is None else f" (paper {f.paper:g})"
            self.setup.say(f"{self.item.name} {row.name}{at}: {f.column} {f.measured:.2f} {f.unit}{paper}")


class Tempered(nn.Module):
    """A member that is less sure of the same answers: its logits divided by a number."""

    def __init__(self, member: nn.Module, temperature: float) -> None:
        super().__init__()
        self.member, self.temperature = member, temperature

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.member(x)
        return logits / self.temperature


def _commit_of(evaluation: Evaluation) -> str | None:
    """The version of the code that began the run, which may be older than the current one."""
    assert evaluation.path is not None
    known: str | None = RunFolder.open(evaluation.path).run["environment"].get("commit")
    return known


def _percent(value: Estimate) -> tuple[float, tuple[float, float]]:
    return round(100 * value.value, 4), (round(100 * value.low, 4), round(100 * value.high, 4))


def _matrix(evaluation: Evaluation) -> list[Figure]:
    figures = []
    for j, predictions in enumerate(evaluation.adversarial_predictions):
        for i, row in enumerate(predictions == evaluation.labels):
            value, interval = _percent(estimate(row.astype(float)))
            figures.append(Figure(f"f{i + 1} under f{j + 1}", value, interval))
    return figures
