"""Against the real torchattacks: our attacks in its style, its attacks as stages."""

from __future__ import annotations

import pytest
import torch
from small import ALPHA, BALL, HINT, OURS, Scaled, models, name_of, problem

from recarc import ARC, Attack, Ball, InputError, WorstOf, evaluate
from tiny import assert_unchanged, photograph

torchattacks = pytest.importorskip("torchattacks", reason=f"torchattacks is {HINT}")
ra = pytest.importorskip("recarc.adapters.torchattacks")


@pytest.mark.parametrize("ours", OURS, ids=name_of)
def test_our_attacks_in_torchattacks_style(ours: Attack) -> None:
    ensemble, x, y = problem()
    atk = ra.wrap(ours, models(), ALPHA, eps=0.1)
    assert isinstance(atk, torchattacks.attack.Attack) and repr(atk).startswith(name_of(ours))
    assert torch.equal(atk(x, y), ours(ensemble, x, y, BALL))
    atk.eps = 0.02
    assert float((atk(x, y) - x).abs().max()) <= 0.02 + 1e-6


def test_normalised_images_as_torchattacks_users_have_them() -> None:
    """set_normalization_used: normalised images in and out, eps in pixels."""
    ensemble, x, y = problem()
    outside = [Scaled(m, 0.5, 0.25) for m in models()]  # models that want (x - 0.5) / 0.25
    atk = ra.wrap(ARC(steps=5), outside, ALPHA, eps=0.1)
    atk.set_normalization_used(mean=[0.5, 0.5], std=[0.25, 0.25])
    found = atk((x - 0.5) / 0.25, y) * 0.25 + 0.5
    assert float((found - x).abs().max()) <= 0.1 + 1e-5
    expected = ensemble.expected_accuracy(ARC(steps=5)(ensemble, x, y, BALL), y).mean()
    assert abs(float(ensemble.expected_accuracy(found, y).mean() - expected)) < 0.1


def test_the_loader_loop_of_torchattacks(tmp_path: object) -> None:
    _, x, y = problem()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=5)
    atk = ra.wrap(ARC(steps=3), models(), ALPHA, eps=0.1)
    accuracy, distance, _ = atk.save(loader, return_verbose=True, verbose=False)
    assert 0 <= accuracy <= 100 and distance > 0


@pytest.mark.parametrize("member", [None, 0])
@pytest.mark.parametrize("name", ["PGD", "APGD", "MIFGSM", "object"])
def test_torchattacks_attacks_as_stages(name: str, member: int | None) -> None:
    ensemble, x, y = problem()
    made = torchattacks.PGD(models()[0], steps=5) if name == "object" else name
    knobs = {"steps": 5} if name != "object" else {}
    stage = ra.stage(made, member=member, **knobs)
    before = photograph(ensemble, x)
    x_adv = stage(ensemble, x, y, BALL)
    assert_unchanged(before, photograph(ensemble, x))
    assert float((x_adv - x).abs().max()) > 8.5 / 255, "the eps of the ball was not used"
    result = evaluate(ensemble, WorstOf([stage, ARC(steps=3)]), (x, y), BALL, progress=False)
    assert result.robust_accuracy < result.clean_accuracy


def test_an_attack_of_several_and_another_norm() -> None:
    ensemble, x, y = problem(6)
    ball = Ball("l2", 0.3)
    for name, knobs in (("AutoAttack", {"version": "rand"}), ("PGDL2", {"steps": 5})):
        x_adv = ra.stage(name, **knobs)(ensemble, x, y, ball)
        assert float(ball.violation(x, x_adv).max()) < 1e-5
        assert float(ensemble.expected_accuracy(x_adv, y).mean()) < float(ensemble.expected_accuracy(x, y).mean())


def test_what_torchattacks_users_get_wrong() -> None:
    ensemble, x, y = problem()
    targeted = torchattacks.PGD(models()[0])
    targeted.set_mode_targeted_random(quiet=True)
    with pytest.raises(InputError, match=r"mode 'targeted\(random\)'.*set_mode_default"):
        ra.stage(targeted)
    normalised = torchattacks.PGD(models()[0])
    normalised.set_normalization_used([0.5, 0.5], [0.2, 0.2])
    with pytest.raises(InputError, match="set_normalization_used"):
        ra.stage(normalised)
    with pytest.raises(InputError, match="has no mode"):
        ra.wrap(ARC(), models(), ALPHA).set_mode_targeted_random()
    with pytest.raises(InputError, match=r"alpha is 0.0078.*step_size"):
        ra.wrap(ARC(), models(), alpha=2 / 255)
    with pytest.raises(InputError, match="labels are missing"):
        ra.wrap(ARC(), models(), ALPHA)(x)
    with pytest.raises(InputError, match="outside the box"):
        ra.wrap(ARC(), models(), ALPHA)(3 * x - 1, y)
    with pytest.raises(InputError, match="did you mean 'PGD'"):
        ra.stage("PDG")
    with pytest.raises(InputError, match=r"knob of torchattacks .* 'step'"):
        ra.stage("PGD", step=3)
    with pytest.raises(InputError, match="exists already"):
        ra.stage(torchattacks.PGD(models()[0]), steps=3)
    with pytest.raises(InputError, match=r"created for eps 0.0313.*not 0.1"):
        ra.stage(torchattacks.AutoAttack(models()[0], eps=8 / 255, n_classes=5))(ensemble, x, y, BALL)
    with pytest.raises(InputError, match=r"only the box \(0, 1\)"):
        ra.stage("PGD")(ensemble, x, y, Ball("linf", 0.1, (-1, 1)))
