"""Against the real AutoAttack (pyautoattack) as a stage."""

from __future__ import annotations

import pytest
import torch
from small import BALL, HINT, problem

from recarc import ARC, Ball, InputError, RandomizedEnsemble, Tight, WorstOf, evaluate
from tiny import assert_unchanged, mlp_ensemble, photograph, points

pytest.importorskip("pyautoattack", reason=f"pyautoattack is {HINT}")
ra = pytest.importorskip("recarc.adapters.autoattack")


@pytest.mark.parametrize("member", [None, 0])
def test_as_a_stage(member: int | None) -> None:
    ensemble, x, y = problem(8)
    stage = ra.stage(attacks=["apgd-ce", "apgd-t"], member=member)
    before = photograph(ensemble, x)
    x_adv = stage(ensemble, x, y, BALL)
    assert_unchanged(before, photograph(ensemble, x))
    if member == 0:
        assert not bool(ensemble.correct(x_adv, y)[0].any())
    result = evaluate(ensemble, WorstOf([stage, ARC(steps=5)]), (x, y), BALL, progress=False)
    alone = evaluate(ensemble, ARC(steps=5), (x, y), BALL, progress=False)
    assert result.robust_accuracy <= alone.robust_accuracy


def test_on_a_single_model() -> None:
    """On one model AutoAttack's figure is the floor that `Tight` meets."""
    ensemble, x, y = problem(6)
    single, ball = RandomizedEnsemble([ensemble.members[1]]), Ball("linf", 0.04)
    y = single.predictions(x)[0]
    assert evaluate(single, ra.stage("standard"), (x, y), Ball("linf", 0.3), progress=False).robust_accuracy == 0
    gradients = ra.stage(attacks=["apgd-ce", "apgd-t", "fab-t"])
    theirs = evaluate(single, gradients, (x, y), ball, progress=False).robust_accuracy
    ours = evaluate(single, Tight(), (x, y), ball, progress=False)
    assert ours.floor == ours.robust_accuracy and abs(ours.robust_accuracy - theirs) < 1 / 6 + 1e-9


def test_bad_input() -> None:
    ensemble, x, y = problem(4)
    with pytest.raises(InputError, match="unknown AutoAttack version 'standart'"):
        ra.stage("standart")
    with pytest.raises(InputError, match="unknown attack of AutoAttack 'apgd'"):
        ra.stage(attacks=["apgd"])
    with pytest.raises(InputError, match=r"supports linf, l2 and l1"):
        ra.stage()(ensemble, x, y, Ball(1.5, 0.1))
    flat = mlp_ensemble(dtype=torch.float32)
    u = points(4, 6, dtype=torch.float32)
    with pytest.raises(InputError, match=r"takes images"):
        ra.stage()(flat, u, flat.predictions(u)[0], BALL)
