"""Against the real Foolbox: its models in, our attacks in its style, its attacks as stages."""

from __future__ import annotations

import pytest
import torch
from small import ALPHA, BALL, HINT, OURS, Scaled, models, name_of, problem

from recarc import (
    ARC,
    Attack,
    InputError,
    RandomAttacker,
    RandomizedEnsemble,
    WorstOf,
    evaluate,
)
from tiny import assert_unchanged, photograph

fb = pytest.importorskip("foolbox", reason=f"foolbox is {HINT}")
ra = pytest.importorskip("recarc.adapters.foolbox")


def wrapped(bounds: tuple[float, float] = (0, 1), preprocessing: dict | None = None) -> list:
    return [fb.PyTorchModel(m, bounds=bounds, preprocessing=preprocessing) for m in models()]


@pytest.mark.parametrize("ours", OURS, ids=name_of)
def test_our_attacks_return_foolbox_triples(ours: Attack) -> None:
    ensemble, x, y = problem()
    attack = ra.wrap(ours, norm="linf")
    assert isinstance(attack, fb.attacks.base.AttackWithDistance) and repr(attack).startswith(name_of(ours))
    fmodel = ra.EnsembleModel(wrapped(), ALPHA)
    raw, clipped, is_adv = attack(fmodel, x, y, epsilons=[0.02, 0.1])
    assert len(raw) == len(clipped) == 2 and is_adv.shape == (2, len(x)) and is_adv.dtype == torch.bool
    for eps, u in zip([0.02, 0.1], clipped):
        assert float((u - x).abs().max()) <= eps + 1e-6 and float(u.min()) >= 0 and float(u.max()) <= 1
    scores = ra.expected_accuracy(fmodel, clipped, y)
    assert torch.equal(scores[1], ensemble.expected_accuracy(clipped[1], y))
    assert torch.equal(is_adv, scores < 1)
    assert float(scores[1].mean()) <= float(scores[0].mean()) < float(ensemble.expected_accuracy(x, y).mean())
    one = attack(fmodel, x, y, epsilons=0.1)
    assert torch.equal(one[1], clipped[1]) and one[2].shape == (len(x),)


def test_arc_through_foolbox_is_arc() -> None:
    ensemble, x, y = problem()
    expected = ARC()(ensemble, x, y, BALL)
    for model in (ra.EnsembleModel(wrapped(), ALPHA), ensemble):
        assert torch.equal(ra.wrap(ARC())(model, x, y, epsilons=0.1)[1], expected)
    criterion = fb.criteria.Misclassification(y)
    assert torch.equal(ra.wrap(ARC())(ensemble, x, criterion, epsilons=0.1)[1], expected)


def test_a_single_foolbox_model_and_repeat() -> None:
    _, x, y = problem()
    fmodel = wrapped()[0]
    _, clipped, is_adv = ra.wrap(ARC())(fmodel, x, y, epsilons=[0.1])
    assert torch.equal(is_adv[0], fmodel(clipped[0]).argmax(1) != y)
    assert ra.wrap(ARC()).repeat(2)(fmodel, x, y, epsilons=[0.1])[2].shape == (1, len(x))


def test_epsilons_are_in_the_units_of_the_bounds() -> None:
    ensemble, x, y = problem()
    wide = ra.EnsembleModel([fb.PyTorchModel(Scaled(m, 0, 1 / 255), bounds=(0, 255)) for m in models()], ALPHA)
    _, clipped, _ = ra.wrap(ARC())(wide, 255 * x, y, epsilons=25.5)
    assert float((clipped - 255 * x).abs().max()) <= 25.5 + 1e-3
    found = ensemble.expected_accuracy(clipped / 255, y).mean()
    assert abs(float(found - ensemble.expected_accuracy(ARC()(ensemble, x, y, BALL), y).mean())) < 0.1


def test_foolbox_attacks_see_the_expected_logits() -> None:
    ensemble, x, y = problem()
    fmodel = ra.EnsembleModel(ensemble)
    assert torch.allclose(fmodel(x), ensemble.expected_logits(x))
    _, clipped, is_adv = fb.attacks.LinfPGD(steps=5)(fmodel, x, y, epsilons=0.1)
    assert torch.equal(is_adv, ensemble.expected_logits(clipped).argmax(1) != y)


@pytest.mark.parametrize("bounds", [(0, 1), (-1, 1), (0, 255)])
def test_foolbox_models_as_members(bounds: tuple[float, float]) -> None:
    """Bounds and preprocessing move inside: the member agrees with the Foolbox model on its own inputs."""
    _, x, _ = problem()
    low, high = bounds
    preprocessing = {"mean": [0.1 * high, 0.2 * high], "std": [0.5 * high, 0.4 * high], "axis": -3}
    fmodel = fb.PyTorchModel(models()[0], bounds=bounds, preprocessing=preprocessing)
    member = ra.member(fmodel)
    assert torch.allclose(member(x), fmodel(x * (high - low) + low), atol=1e-4)
    assert sum(p.numel() for p in member.parameters()) > 0
    ensemble = RandomizedEnsemble([member, models()[1]])
    y = ensemble.predictions(x)[0]
    before = photograph(ensemble, x)
    x_adv = ARC(steps=3)(ensemble, x, y, BALL)
    assert_unchanged(before, photograph(ensemble, x))
    assert float(ensemble.expected_accuracy(x_adv, y).mean()) < float(ensemble.expected_accuracy(x, y).mean())


@pytest.mark.parametrize("member", [None, 1])
def test_foolbox_attacks_as_stages(member: int | None) -> None:
    ensemble, x, y = problem()
    stage = ra.stage(fb.attacks.LinfPGD(steps=10), member=member)
    before = photograph(ensemble, x)
    x_adv = stage(ensemble, x, y, BALL)
    assert_unchanged(before, photograph(ensemble, x))
    assert torch.equal(x_adv, stage(ensemble, x, y, BALL))
    attack = WorstOf([stage, ARC()])
    result = evaluate(ensemble, attack, (x, y), BALL, progress=False)
    best = torch.stack([ensemble.expected_accuracy(u, y) for u in (x_adv, ARC()(ensemble, x, y, BALL))]).amin(0)
    assert result.robust_accuracy <= float(ensemble.expected_accuracy(x, y).mean())
    assert abs(result.robust_accuracy - float(best.mean())) < 0.05


def test_minimisation_attacks_and_an_attacker_that_draws() -> None:
    ensemble, x, y = problem()
    deepfool = ra.stage(fb.attacks.LinfDeepFoolAttack(steps=10), member=0)
    fooled = ~ensemble.correct(deepfool(ensemble, x, y, BALL), y)[0]
    assert float(fooled.double().mean()) > 0.5
    result = evaluate(ensemble, RandomAttacker(deepfool), (x, y), BALL, progress=False)
    assert len(result.weights) == 3


def test_one_eps_a_sample() -> None:
    ensemble, x, y = problem()
    eps = torch.tensor([0.02, 0.1] * 6)
    stage = ra.stage(fb.attacks.LinfPGD(steps=5))
    x_adv = stage(ensemble, x, y, type(BALL)("linf", eps))
    assert bool(((x_adv - x).abs().flatten(1).amax(1) <= eps + 1e-6).all())
    assert float((x_adv - x).abs().flatten(1).amax(1)[1]) > 0.02


def test_what_foolbox_users_get_wrong() -> None:
    ensemble, x, y = problem()
    other = fb.PyTorchModel(models()[1], bounds=(-1, 1))
    with pytest.raises(InputError, match=r"different bounds .*transform_bounds\(\(0, 1\)\)"):
        ra.EnsembleModel([wrapped()[0], other], [0.5, 0.5])
    with pytest.raises(InputError, match=r"x has values in .*outside the box"):
        ra.wrap(ARC())(ra.EnsembleModel(ensemble), 2 * x, y, epsilons=0.1)
    with pytest.raises(InputError, match="measures l2, the ball is linf"):
        ra.stage(fb.attacks.L2PGD(steps=2))(ensemble, x, y, BALL)
    with pytest.raises(InputError, match="give an object"):
        ra.stage(fb.attacks.LinfPGD)
    with pytest.raises(InputError, match="untargeted"):
        ra.wrap(ARC())(ensemble, x, fb.criteria.TargetedMisclassification(y), epsilons=0.1)
    with pytest.raises(InputError, match="epsilons contains None"):
        ra.wrap(ARC())(ensemble, x, y, epsilons=[None])
    with pytest.raises(InputError, match="argmax"):
        ra.wrap(ARC())(ensemble, x, torch.nn.functional.one_hot(y, 5), epsilons=0.1)
    with pytest.raises(InputError, match="labels are str"):
        ra.wrap(ARC())(ensemble, x, ["cat"] * len(x), epsilons=0.1)
    with pytest.raises(InputError, match="not a Foolbox model"):
        ra.member(models()[0])
    with pytest.raises(InputError, match="member is 7"):
        ra.stage(fb.attacks.LinfPGD(steps=2), member=7)(ensemble, x, y, BALL)
    with pytest.raises(InputError, match="not an attack of recarc; give an object"):
        ra.wrap(ARC)
    with pytest.raises(InputError, match="needs bounds"):
        ra.stage(fb.attacks.LinfPGD(steps=2))(ensemble, x, y, type(BALL)("linf", 0.1, None))


def test_preprocessing_applied_twice_is_found() -> None:
    _, x, _ = problem()
    member = ra.member(fb.PyTorchModel(models()[0], bounds=(0, 1), preprocessing={"mean": 0.5, "std": 0.25}))
    with pytest.raises(InputError, match="do not normalise them before"):
        member((x - 0.5) / 0.25)

    class Normalize(torch.nn.Module):
        mean, std = 0.5, 0.25

        def forward(self, u: torch.Tensor) -> torch.Tensor:
            return (u - self.mean) / self.std

    twice = torch.nn.Sequential(Normalize(), models()[0]).eval()
    with pytest.raises(InputError, match="normalised twice"):
        ra.member(fb.PyTorchModel(twice, bounds=(0, 1), preprocessing={"mean": 0.5, "std": 0.25}))
    ra.member(fb.PyTorchModel(twice, bounds=(0, 1)))
