"""Pictures: the clean image, the scaled perturbation and the adversarial image, with every member's answers."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recarc.data import load
from recarc.errors import InputError
from recarc.evaluation.fingerprint import Json
from recarc.evaluation.run_folder import RunFolder
from recarc.evaluation.samples import Samples, TensorSamples, as_samples
from recarc.report.runs import Run

Data = Any  # an image set, or a pair of tensors (x, y)
EXAMPLES = 6
LARGEST = 112  # pixels on the longer side of an embedded picture


@dataclass(frozen=True)
class Answer:
    text: str
    right: bool


@dataclass(frozen=True)
class AttackedImage:
    """What one attack did to one image."""

    attack: str
    perturbation: np.ndarray  # (C, H, W) in [-1, 1], scaled by its largest value
    adversarial: np.ndarray  # (C, H, W) in [0, 1]
    answers: list[Answer]
    score: float
    size: float


@dataclass(frozen=True)
class Example:
    index: int
    label: str
    clean: np.ndarray
    answers: list[Answer]
    outcomes: list[AttackedImage]


def pictures(
    comparable: Sequence[Run], data_dir: str | Path | None = None, data: Data | None = None
) -> tuple[list[Example], str]:
    """The most revealing samples of the runs that saved their inputs; and the reason for runs that are not shown."""
    saved = [run for run in comparable if run.configuration.get("save_inputs") and run.evaluation.path is not None]
    saved = [run for run in saved if len(run.evaluation.weights) == 1 and run.evaluation.complete]
    if not saved:
        return [], "no pictures: none of these runs saved its inputs (--save-inputs)"
    rows = _most_revealing(saved)
    inputs, damaged = [], []
    for run in saved:
        try:
            inputs.append((run, _inputs(run, rows)))
        except InputError as error:
            damaged.append(str(error))
    if not inputs:
        return [], f"no pictures: {damaged[0]}"
    try:
        images = attacked_samples(saved[0].data, data_dir, data)
        x, y = images.batch(rows)
        if x.dim() != 4 or x.shape[1] not in (1, 3):
            raise InputError(f"inputs of shape {tuple(x.shape[1:])} are not images of 1 or 3 channels")
    except InputError as error:
        return [], f"no pictures: {error}"
    classes = getattr(images, "classes", None) or _class_numbers(saved)
    clean = x.float().cpu().numpy()
    examples = []
    for k, row in enumerate(rows):
        outcomes = [_outcome(run, x_adv[k], clean[k], int(row), classes) for run, x_adv in inputs]
        answers = _answers(saved[0].evaluation.clean_predictions[:, row], int(y[k]), classes)
        examples.append(Example(int(row), classes[int(y[k])], clean[k], answers, outcomes))
    return examples, f"not all pictures: {damaged[0]}" if damaged else ""


def attacked_samples(config: Json, data_dir: str | Path | None, data: Data | None = None) -> Samples:
    """The samples that were attacked: those given, or the data set that the configuration names."""
    if data is not None:
        samples = as_samples(data)
    elif config["name"] == TensorSamples.name:
        raise InputError("the runs are on tensors, not on a named data set; pass them: build_report(data=(x, y))")
    else:
        samples = load(config["name"], config.get("split") or "test", data_dir=data_dir, limit=config["samples"])
    if samples.fingerprint != config["fingerprint"]:
        raise InputError(f"{samples.name} is not the data that was attacked")
    return samples


def _class_numbers(saved: Sequence[Run]) -> list[str]:
    """Stand-ins for class names, where the data has none."""
    evaluations = [run.evaluation for run in saved]
    seen = [a for e in evaluations for a in (e.labels, e.clean_predictions, e.adversarial_predictions)]
    return [str(i) for i in range(1 + max(int(a.max()) for a in seen))]


def _most_revealing(saved: Sequence[Run]) -> np.ndarray:
    """Samples on which the attacks differ most, all classes before a second of one; preferably all right when clean."""
    scores = np.stack([run.evaluation.robust_scores for run in saved])
    labels, clean = saved[0].evaluation.labels, saved[0].evaluation.clean_scores
    spread = scores.max(0) - scores.min(0) + 1e-3 * (1 - scores.min(0)) - 2.0 * (clean < 1)
    order = np.argsort(-spread, kind="stable").tolist()
    first_of: dict[int, int] = {}
    for n in order:
        first_of.setdefault(int(labels[n]), n)
    chosen = list(dict.fromkeys([*first_of.values(), *order]))[:EXAMPLES]
    return np.array(sorted(chosen, key=lambda n: -spread[n]), dtype=np.int64)


def _inputs(run: Run, rows: np.ndarray) -> np.ndarray:
    """(K, C, H, W) adversarial inputs of these samples; files that differ from their checksum are refused."""
    from safetensors import SafetensorError, safe_open

    assert run.evaluation.path is not None
    folder = RunFolder.open(run.evaluation.path)
    places = [divmod(int(row), folder.shard_size) for row in rows]
    inputs = []
    try:
        for shard in {shard for shard, _ in places}:
            folder.read(shard, inputs=True)
        for shard, place in places:
            with safe_open(folder.file(shard, "inputs.safetensors"), "np") as file:
                inputs.append(file.get_slice("x_adv")[place, 0])
        return np.stack(inputs)
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"the inputs of {run.name} are damaged ({error}); rerun its command to repair them") from None


def _outcome(run: Run, x_adv: np.ndarray, clean: np.ndarray, row: int, classes: Sequence[str]) -> AttackedImage:
    evaluation = run.evaluation
    delta = x_adv - clean
    largest = float(np.abs(delta).max())
    scaled = delta / largest if largest > 0 else delta
    answers = _answers(evaluation.adversarial_predictions[0, :, row], int(evaluation.labels[row]), classes)
    score, size = float(evaluation.robust_scores[row]), float(evaluation.norms[0, row])
    return AttackedImage(run.label, scaled, x_adv.clip(0, 1), answers, score, size)


def _answers(predictions: np.ndarray, label: int, classes: Sequence[str]) -> list[Answer]:
    return [Answer("NaN" if p < 0 else classes[int(p)], int(p) == label) for p in predictions]


def colours(perturbation: np.ndarray) -> np.ndarray:
    """(3, H, W) in [0, 1]: grey means unchanged; with one channel, blue is darker and red is lighter."""
    if len(perturbation) == 3:
        return 0.5 + 0.5 * perturbation
    d = perturbation[0]
    strength = np.abs(d)
    lighter, darker, none = (np.array(c)[:, None, None] for c in ((0.78, 0.16, 0.2), (0.1, 0.36, 0.76), (0.93,) * 3))
    return none * (1 - strength) + np.where(d > 0, lighter, darker) * strength


def data_uri(picture: np.ndarray) -> str:
    """A PNG of (C, H, W) in [0, 1]; small images keep their pixels and the browser enlarges them."""
    from PIL import Image

    levels = np.moveaxis((picture.clip(0, 1) * 255).round().astype(np.uint8), 0, -1)
    image = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    if max(image.size) > LARGEST:
        image.thumbnail((LARGEST, LARGEST))
    sink = io.BytesIO()
    image.save(sink, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(sink.getvalue()).decode()
