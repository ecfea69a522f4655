"""Pictures: clean image, perturbation (scaled) and adversarial image, with every member's answer before and after."""

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
LARGEST = 112  # pixels of an embedded picture's longer side


@dataclass(frozen=True)
class Answer:
    text: str
    right: bool


@dataclass(frozen=True)
class Shot:
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
    score: float
    shots: list[Shot]


@dataclass(frozen=True)
class Gallery:
    examples: list[Example]
    norm: str


def gallery(
    same: Sequence[Run], data_dir: str | Path | None = None, data: Data | None = None
) -> tuple[Gallery | None, str]:
    """The most telling samples of the runs that kept their inputs; or None and why."""
    kept = [run for run in same if run.configuration.get("save_inputs") and run.evaluation.path is not None]
    kept = [run for run in kept if len(run.evaluation.weights) == 1 and run.evaluation.complete]
    if not kept:
        return None, "no pictures: none of these runs kept its inputs (--save-inputs)"
    rows = _telling(kept)
    try:
        images = _attacked(kept[0].configuration["data"], data_dir, data)
        x, y = images.batch(rows)
        if x.dim() != 4 or x.shape[1] not in (1, 3):
            raise InputError(f"inputs of shape {tuple(x.shape[1:])} are no images of 1 or 3 channels")
    except InputError as error:
        return None, f"no pictures: {error}"
    classes = getattr(images, "classes", None) or _numbers(kept)
    clean = x.float().cpu().numpy()
    inputs = {run.name: _inputs(run, rows) for run in kept}
    examples = []
    for k, row in enumerate(rows):
        first = kept[0].evaluation
        shots = [_shot(run, inputs[run.name][k], clean[k], int(row), classes) for run in kept]
        answers = _answers(first.clean_predictions[:, row], int(y[k]), classes)
        score = float(first.clean_scores[row])
        examples.append(Example(int(row), classes[int(y[k])], clean[k], answers, score, shots))
    norm = str((kept[0].configuration.get("ball") or {}).get("norm", ""))
    return Gallery(examples, norm), ""


def _attacked(told: Json, data_dir: str | Path | None, data: Data | None) -> Samples:
    """The samples that were attacked: those given, or the data set of that name."""
    if data is not None:
        found = as_samples(data)
    elif told["name"] == TensorSamples.name:
        raise InputError("the runs are on tensors, not on a data set with a name; give them: build_report(data=(x, y))")
    else:
        found = load(told["name"], told.get("split") or "test", data_dir=data_dir, limit=told["samples"])
    if found.fingerprint != told["fingerprint"]:
        raise InputError(f"{found.name} here is not the data that was attacked")
    return found


def _numbers(kept: Sequence[Run]) -> list[str]:
    """Names of classes that have none."""
    found = [a for run in kept for a in (run.evaluation.labels, run.evaluation.clean_predictions)]
    found += [run.evaluation.adversarial_predictions for run in kept]
    return [str(i) for i in range(1 + max(int(a.max()) for a in found))]


def _telling(kept: Sequence[Run]) -> np.ndarray:
    """Samples on which the attacks differ most, one a class first; all members right on the clean image."""
    scores = np.stack([run.evaluation.robust_scores for run in kept])
    labels = kept[0].evaluation.labels
    spread = scores.max(0) - scores.min(0) + 1e-3 * (1 - scores.min(0)) - 2.0 * (kept[0].evaluation.clean_scores < 1)
    order = np.argsort(-spread, kind="stable").tolist()
    first_of: dict[int, int] = {}
    for n in order:
        first_of.setdefault(int(labels[n]), n)
    chosen = list(dict.fromkeys([*first_of.values(), *order]))[:EXAMPLES]
    return np.array(sorted(chosen, key=lambda n: -spread[n]), dtype=np.int64)


def _inputs(run: Run, rows: np.ndarray) -> np.ndarray:
    """(K, C, H, W) adversarial inputs of these samples."""
    from safetensors import safe_open

    assert run.evaluation.path is not None
    folder = RunFolder.open(run.evaluation.path)
    found = []
    for row in rows:
        shard, place = divmod(int(row), folder.shard_size)
        with safe_open(folder.file(shard, "inputs.safetensors"), "np") as file:
            found.append(file.get_slice("x_adv")[place, 0])
    return np.stack(found)


def _shot(run: Run, x_adv: np.ndarray, clean: np.ndarray, row: int, classes: Sequence[str]) -> Shot:
    evaluation = run.evaluation
    delta = x_adv - clean
    largest = float(np.abs(delta).max())
    scaled = delta / largest if largest > 0 else delta
    answers = _answers(evaluation.adversarial_predictions[0, :, row], int(evaluation.labels[row]), classes)
    score, size = float(evaluation.robust_scores[row]), float(evaluation.norms[0, row])
    return Shot(run.title, scaled, x_adv.clip(0, 1), answers, score, size)


def _answers(predictions: np.ndarray, label: int, classes: Sequence[str]) -> list[Answer]:
    return [Answer("NaN" if p < 0 else classes[int(p)], int(p) == label) for p in predictions]


def colours(perturbation: np.ndarray) -> np.ndarray:
    """(3, H, W) in [0, 1]: grey is no change; of one channel, blue is darker and red is lighter."""
    if len(perturbation) == 3:
        return 0.5 + 0.5 * perturbation
    d = perturbation[0]
    strength = np.abs(d)
    lighter, darker, none = (np.array(c)[:, None, None] for c in ((0.78, 0.16, 0.2), (0.1, 0.36, 0.76), (0.93,) * 3))
    return none * (1 - strength) + np.where(d > 0, lighter, darker) * strength


def data_uri(picture: np.ndarray) -> str:
    """A PNG of (C, H, W) in [0, 1]; small ones keep their pixels, the browser enlarges them."""
    from PIL import Image

    levels = np.moveaxis((picture.clip(0, 1) * 255).round().astype(np.uint8), 0, -1)
    image = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
    if max(image.size) > LARGEST:
        image.thumbnail((LARGEST, LARGEST))
    sink = io.BytesIO()
    image.save(sink, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(sink.getvalue()).decode()
