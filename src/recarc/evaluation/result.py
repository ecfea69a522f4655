"""The result of an evaluation: figures that are all recomputed from the per-sample records."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recarc.atomic import replacing
from recarc.attacks.challenge import CHALLENGED
from recarc.ensemble import rounded, validated_alpha
from recarc.errors import InputError, spreadsheet_cell
from recarc.evaluation.fingerprint import knob_of
from recarc.evaluation.floor_error import Challenged
from recarc.evaluation.intervals import mean_interval
from recarc.evaluation.masking import Signal
from recarc.evaluation.records import Records, joined
from recarc.evaluation.run_folder import CERTIFICATE, RUN, RunFolder, save_run
from recarc.lazy import import_object

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from recarc.evaluation.certification import Certification
    from recarc.evaluation.verdict import Verdict
    from recarc.exact.floors import Floor

NAMED_INDICES = 100  # of samples with NaN, in a summary


class Share(float):
    """A fraction that prints as people say it, in percent like an `Estimate`; in all else a float."""

    unit = "%"

    def __repr__(self) -> str:
        return f"{100 * float(self):.2f} {self.unit}"


class Points(Share):
    """A difference of shares: a fraction that prints in percentage points."""

    unit = "points"


@dataclass(frozen=True, repr=False)
class Estimate:
    """An accuracy as a fraction, with its 95 % interval; `note` qualifies it."""

    value: float
    low: float
    high: float
    note: str = ""

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{Share(self.value)} [{100 * self.low:.2f}, {100 * self.high:.2f}]{note}"

    def _repr_html_(self) -> str:
        value, rest = str(self).split(" [", 1)
        return f"<b>{value}</b> [{escape(rest)}"


@dataclass(eq=False, repr=False)
class Evaluation:
    """Per-sample bits of an attacked ensemble, and every figure that follows from them.

    Shapes: N samples, M members, J adversarial inputs per sample (1, or one per member if the attacker randomizes).
    """

    records: Records
    alpha: np.ndarray
    configuration: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    forward_passes: int = 0
    backward_passes: int = 0
    expected_samples: int | None = None
    path: Path | None = None
    warnings: list[str] = field(default_factory=list)
    signals: list[Signal] = field(default_factory=list)  # that attacks may miss how weak a member is
    certification: Certification | None = None  # what `certify` wrote beside it

    @classmethod
    def load(cls, path: str | Path, partial: bool = False) -> Evaluation:
        """The evaluation in a run folder; an unfinished one is refused unless `partial`."""
        folder = RunFolder.open(path)
        parts, costs, bad, damaged = [], [], [], []
        for k in range(folder.shards):
            try:
                records, cost = folder.read(k)
                parts.append(records)
                costs.append(cost)
            except ValueError as error:
                bad.append(k)
                if partial and (begun := folder.begun(k)) is not None:
                    parts.append(begun[0])
                    costs.append(begun[1])
                damaged += [phrase] if (phrase := folder.damaged(k, error)) else []
        if damaged and not (partial and parts):
            raise InputError(f"{damaged[0]}; rerun the command of {path} to compute it again")
        if bad and not (partial and parts):
            done = folder.shards - len(bad)
            raise InputError(
                f"{path} is not finished: it has {done} of {folder.shards} shards; rerun its command to resume"
            )
        summary = folder.summary()
        certification, why_not = _certification(folder)
        return cls(
            records=joined(parts),
            alpha=np.array(folder.configuration["alpha"], dtype=np.float64),
            configuration=folder.configuration,
            seconds=float(sum(cost["seconds"] for cost in costs)),
            forward_passes=sum(int(cost["forward"]) for cost in costs),
            backward_passes=sum(int(cost["backward"]) for cost in costs),
            expected_samples=folder.samples,
            path=Path(path),
            warnings=[*summary.get("warnings", []), *damaged, *why_not],
            certification=certification,
            signals=[Signal.from_json(saved) for saved in summary.get("signals", [])],
        )

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        floor = "" if self.floor is None else f", floor {self.floor}"
        figures = f"clean {self.clean}, robust {self.robust}{floor}"
        return f"Evaluation({len(self)} samples, {len(self.alpha)} members, {figures})"

    def _repr_html_(self) -> str:
        """For notebooks: the figures, the verdict and the members."""
        data = self.configuration.get("data", {}).get("name", "")
        count = f"{len(self)} samples" if self.complete else f"{len(self)} of {self.expected_samples} samples so far"
        facts = {"data": escape(f"{data} ({count})" if data else count), "clean accuracy": self.clean._repr_html_()}
        facts["robust accuracy"] = self.robust._repr_html_()
        if self.floor is not None:
            facts["floor"] = f"{self.floor}, a gap of {self.gap}"
        columns = {"clean_accuracy": "clean %", "robust_accuracy": "under attack %", "robust_alone": "alone %"}
        columns = {key: title for key, title in columns.items() if key != "robust_alone" or self.alone is not None}
        rows = [["member (from 0)", "alpha", *columns.values()]]
        for i, member in enumerate(self._members()):
            figures = (f"{100 * member[key]:.2f}" if key in member else "" for key in columns)
            rows.append([str(i), f"{member['alpha']:.4g}", *figures])
        sentence = "" if self.verdict is None else f"<p>{escape(self.verdict.sentence)}</p>"
        return f"{html_table([list(fact) for fact in facts.items()])}{sentence}{html_table(rows)}"

    def save(self, path: str | Path) -> Path:
        """Write the records as a run folder, as `evaluate(out=...)` does, for `load` and the command line."""
        if not self.complete or not self.configuration:
            raise InputError("only a finished evaluation of `evaluate` can be saved")
        return save_run(path, self.configuration, self.records, self.to_json())

    def plot(self) -> Figure:
        """The figures of this evaluation, attack by attack, as a matplotlib figure."""
        figure: Figure = _report("attacks_figure")(_report("build_report")(self))
        return figure

    def report(self, path: str | Path = "report.html", title: str | None = None) -> Path:
        """Write the page of this evaluation (see `recarc.report.build_report` for more of them on one page)."""
        page: Path = _report("write_page")(_report("build_report")(self, title), path)
        return page

    @property
    def complete(self) -> bool:
        return self.expected_samples in (None, len(self))

    @property
    def labels(self) -> np.ndarray:
        """(N,) true labels."""
        return self.records.labels

    @property
    def clean_predictions(self) -> np.ndarray:
        """(M, N) labels that the members predict for the clean inputs; -1 where a member's logits are NaN."""
        return self.records.clean

    @property
    def adversarial_predictions(self) -> np.ndarray:
        """(J, M, N) labels that the members predict for the adversarial inputs."""
        return self.records.adversarial

    @property
    def weights(self) -> np.ndarray:
        """(J,) probabilities with which the attacker uses its inputs."""
        return self.records.weights

    @property
    def norms(self) -> np.ndarray:
        """(J, N) sizes of the perturbations, in the norm of the ball."""
        return self.records.norms

    @property
    def stages(self) -> dict[str, np.ndarray]:
        """(M, N) predictions per stage of a staged attack, "clean" first: at its own points, or at the best so far.

        Of `Tight`, adaptive_pgd and arc are attacks by themselves; each later entry is the best of all up to it.
        """
        return self.records.stages

    @property
    def alone(self) -> np.ndarray | None:
        """(M, N) whether a member withstood every attack on it alone; None if the attack has no such stage."""
        return self.records.alone

    @property
    def decided_by(self) -> np.ndarray | None:
        """(N,) the first stage (index into `stages`) after which the best so far was the final value; -1 for none."""
        return self.records.decided_by

    def score(self, predictions: np.ndarray, alpha: np.ndarray | None = None) -> np.ndarray:
        """Expected accuracy (N,) of (M, N) predictions; sums that are equal compare equal."""
        weights = self.alpha if alpha is None else alpha
        return rounded((weights[:, None] * (predictions == self.labels)).sum(0))

    @cached_property
    def clean_scores(self) -> np.ndarray:
        """(N,) expected accuracy on the clean inputs."""
        return self.score(self.clean_predictions)

    @cached_property
    def robust_scores(self) -> np.ndarray:
        """(N,) expected accuracy under the attack, over the draws of the ensemble and of the attacker."""
        return self._mixed(self.alpha)

    def _mixed(self, alpha: np.ndarray) -> np.ndarray:
        parts = [w * self.score(p, alpha) for w, p in zip(self.weights, self.adversarial_predictions)]
        return rounded(np.sum(parts, axis=0))

    @cached_property
    def clean(self) -> Estimate:
        """Expected accuracy on the clean inputs."""
        return estimate(self.clean_scores)

    @cached_property
    def robust(self) -> Estimate:
        """Expected accuracy under the attack."""
        return estimate(self.robust_scores)

    @property
    def clean_accuracy(self) -> float:
        return self.clean.value

    @property
    def robust_accuracy(self) -> float:
        return self.robust.value

    @property
    def member_clean(self) -> np.ndarray:
        """(M,) clean accuracies."""
        return (self.clean_predictions == self.labels).mean(1)

    @property
    def member_robust(self) -> np.ndarray:
        """(M,) accuracies of the members on the adversarial inputs made for the ensemble."""
        return np.tensordot(self.weights, (self.adversarial_predictions == self.labels).mean(2), axes=1)

    @property
    def preset(self) -> str | None:
        """The preset of the attack, or of the attack within it: what is restarted is as weak as its preset."""
        preset = knob_of(self.configuration.get("attack"), "preset")
        return None if preset is None else str(preset)

    @property
    def attacked_members(self) -> list[int] | None:
        """(J,) the member each input was made against, heaviest first; None unless the attack is per member."""
        order = [int(j) for j in np.argsort(-self.alpha, kind="stable") if self.alpha[j] > 0]  # that of RandomAttacker
        per_member = len(order) == len(self.weights) and np.allclose(self.weights, self.alpha[order])
        return order if per_member else None

    @property
    def cross_robustness(self) -> np.ndarray | None:
        """(M, J) accuracy of member i on the inputs made against `attacked_members[j]`; None where that is None."""
        return None if self.attacked_members is None else (self.adversarial_predictions == self.labels).mean(2).T

    @property
    def floor_scores(self) -> np.ndarray | None:
        """(N,) sum of alpha over the members that withstood every attack on them alone."""
        return None if self.alone is None else rounded((self.alpha[:, None] * self.alone).sum(0))

    @property
    def floor(self) -> Share | None:
        """Mean of `floor_scores`: no attack gets below it by fooling members only where they were fooled alone."""
        return None if self.floor_scores is None else Share(self.floor_scores.mean())

    @property
    def certified_floor(self) -> Floor | None:
        """The floor that the certificate beside this run proves, for its samples; None without, or if it is vacuous."""
        if self.certification is None or self.certification.vacuous:
            return None
        floor, rows = self.certification.floor(self.alpha), self.records.index
        return replace(floor, per_sample=floor.per_sample[rows], upper=floor.upper[rows])

    @property
    def verdict(self) -> Verdict | None:
        """What it amounts to; None if the attack leaves no floor."""
        from recarc.evaluation.verdict import Verdict

        return None if self.alone is None else Verdict.of(self)

    @property
    def gap(self) -> Points | None:
        """By how much the robust accuracy exceeds the floor, as a fraction; None without a floor."""
        return None if self.verdict is None else Points(self.verdict.gap)

    @cached_property
    def challenge(self) -> Challenged | None:
        """What became of the pairs that were attacked again; None if the attack does not challenge its floor."""
        share = knob_of(self.configuration.get("attack"), "challenge")
        if self.records.challenged is None or self.alone is None or share is None:
            return None
        return Challenged.of(self.records.challenged, self.alone, self.alpha, float(share))

    @cached_property
    def stage_accuracies(self) -> dict[str, Estimate]:
        """Expected accuracy per stage: of the attack by itself or of the best so far, see `stages`."""
        return {name: estimate(self.score(predictions)) for name, predictions in self.stages.items()}

    @property
    def blind_members(self) -> list[int]:
        """Members whose gradients vanish."""
        return sorted({signal.member for signal in self.signals if signal.name == "gradients_vanish"})

    @property
    def nan_samples(self) -> np.ndarray:
        """Indices of the samples on which a member gave NaN, clean or attacked (which counts as wrong)."""
        bad = (self.clean_predictions < 0).any(0) | (self.adversarial_predictions < 0).any((0, 1))
        return self.records.index[bad]

    def robust_at(self, alpha: Any) -> Estimate:
        """The accuracy with other sampling probabilities: an upper bound, as the attack was not aimed at those."""
        other = estimate(self._mixed(validated_alpha(alpha, len(self.alpha)).numpy()))
        return replace(other, note="upper bound: the attack was aimed at another alpha")

    def to_json(self) -> dict[str, Any]:
        """A summary with fractions; every figure can be recomputed from the records."""
        clean, robust, nan = self.clean, self.robust, self.nan_samples
        cross = self.cross_robustness
        return {
            "clean_accuracy": clean.value,
            "clean_interval": [clean.low, clean.high],
            "robust_accuracy": robust.value,
            "robust_interval": [robust.low, robust.high],
            "floor": None if self.floor is None else float(self.floor),
            "challenge": None if self.challenge is None else self.challenge.to_json(),
            "members": self._members(),
            "samples": len(self),
            "complete": self.complete,
            "stages": {name: e.value for name, e in self.stage_accuracies.items()},
            "decided_by": self._decided(),
            "cross_robustness": None if cross is None else cross.tolist(),
            "attacked_members": self.attacked_members,
            "norm": {"mean": float(self.norms.mean()), "max": float(self.norms.max())},
            "nan": {"samples": len(nan), "indices": nan[:NAMED_INDICES].tolist()},
            "seconds": self.seconds,
            "forward_passes": self.forward_passes,
            "backward_passes": self.backward_passes,
            "attack": self.configuration.get("attack"),
            "ball": self.configuration.get("ball"),
            "data": self.configuration.get("data"),
            "warnings": self.warnings,
            "signals": [signal.to_json() for signal in self.signals],
            "blind_members": self.blind_members,
        }

    def to_pandas(self) -> Any:
        """A data frame with one row per sample; the summary of `to_json` is in its `attrs`."""
        try:
            import pandas
        except ImportError:
            raise InputError("pandas is not installed: install recarc[pandas], or use to_csv(path)") from None
        frame = pandas.DataFrame(columns(self)).set_index("index")
        frame.attrs.update(self.to_json())
        return frame

    def to_csv(self, path: str | Path) -> Path:
        """The rows of `to_pandas` as a CSV file, written without pandas."""
        table, path = columns(self), Path(path)
        with replacing(path) as part, part.open("x", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(map(spreadsheet_cell, row) for row in zip(*(c.tolist() for c in table.values())))
        return path

    def _members(self) -> list[dict[str, Any]]:
        figures = zip(self.alpha, self.member_clean, self.member_robust)
        members = [{"alpha": float(a), "clean_accuracy": float(c), "robust_accuracy": float(r)} for a, c, r in figures]
        if self.alone is not None:
            for member, bits in zip(members, self.alone):
                if member["alpha"] > 0:  # one of alpha 0 was not attacked alone
                    member["robust_alone"] = float(bits.mean())
        return members

    def _decided(self) -> dict[str, int]:
        if self.decided_by is None:
            return {}
        names = list(self.stages)
        counts = {name: int((self.decided_by == i).sum()) for i, name in enumerate(names)}
        return {**counts, "none": int((self.decided_by < 0).sum())}


def _report(name: str) -> Any:
    """A function of the report, which stands above evaluations and is looked up only when somebody asks for it."""
    return import_object("report", f"recarc.report:{name}")


def _certification(folder: RunFolder) -> tuple[Certification | None, list[str]]:
    """The certificate beside a run, and why one that exists does not count."""
    if not (folder.path / CERTIFICATE / RUN).exists():
        return None, []
    from recarc.evaluation.certification import Certification

    try:
        return Certification.beside(folder.path), []
    except InputError as error:
        return None, [f"the certificate does not count: {error}"]


def estimate(scores: np.ndarray) -> Estimate:
    return Estimate(float(scores.mean()), *mean_interval(scores))


def html_table(rows: list[list[str]]) -> str:
    cells = ("".join(f"<td>{cell}</td>" for cell in row) for row in rows)
    return "<table>" + "".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def columns(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """One row per sample: index, label, scores, then every member's clean and attacked prediction (-1: NaN logits).

    Members are numbered from 0: clean_0 is of members[0]. One of alpha 0 was not attacked alone, so its column of that
    is empty. If the attacker randomizes over J inputs, the attacked predictions and norms are numbered by input first.
    """
    table = {
        "index": evaluation.records.index,
        "label": evaluation.labels,
        "clean_score": evaluation.clean_scores,
        "robust_score": evaluation.robust_scores,
    }
    if evaluation.floor_scores is not None:
        table["floor"] = evaluation.floor_scores
    if evaluation.decided_by is not None:
        names = np.array([*evaluation.stages, "none"])
        table["decided_by"] = names[evaluation.decided_by]
    table |= {f"clean_{i}": row for i, row in enumerate(evaluation.clean_predictions)}
    inputs = len(evaluation.weights)
    for j in range(inputs):
        prefix = f"{j}_" if inputs > 1 else ""
        attacked = evaluation.adversarial_predictions[j]
        table |= {f"attacked_{prefix}{i}": row for i, row in enumerate(attacked)}
        table[f"norm_{j}" if inputs > 1 else "norm"] = evaluation.norms[j]
    if evaluation.alone is not None:
        unknown = np.full(len(evaluation), None)
        known = zip(evaluation.alpha > 0, evaluation.alone)
        table |= {f"robust_alone_{i}": row if attacked else unknown for i, (attacked, row) in enumerate(known)}
    if evaluation.records.challenged is not None:
        table |= {f"challenged_{i}": row == CHALLENGED for i, row in enumerate(evaluation.records.challenged)}
    return table
