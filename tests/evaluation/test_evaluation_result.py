"""Evaluation: every figure from the bits, by hand."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, problem

from recarc import PGD, InputError, RandomAttacker, evaluate
from recarc.attacks import Outcome, Problem, Stage
from recarc.evaluation import Evaluation, Verdict
from recarc.evaluation.intervals import wilson
from recarc.evaluation.records import Records, from_parquet, joined, to_parquet


def by_hand(**changes: Any) -> Evaluation:
    """Two members, alpha (0.75, 0.25), four samples of label 1."""
    records = Records(
        index=np.arange(4),
        labels=np.ones(4, dtype=np.int16),
        clean=np.array([[1, 1, 1, 0], [1, 1, 0, 0]], dtype=np.int16),
        adversarial=np.array([[[1, 0, 0, 0], [0, 1, 0, 0]]], dtype=np.int16),
        norms=np.full((1, 4), 0.1, dtype=np.float32),
        weights=np.ones(1),
        stages={"clean": np.array([[1, 1, 1, 0], [1, 1, 0, 0]]), "arc": np.array([[1, 0, 1, 0], [1, 1, 0, 0]])},
        alone=np.array([[True, False, False, False], [False, False, False, False]]),
        decided_by=np.array([1, 1, 1, -1], dtype=np.int16),
    )
    for name, value in changes.items():
        setattr(records, name, value)
    return Evaluation(records, np.array([0.75, 0.25]))


def test_figures_by_hand() -> None:
    result = by_hand()
    assert result.clean_accuracy == pytest.approx((1 + 1 + 0.75 + 0) / 4)
    assert result.robust_scores.tolist() == [0.75, 0.25, 0, 0]
    assert result.robust_accuracy == 0.25
    assert result.floor == pytest.approx(0.75 / 4)
    assert result.member_clean.tolist() == [0.75, 0.5] and result.member_robust.tolist() == [0.25, 0.25]
    assert result.stage_accuracies["arc"].value == pytest.approx((1 + 0.25 + 0.75) / 4)
    assert result.to_json()["decided_by"] == {"clean": 0, "arc": 3, "none": 1}
    assert result.cross_robustness is None and not len(result.nan_samples)
    assert result.robust.low <= 0.25 <= result.robust.high


def test_shares_print_as_percent_and_remain_numbers() -> None:
    result = by_hand()
    assert result.floor is not None and result.floor == 0.1875
    for share, text in ((result.robust, "25.00 %"), (result.floor, "18.75 %")):
        assert str(share).startswith(text) and repr(share).startswith(text) and f"{share}".startswith(text)
    assert f"{result.floor:.3f}" == "0.188" and json.dumps([result.floor]) == "[0.1875]"
    assert type(result.floor + 0.5) is float and pickle.loads(pickle.dumps(result.floor)) == 0.1875
    assert repr(result).endswith(f"robust {result.robust}, floor 18.75 %)")


def test_what_a_notebook_shows() -> None:
    result = by_hand()
    assert (
        result.verdict == Verdict.of(result)
        and result.gap == pytest.approx(0.0625)
        and str(result.gap) == "6.25 points"
    )
    html = result._repr_html_()
    for text in (
        result.clean._repr_html_(),
        result.robust._repr_html_(),
        "18.75 %",
        "6.25 points",
        "member (from 0)",
        "75.00",
        "Open: the",
    ):
        assert text in html
    result.configuration["data"] = {"name": "<script>"}
    assert "<script>" not in result._repr_html_() and "&lt;script&gt;" in result._repr_html_()
    assert (
        result.robust._repr_html_() == f"<b>25.00 %</b> [{100 * result.robust.low:.2f}, {100 * result.robust.high:.2f}]"
    )
    bare = by_hand(alone=None)
    assert bare.verdict is None and bare.gap is None and "floor" not in bare._repr_html_()


def test_an_attacker_that_draws_is_averaged_exactly() -> None:
    adversarial = np.array([[[1, 0, 0, 0], [0, 1, 0, 0]], [[1, 1, 1, 1], [0, 0, 0, 0]]], dtype=np.int16)
    norms = np.zeros((2, 4), dtype=np.float32)
    result = by_hand(adversarial=adversarial, weights=np.array([0.6, 0.4]), norms=norms)
    assert result.robust_scores == pytest.approx([0.75, 0.45, 0.3, 0.3])
    assert result.cross_robustness is None
    result = by_hand(adversarial=adversarial, weights=np.array([0.75, 0.25]), norms=norms)
    assert result.cross_robustness is not None
    assert result.cross_robustness.tolist() == [[0.25, 1.0], [0.25, 0.0]]


def test_rescoring_is_an_upper_bound_and_says_so() -> None:
    other = by_hand().robust_at([0.5, 0.5])
    assert other.value == pytest.approx(0.25) and "upper bound" in other.note and "upper bound" in str(other)
    with pytest.raises(InputError, match="alpha"):
        by_hand().robust_at([0.5, 0.6])


def test_one_member_has_wilsons_interval() -> None:
    ensemble, (x, y) = problem(members=1)
    result = evaluate(ensemble, PGD(steps=3), (x, y), BALL)
    assert (result.robust.low, result.robust.high) == wilson(result.robust_accuracy, 40)


def test_records_survive_parquet() -> None:
    records = by_hand().records
    data = to_parquet(records)
    assert data == to_parquet(records)
    again = from_parquet(data)
    for name in ("index", "labels", "clean", "adversarial", "norms", "weights", "alone", "decided_by"):
        assert np.array_equal(getattr(again, name), getattr(records, name)), name
    assert all(np.array_equal(again.stages[k], v) for k, v in records.stages.items())
    both = joined([records, again])
    assert len(both) == 8 and both.adversarial.shape == (1, 2, 8)


def test_other_parquet_is_not_records() -> None:
    with pytest.raises(ValueError, match="not a shard of records"):
        from_parquet(b"PAR1 not really PAR1")


@pytest.mark.parametrize("alpha", [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.6, 0.0, 0.4]])
def test_the_random_attacker_gives_the_cross_robustness(alpha: list[float]) -> None:
    ensemble, (x, y) = problem()
    ensemble = ensemble.with_alpha(alpha)
    attack = RandomAttacker(PGD(steps=3))
    result = evaluate(ensemble, attack, (x, y), BALL)
    expected = attack.expected_accuracy(ensemble, x, y, BALL)
    assert result.robust_accuracy == pytest.approx(float(expected.mean()))
    matrix, columns = result.cross_robustness, result.attacked_members
    assert matrix is not None and columns is not None
    assert sorted(columns) == [j for j in range(3) if alpha[j] > 0]
    for column, j in enumerate(columns):
        x_adv = PGD(steps=3, member=j)(ensemble, x, y, BALL)
        assert matrix[:, column] == pytest.approx(ensemble.correct(x_adv, y).double().mean(1).numpy())


class Staged:
    """Returns everything that an outcome can hold."""

    def outcome(self, problem: Problem) -> Outcome:
        x = problem.x
        return Outcome([(1.0, x.clone())], [Stage("second", x.clone())], torch.stack([x] * len(problem.ensemble)))


def test_stages_travel_through_the_records(tmp_path: Any) -> None:
    ensemble, data = problem()
    evaluate(ensemble, Staged(), data, BALL, out=tmp_path / "run", shard_size=16)
    result = Evaluation.load(tmp_path / "run")
    assert list(result.stages) == ["clean", "second"]
    assert result.floor == pytest.approx(result.clean_accuracy)
    assert result.to_json()["decided_by"] == {"clean": 40, "second": 0, "none": 0}
    assert result.to_json()["members"][0]["robust_alone"] == pytest.approx(float(result.member_clean[0]))
