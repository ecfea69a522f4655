"""Runs an item: ensembles, alpha, attacks; every run is kept, shared between items, and goes on after a kill."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from recarc import sampling as choosing
from recarc.attacks import RandomAttacker
from recarc.data.catalog import CATALOG
from recarc.data.imageset import ImageSet
from recarc.ensemble import RandomizedEnsemble
from recarc.evaluation.engine import evaluate
from recarc.evaluation.fingerprint import described, module_hash
from recarc.evaluation.intervals import mean_interval
from recarc.evaluation.result import Estimate, Evaluation, estimate
from recarc.evaluation.run_folder import RunFolder, write_all
from recarc.experiments import results
from recarc.experiments.costs import LARGE, MMACS
from recarc.experiments.layout import point
from recarc.experiments.pictures import draw_gallery
from recarc.experiments.recipe import Alpha, Item, Measurement, Reading, Row
from recarc.experiments.results import Figure, ItemResult, RowResult
from recarc.experiments.workshop import Found, Workshop
from recarc.fast import TILE, accelerate
from recarc.geometry import Ball
from recarc.provenance import environment
from recarc.runtime import COARSE

FEW = 16


@dataclass
class Reproduction:
    """One item at work. `keep` is the folder of results; a row is written there as soon as it is complete."""

    item: Item
    rows: list[Row]
    workshop: Workshop
    keep: Path
    progress: bool = True
    evaluations: dict[tuple[str, float | None], Evaluation] = field(default_factory=dict)  # by column and place

    def check(self) -> None:
        self.workshop.check(self.item, self.rows)
        images = {row.name: len(self.workshop.images(row.data)) for row in self.rows}
        results.check_replaceable(self.keep, self.item.name, images, self.workshop.scale.tight != "none")

    def run(self) -> ItemResult:
        self.check()
        order = [row.name for row in self.item.rows]
        for row in self.rows:
            results.add_row(self.keep, self.item.name, self.item.title, self.measured(row), order)
        return results.read(self.keep, self.item.name, self.item.title)

    def measured(self, row: Row) -> RowResult:
        shop, scale = self.workshop, self.workshop.scale
        found, images, small = shop.ensemble(row.made), shop.images(row.data), scale.row(row)
        small = self._fitting(small, len(found.ensemble))
        alpha, chosen_by = self.alpha_of(small, found, images)
        figures: list[Figure] = []
        self.evaluations = {}
        attacks: dict[str, str] = {}
        spent: dict[Path | None, float] = {}  # one run may serve several points of a sweep
        commits = set()  # of the runs, some of which may have been there
        for measurement in small.measurements:
            evaluation = self.evaluated(small, measurement, found.ensemble, alpha, images)
            spent[evaluation.path] = evaluation.seconds
            commits.add(_commit_of(evaluation))
            for reading in measurement.readings:
                self.evaluations[reading.column, measurement.x] = evaluation
                attacks[reading.column] = _shown(measurement)
                new = self.read(reading, measurement, evaluation)
                figures += new
                self._tell(row, new)
        figures += self.differences(small)
        if any(reading.what == "showable" for m in small.measurements for reading in m.readings):
            self.draw(small, found, alpha, images)
        shared = any(m.alpha is None for m in small.measurements)  # some points of sweeps have an alpha of their own
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
            ensemble=found.source,
            recipe=found.recipe if scale.name == "full" else f"{found.recipe}, {scale.name}",
            precision=shop.precision,
            attacks=attacks,
            seconds=round(sum(spent.values()), 1),
            command=self.command(row),
            commit=" and ".join(sorted(c for c in commits if c)) or None,
            hardware=environment(shop.device)["hardware"],
            date=results.now(),
        )

    def _fitting(self, row: Row, members: int) -> Row:
        """Without the measurements for which an ensemble that was given has too few members."""
        kept = tuple(m for m in row.measurements if m.members is None or max(m.members) < members)
        if len(kept) < len(row.measurements):
            self.workshop.say(f"{row.name}: the ensemble has {members} members, larger ones are left out")
        return replace(row, measurements=kept)

    def command(self, row: Row) -> str:
        """What measures this row again, without the paths of one machine."""
        words = ["recarc reproduce", self.item.name, "--only", row.name, "--recipe", self.workshop.recipe]
        count, spec = len(self.workshop.images(row.data)), CATALOG[row.data]
        words += ["--limit", str(count)] if count < spec.splits[spec.evaluation] else []
        if self.workshop.epochs and self.workshop.trains(row.made):
            words += ["--epochs", f"{self.workshop.epochs:g}"]
        words += ["--device", self.workshop.device.type, "--precision", self.workshop.precision]
        given = self.workshop.given.get(row.made.name, self.workshop.given.get(""))
        if given is not None:
            words += ["--ensemble", given if given.startswith("zoo:") else Path(given).name]
        words += ["--tight", self.workshop.scale.tight] if self.workshop.scale.tight else []
        return " ".join(words)

    def alpha_of(self, row: Row, found: Found, images: ImageSet) -> tuple[Alpha, str]:
        """The row's sampling probabilities and who chose them; a search is made once and kept."""
        if row.alpha == "equal":
            return (1 / len(found.ensemble),) * len(found.ensemble), "equal"
        if not isinstance(row.alpha, str):
            return row.alpha, "recipe"
        scale, count = self.workshop.scale, min(len(images), self.workshop.scale.grid_images)
        attack = scale.attack(self._search_attack(row))
        said = f"grid of {scale.grid} points with AdaptivePGD on the first {count} images"
        part = images.limit(count)
        digest = self._digest(found.ensemble, attack, row.ball(), part)
        kept = self.workshop.out / "runs" / f"alpha-{scale.grid}-{digest}.json"
        if kept.exists():
            return tuple(json.loads(kept.read_text())["alpha"]), said
        x, y = part.batch(np.arange(count))
        device, precision = self.workshop.device, self.workshop.precision
        samples = choosing.Samples(x.to(device), y.to(device), row.ball(), 2048 if device.type == "cuda" else 512)
        fast = accelerate(found.ensemble, precision) if precision in COARSE else found.ensemble
        choice = choosing.grid_search(fast, samples, attack, scale.grid, watch=self._watch)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_all({kept: json.dumps({"alpha": choice.alpha, "history": choice.history}).encode()})
        return tuple(choice.alpha), said

    def _search_attack(self, row: Row) -> Any:
        from recarc.experiments.paper import budget

        return budget(row.data).apgd()

    def _watch(self, method: str, alpha: list[float], accuracy: float) -> None:
        self.workshop.say(f"{method}: alpha {', '.join(f'{a:.3g}' for a in alpha)} keeps {100 * accuracy:.2f} %")

    def evaluated(
        self, row: Row, measurement: Measurement, whole: RandomizedEnsemble, alpha: Alpha, images: ImageSet
    ) -> Evaluation:
        members = measurement.members or tuple(range(len(whole)))
        ensemble = RandomizedEnsemble([whole.members[i] for i in members], measurement.alpha or alpha)
        if blind(measurement.attack) and len(ensemble) > 1:
            return self._reweighed(row, measurement, ensemble, images)
        return self._evaluated(row, measurement, ensemble, images)

    def _reweighed(
        self, row: Row, measurement: Measurement, ensemble: RandomizedEnsemble, images: ImageSet
    ) -> Evaluation:
        """An attack that does not look at alpha runs once for all of them; the records give every expectation."""
        alpha = ensemble.alpha.numpy()
        equal = ensemble.with_alpha([1 / len(ensemble)] * len(ensemble))
        found = self._evaluated(row, measurement, equal, images)
        records = found.records
        if isinstance(measurement.attack, RandomAttacker):  # draws the member to attack with the same probabilities
            records = replace(records, weights=alpha)
        return replace(found, records=records, alpha=alpha)

    def _evaluated(
        self, row: Row, measurement: Measurement, ensemble: RandomizedEnsemble, images: ImageSet
    ) -> Evaluation:
        ball = row.ball(measurement.eps)
        digest = self._digest(ensemble, measurement.attack, ball, images)
        out = self.workshop.out / "runs" / f"{images.name}-{type(measurement.attack).__name__.lower()}-{digest}"
        tile = len(images) if len(images) < FEW else self.workshop.scale.tile  # padding to a tile would cost more
        heavy = self.workshop.device.type == "cuda" and MMACS.get(row.made.arch, 0) > LARGE
        return evaluate(
            ensemble,
            measurement.attack,
            images,
            ball,
            out=out,
            progress=self.progress,
            precision=self.workshop.precision,
            batch_size=2 * TILE["cuda"] if heavy else "auto",  # the activations of a whole batch are kept
            tile=tile,
        )

    def _digest(self, ensemble: RandomizedEnsemble, attack: Any, ball: Ball, images: ImageSet) -> str:
        """Names a run by all that it depends on, so that items share it and nothing else does."""
        told = [
            [module_hash(m) for m in ensemble.modules_of_members],
            ensemble.alpha.tolist(),
            described(attack),
            [str(ball.norm), ball.eps],
            images.fingerprint,
            self.workshop.device.type,
            self.workshop.precision,
        ]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]

    def read(self, reading: Reading, measurement: Measurement, evaluation: Evaluation) -> list[Figure]:
        """The figures of one reading; a cross-robustness matrix has many."""
        if reading.what == "cross":
            return _matrix(evaluation)
        common = {"paper": reading.paper, "x": measurement.x, "extra": measurement.extra}
        if reading.what == "minutes":
            return [Figure(reading.column, round(evaluation.seconds / 60, 4), unit="min", **common)]  # type: ignore[arg-type]
        if reading.what == "showable":
            scores = self.showable().astype(float)
        else:
            kinds = {"robust": "robust_scores", "clean": "clean_scores", "floor": "floor_scores"}
            scores = getattr(evaluation, kinds[reading.what])
        value, interval = _percent(estimate(scores))
        return [Figure(reading.column, value, interval, **common)]  # type: ignore[arg-type]

    def showable(self) -> np.ndarray:
        """(N,) clean and under APGD right for every member, under ARC wrong for all."""
        arc = self.evaluations["ARC", None]
        return self.fooled() == len(arc.adversarial_predictions[0])

    def fooled(self) -> np.ndarray:
        """(N,) how many members ARC fools where clean and under APGD none is wrong; else 0."""
        apgd, arc = self.evaluations["APGD", None], self.evaluations["ARC", None]
        right = (apgd.clean_predictions == apgd.labels).all(0)
        right &= (apgd.adversarial_predictions[0] == apgd.labels).all(0)
        wrong = (arc.adversarial_predictions[0] != arc.labels).sum(0)
        return np.where(right, wrong, 0)

    def differences(self, row: Row) -> list[Figure]:
        """Paired over the images: mean and 95 % interval of the difference."""
        found = []
        for wanted in row.differences:
            places = (wanted.of, wanted.of_x), (wanted.less, wanted.less_x)
            if any(place not in self.evaluations for place in places):  # an ensemble with fewer members was given
                continue
            of, less = (self.evaluations[place].robust_scores for place in places)
            low, high = _paired(of - less)
            interval = (round(100 * low, 4), round(100 * high, 4))
            mean = round(100 * float((of - less).mean()), 4)
            found.append(Figure(wanted.column, mean, interval, wanted.paper, unit="points"))
        return found

    def draw(self, row: Row, found: Found, alpha: Alpha, images: ImageSet) -> None:
        """Up to three images with their perturbations; an attack gives an image the same result in any batch."""
        fooled, members = self.fooled(), len(found.ensemble)
        most = int(fooled.max())
        if not most:
            self.workshop.say(f"{row.name}: no image that APGD leaves right for every member and ARC does not")
            return
        chosen = np.flatnonzero(fooled == most)[:3]
        title = f"APGD fools no member, ARC {most} of {members} ({int((fooled == most).sum())} of {len(images)} images)"
        attacks = {m.readings[0].column: m.attack for m in row.measurements}
        path = self.keep / f"{self.item.name}-{row.name}.png"
        draw_gallery(found.ensemble.with_alpha(alpha), images.subset(chosen), row.ball(), attacks, path, title)

    def _tell(self, row: Row, figures: list[Figure]) -> None:
        for f in figures:
            at = "" if f.x is None else f" at {point(row.axis, f.x)}"
            paper = "" if f.paper is None else f" (paper {f.paper:g})"
            self.workshop.say(f"{self.item.name} {row.name}{at}: {f.column} {f.measured:.2f} {f.unit}{paper}")


def blind(attack: Any) -> bool:
    """Whether an attack finds the same perturbations whatever alpha is: it is made for one member, or each in turn."""
    return isinstance(attack, RandomAttacker) or getattr(attack, "member", None) is not None


def _commit_of(evaluation: Evaluation) -> str | None:
    """The version of the code that began the run, which may have been an earlier one than this."""
    assert evaluation.path is not None
    known: str | None = RunFolder.open(evaluation.path).run["environment"].get("commit")
    return known


def _paired(gap: np.ndarray) -> tuple[float, float]:
    """95 % interval for the mean of differences in [-1, 1].

    Where all are equal, gains and losses each have theirs, which leave room for values that were not seen.
    """
    if len(gap) > 1 and np.ptp(gap) > 0:
        half = 1.96 * float(gap.std(ddof=1)) / len(gap) ** 0.5
        return float(gap.mean()) - half, float(gap.mean()) + half
    gains, losses = mean_interval(gap.clip(0, 1)), mean_interval((-gap).clip(0, 1))
    return max(-1.0, gains[0] - losses[1]), min(1.0, gains[1] - losses[0])


def _percent(found: Estimate) -> tuple[float, tuple[float, float]]:
    return round(100 * found.value, 4), (round(100 * found.low, 4), round(100 * found.high, 4))


def _matrix(evaluation: Evaluation) -> list[Figure]:
    figures = []
    for j, predictions in enumerate(evaluation.adversarial_predictions):
        for i, row in enumerate(predictions == evaluation.labels):
            value, interval = _percent(estimate(row.astype(float)))
            figures.append(Figure(f"f{i + 1} under f{j + 1}", value, interval))
    return figures


def _shown(measurement: Measurement) -> str:
    """ARC(steps=20, ...) with the knobs of the dataclass; of a sweep the last one stands for all."""
    return repr(measurement.attack)
