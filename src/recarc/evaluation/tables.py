"""Per-sample results as columns: for pandas, and for a CSV file that anything reads."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from recarc.evaluation.result import Evaluation


def columns(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """One row a sample: index, label, scores, then every member's clean and attacked prediction (-1: NaN logits).

    A member of alpha 0 was not attacked alone, so nothing is in its column of that.
    Where the attacker randomises over J inputs, the attacked predictions and norms are numbered by input first.
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
    return table


def write_csv(evaluation: Evaluation, path: str | Path) -> Path:
    table = columns(evaluation)
    path = Path(path)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*(column.tolist() for column in table.values())))
    return path
