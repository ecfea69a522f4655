"""The verdict on a tight run: figure, floor, gap, and the sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from recarc import ARC, Ball, InputError, RandomizedEnsemble, Tight, Verdict, evaluate
from recarc.evaluation.masking import Signal
from recarc.evaluation.records import Records
from recarc.evaluation.result import Evaluation
from recarc.exact import Floor
from tiny import labels_of, mlp_ensemble, points


def made(
    alone: list[list[bool]],
    right: list[list[bool]],
    alpha: list[float],
    preset: str = "standard",
    challenged: np.ndarray | None = None,
    share: float = 1.0,
) -> Evaluation:
    """An evaluation with these bits; every label is 0, a wrong answer is 1. Unless said, every pair was challenged."""
    adversarial = np.where(np.array(right), 0, 1)[None].astype(np.int16)
    count = adversarial.shape[2]
    clean = np.zeros(adversarial.shape[1:], np.int16)
    stages = {"clean": clean, "adaptive_pgd": clean, "arc": clean, "climb": adversarial[0]}
    records = Records(
        index=np.arange(count),
        labels=np.zeros(count, np.int16),
        clean=clean,
        adversarial=adversarial,
        norms=np.zeros((1, count), np.float32),
        weights=np.ones(1),
        stages=stages,
        alone=np.array(alone),
        decided_by=np.full(count, 3, np.int16),
        challenged=np.where(np.array(alone), 2, 0) if challenged is None else challenged,
    )
    attack = {"class": "Tight", "preset": preset, "challenge": share}
    return Evaluation(records, np.array(alpha), {"attack": attack})


def test_conclusive_when_figure_and_floor_meet() -> None:
    bits = [[True] * 300, [False] * 300]
    found = Verdict.of(made(bits, bits, [0.9, 0.1]))
    assert found.conclusive and found.gap == pytest.approx(0) and found.floor == pytest.approx(0.9)
    assert found.sentence.startswith("Conclusive: the robust accuracy is 90.00 %")
    assert "AdaptivePGD alone would have reported 100.00 %" in found.sentence
    assert found.best_member == 1.0 and found.decided_by == {"climb": 300}


def test_quick_is_never_conclusive() -> None:
    """Its floor rests on one loss: it was once met at 69.86 %, and standard found 66.41 %."""
    bits = [[True] * 100, [False] * 100]
    found = Verdict.of(made(bits, bits, [0.9, 0.1], preset="quick"))
    assert found.meets_floor and not found.conclusive and found.to_json()["conclusive"] is False
    assert found.sentence.startswith("Not conclusive: the robust accuracy is at most 90.00 % and meets the floor")
    assert "as far as quick can tell" in found.sentence and "--preset standard decides" in found.sentence
    assert f"up to {100 * found.gap_limit:.2f} points lower" in found.sentence, "the whole floor counted as doubtful"


def test_an_open_verdict_says_what_another_round_would_bring() -> None:
    """1000 samples, two members of 1/2 that fall alone, one of which the search fools; round 2 also gets two samples
    to 0. Those two are all that one round has over the others: 6.3 at 95 %, of 1/2 each, over 2 rounds."""
    alone, right = [[False] * 1000, [False] * 1000], [[True] * 998 + [False] * 2, [False] * 1000]
    evaluation = made(alone, right, [0.5, 0.5])
    climbed = np.array([[0] * 1000, [1] * 1000], np.int16)
    evaluation.stages.update({"climb": climbed, "round_1": climbed, "round_2": evaluation.adversarial_predictions[0]})
    found = Verdict.of(evaluation)
    assert found.saturation is not None and found.saturation.improved == (0, 2) and found.saturation.only_one == 2
    assert found.sentence.startswith(
        "Open: the robust accuracy is between 0.00 and 49.90 %, with 998 samples above their floor; "
        "the search is saturated (another round: at most 0.16 points); try --preset thorough."
    )
    assert found.to_json()["saturation"]["limit"] == pytest.approx(6.2958 * 0.5 / 2 / 1000, rel=1e-3)
    assert Verdict.of(made(alone, right, [0.5, 0.5])).saturation is None


@pytest.mark.parametrize("name", ["gradients_vanish", "gradients_disagree", "probabilities", "random_outputs"])
def test_a_member_whose_gradients_mislead_leaves_it_open(name: str) -> None:
    bits = [[True] * 300, [False] * 300]
    evaluation = made(bits, bits, [1.0, 0.0])
    evaluation.signals = [Signal(1, name, 0.5)]
    assert Verdict.of(evaluation).conclusive, "it has no weight"
    evaluation.signals = [Signal(0, name, 0.5)]
    found = Verdict.of(evaluation)
    assert found.meets_floor and not found.conclusive
    assert found.to_json()["signals"] == [{"member": 0, "name": name, "figure": 0.5}]
    assert found.to_json()["blind_members"] == ([0] if name == "gradients_vanish" else [])
    assert "Not conclusive" in found.sentence and f"gradients mislead: {name} of members[0] (50 %)" in found.sentence


def test_a_member_at_chance_level_leaves_it_open() -> None:
    evaluation = made([[False] * 300], [[False] * 300], [1.0])
    evaluation.signals = [Signal(0, "chance_level", 0.1)]
    found = Verdict.of(evaluation)
    assert not found.conclusive and "members[0] is no better than chance" in found.sentence


@pytest.mark.parametrize("count, carried", [(3, False), (267, False), (268, True)])
def test_the_samples_must_carry_the_verdict(count: int, carried: bool) -> None:
    """With no gap at all, 268 samples make it at most one point on others, at 95 % confidence."""
    found = Verdict.of(made([[True] * count], [[True] * count], [1.0]))
    assert found.meets_floor and found.conclusive is carried and (found.gap_limit <= 0.01) is carried
    assert carried or f"{count} samples are too few" in found.sentence


def test_an_unfinished_run_is_never_conclusive() -> None:
    evaluation = made([[True] * 300], [[True] * 300], [1.0])
    evaluation.expected_samples = 301
    for certified in (None, 1.0):
        found = Verdict.of(evaluation, certified)
        assert not found.conclusive and "The run is not finished" in found.sentence


def test_nothing_is_below_zero() -> None:
    evaluation = made([[False] * 300], [[False] * 300], [1.0], preset="quick")
    evaluation.signals = [Signal(0, "gradients_vanish", 1.0)]
    found = Verdict.of(evaluation)
    assert found.conclusive and "the robust accuracy is 0.00 %, and nothing is below it" in found.sentence


def test_not_conclusive_says_how_far_and_what_to_try() -> None:
    alone = [[False] * 100, [False] * 100]
    right = [[True] * 10 + [False] * 90, [False] * 100]
    assert "--preset thorough" in Verdict.of(made(alone, right, [0.5, 0.5])).sentence
    found = Verdict.of(made(alone, right, [0.5, 0.5], preset="quick"))
    assert not found.conclusive and found.gap == pytest.approx(0.05) and found.above_floor == 10
    assert "10 samples above their floor" in found.sentence and "--preset standard" in found.sentence
    assert found.to_json()["conclusive"] is False


def test_a_challenge_that_is_too_small_leaves_it_open() -> None:
    """0 of the pairs drawn with probability 1/2 fell: 4.32 others can at most, whoever they are."""
    count, alone = 1000, np.ones((2, 1000), bool)
    drawn = np.ones((2, count), np.int8)
    drawn[:, ::2] = 2
    found = Verdict.of(made(alone, alone, [0.5, 0.5], challenged=drawn, share=0.5))
    assert found.challenge is not None and found.challenge.to_json() == {
        **{"pairs": 2000, "drawn": 1000, "fell": 0, "share": 0.5},
        "limit": pytest.approx(0.5 * math.log(20) / math.log(2) / count),
        "lowered": 0.0,
    }
    assert (
        found.conclusive and "1000 of the 2000 pairs that had withstood were attacked again, 0 fell" in found.sentence
    )
    assert found.may_fall == found.to_json()["may_fall"] == found.challenge.limit
    few = Verdict.of(made(alone, alone, [0.5, 0.5], challenged=drawn, share=0.1))
    assert few.meets_floor and not few.conclusive and "The challenge was too small: 0 of the 1000" in few.sentence
    assert "--knob challenge=1" in few.sentence
    nothing = made(alone, alone, [0.5, 0.5])
    nothing.records.challenged = None
    assert not Verdict.of(nothing).conclusive and "Nothing challenged the floor" in Verdict.of(nothing).sentence


def test_pairs_that_fall_to_the_challenge_are_held_against_the_others() -> None:
    count, alone = 1000, np.ones((1, 1000), bool)
    drawn = np.ones((1, count), np.int8)
    drawn[:, :500], alone[:, :8] = 2, False
    found = Verdict.of(made(alone, alone, [1.0], challenged=drawn, share=0.5))
    assert found.gap == 0 and found.challenge is not None and found.challenge.fell == 8
    assert (
        not found.conclusive and "The floor is too high: 8 of the 500 pairs that were challenged fell" in found.sentence
    )
    assert 1.5 < 100 * found.may_fall < 2.0, "about eight of the others, 18 at most"


def test_pairs_that_only_the_judge_found_standing_count_as_if_they_fell() -> None:
    """A coarse search took them for fooled, so they were not drawn; nothing is known of them."""
    count, alone = 1000, np.ones((1, 1000), bool)
    drawn = np.full((1, count), 2, np.int8)
    drawn[:, :6] = 0
    found = Verdict.of(made(alone, alone, [1.0], challenged=drawn))
    assert found.may_fall == pytest.approx(0.006) and not found.conclusive
    assert "Some samples were never attacked, because a member gave NaN there or answered" in found.sentence
    assert "spared" not in found.sentence


def test_a_member_of_probability_zero_is_not_the_best_one() -> None:
    """It was never attacked alone, so that it "withstood" says nothing."""
    evaluation = made([[True] * 3 + [False] * 7, [True] * 10], [[True] * 3 + [False] * 7, [True] * 10], [1.0, 0.0])
    assert Verdict.of(evaluation).best_member == pytest.approx(0.3)
    assert ["robust_alone" in member for member in evaluation.to_json()["members"]] == [True, False]


def floor_of(*values: float) -> Floor:
    per_sample = torch.tensor(values, dtype=torch.float64)
    return Floor(per_sample, torch.ones_like(per_sample), torch.ones(2))


def test_a_certified_floor_counts() -> None:
    bits = [[True, True, False, False], [False] * 4]
    evaluation = made([[True, False, False, False], [False] * 4], bits, [0.5, 0.5], preset="quick")
    plain = Verdict.of(evaluation)
    assert plain.floor == 0.125 and plain.gap == 0.125 and plain.above_floor == 1 and not plain.conclusive
    mean = Verdict.of(evaluation, certified_floor=0.2)
    assert mean.floor == mean.certified_floor == mean.to_json()["floor"] == 0.2 and mean.gap == pytest.approx(0.05)
    assert not mean.conclusive and "No attack at all gets below the certified floor of 20.00 %" in mean.sentence
    assert Verdict.of(evaluation, certified_floor=0.1).floor == 0.125, "that of the attacks is higher"
    each = Verdict.of(evaluation, certified_floor=floor_of(0.0, 0.5, 0.0, 0.0))
    assert each.certified_floor == 0.125 and each.floor == 0.25 and each.gap == 0 and each.above_floor == 0
    assert each.meets_floor and not each.conclusive, "half of it rests on quick"


def test_a_certificate_that_is_met_is_conclusive_whatever_made_the_figure() -> None:
    bits = [[True, True, False, False], [False] * 4]
    evaluation = made([[False] * 4] * 2, bits, [0.5, 0.5], preset="quick")
    for certified in (0.25, floor_of(0.5, 0.5, 0.0, 0.0)):
        found = Verdict.of(evaluation, certified)
        assert found.conclusive and found.level == found.to_json()["level"] == "certified"
        assert "no attack whatever leaves less than 25.00 %; this attack leaves 25.00 %." in found.sentence


@pytest.mark.parametrize("certified", [0.26, floor_of(0.5, 0.0, 0.5, 0.0)])
def test_a_certificate_that_an_attack_refutes_is_refused(certified: Floor | float) -> None:
    bits = [[True, True, False, False], [False] * 4]
    with pytest.raises(InputError, match=r"exceeds what an attack left \(25.00 %\)"):
        Verdict.of(made(bits, bits, [0.5, 0.5]), certified)
    with pytest.raises(InputError, match="of 1 samples, the run of 4"):
        Verdict.of(made(bits, bits, [0.5, 0.5]), floor_of(0.5))


def test_half_a_point_is_conclusive() -> None:
    alone = [[False] * 2000]
    assert Verdict.of(made(alone, [[True] * 10 + [False] * 1990], [1.0])).conclusive
    assert not Verdict.of(made(alone, [[True] * 11 + [False] * 1989], [1.0])).conclusive


def test_of_a_real_run_and_of_one_without_floor() -> None:
    ensemble = mlp_ensemble(2, [0.7, 0.3], dtype=torch.float32)
    x = points(40, 6, dtype=torch.float32)
    y = labels_of(ensemble, x)
    ball = Ball("linf", 0.05)
    found = Verdict.of(evaluate(ensemble, Tight("quick"), (x, y), ball, progress=False))
    assert found.floor <= found.robust.value <= found.stages["arc"].value
    assert sum(found.decided_by.values()) == 40
    plain = evaluate(RandomizedEnsemble(ensemble.members), ARC(steps=1), (x, y), ball, progress=False)
    with pytest.raises(InputError, match="no floor; evaluate with --attack tight"):
        Verdict.of(plain)
