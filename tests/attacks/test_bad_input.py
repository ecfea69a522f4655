"""Bad input gets one line that names the value, before any gradient, and changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from recarc import (
    ARC,
    PGD,
    AdaptivePGD,
    Attack,
    Ball,
    CarliniWagner,
    InputError,
    LinearARC,
    RandomAttacker,
    RandomizedEnsemble,
    Restarts,
    WorstOf,
)
from recarc.errors import unknown
from tiny import Recorder, assert_unchanged, mlp, photograph, points

ATTACKS: list[Attack] = [
    ARC(steps=2),
    LinearARC(),
    PGD(steps=2),
    AdaptivePGD(steps=2, random_init=True),
    CarliniWagner(steps=2, search_steps=1),
    WorstOf([ARC(steps=2)]),
    Restarts(PGD(steps=2, random_init=True), 2),
    RandomAttacker(PGD(steps=2)),
]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
GOOD_X, GOOD_Y, GOOD_BALL = points(4, 6), torch.tensor([0, 1, 2, 3]), Ball("l2", 0.3)


def with_value(value: float) -> Tensor:
    x = GOOD_X.clone()
    x[2, 3] = value
    return x


@dataclass
class Case:
    message: str
    x: object = None
    y: object = None
    ball: object = None


CASES = {
    "x below the box": Case(
        r"x has values in \[-0.01, .*\], outside the box \[0.0, 1.0\]; move normalisation", x=with_value(-0.01)
    ),
    "x above the box": Case(
        r"x has values in \[.*, 1.01\], outside the box \[0.0, 1.0\]; move normalisation", x=with_value(1.01)
    ),
    "x of 8 bits": Case(
        r"outside the box .* divide 8-bit images by 255, or give the ball another box", x=with_value(255)
    ),
    "NaN in x": Case("x holds NaN or infinity in 1 samples", x=with_value(math.nan)),
    "infinity in x": Case("x holds NaN or infinity in 1 samples", x=with_value(math.inf)),
    "integer x": Case(
        "x is torch.uint8; expected a floating-point tensor, 8-bit images divided by 255",
        x=torch.zeros(4, 6, dtype=torch.uint8),
    ),
    "x a list": Case("x is list; expected a floating-point tensor", x=[[0.0] * 6] * 4),
    "x a numpy array": Case("x is ndarray; expected a floating-point tensor", x=GOOD_X.numpy()),
    "x without batch": Case(r"x has shape \(4,\); expected a leading batch", x=torch.zeros(4)),
    "float labels": Case("y is torch.float32; expected a tensor of integer labels", y=torch.zeros(4)),
    "bool labels": Case("y is torch.bool; expected a tensor of integer", y=torch.zeros(4, dtype=torch.bool)),
    "list labels": Case("y is list; expected a tensor of integer labels", y=[0, 1, 2, 3]),
    "one-hot labels": Case(
        r"y has shape \(4, 5\); expected labels \(B,\), so take y.argmax\(1\)",
        y=torch.eye(5)[:4].long(),
    ),
    "too few labels": Case(
        r"x has 4 samples and y has shape \(3,\); expected one label per sample", y=torch.tensor([0, 1, 2])
    ),
    "one label": Case(r"x has 4 samples and y has shape \(\)", y=torch.tensor(1)),
    "label 5 of 0..4": Case(r"labels span 0..5; the members know 0..4", y=torch.tensor([0, 1, 2, 5])),
    "negative label": Case(r"labels span -1..2; the members know 0..4", y=torch.tensor([0, -1, 2, 2])),
    "another batch's eps": Case(
        "eps has 3 values for 4 samples; give one each, or a single number", ball=Ball("l2", torch.full((3,), 0.1))
    ),
    "a number as the ball": Case(r"ball is a float; expected recarc.Ball\(norm, eps\)", ball=0.3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@every_attack
def test_bad_problems(attack: Attack, case: Case) -> None:
    recorders = [Recorder(mlp(i)).train() for i in range(2)]
    ensemble = RandomizedEnsemble(recorders, [0.4, 0.6])
    x = GOOD_X if case.x is None else case.x
    y = GOOD_Y if case.y is None else case.y
    inputs = [t for t in (x, y) if isinstance(t, Tensor)]
    before = photograph(ensemble, *inputs)
    with pytest.raises(InputError, match=case.message) as error:
        attack(ensemble, x, y, GOOD_BALL if case.ball is None else case.ball)
    assert "\n" not in str(error.value)
    assert_unchanged(before, photograph(ensemble, *inputs))
    assert sum(r.with_gradient for r in recorders) == 0


class Broken(nn.Module):
    """NaN logits for the samples whose first pixel is above a half."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 0.5, torch.nan, x[:, :5])


MEMBERS: dict[str, tuple[Callable[[], list[nn.Module]], str]] = {
    "NaN logits": (
        lambda: [mlp(0), Broken()],
        f"member 1 gives NaN logits on {int((GOOD_X[:, 0] > 0.5).sum())} of 4 clean samples",
    ),
    "class counts": (
        lambda: [mlp(0), mlp(1, classes=7)],
        r"members disagree on the number of classes: \[5, 7\]",
    ),
    "one output": (lambda: [mlp(0, classes=1)], "members have 1 output; a binary classifier needs two logits"),
    "no batch": (lambda: [nn.Flatten(0)], r"member 0 maps \(4, 6\) to \(24,\); expected \(B, classes\)"),
}


@pytest.mark.parametrize(("members", "message"), MEMBERS.values(), ids=MEMBERS.keys())
@every_attack
def test_bad_members(attack: Attack, members: Callable[[], list[nn.Module]], message: str) -> None:
    ensemble = RandomizedEnsemble([Recorder(m).train() for m in members()])
    before = photograph(ensemble, GOOD_X, GOOD_Y)
    with pytest.raises(InputError, match=message):
        attack(ensemble, GOOD_X, GOOD_Y, GOOD_BALL)
    assert_unchanged(before, photograph(ensemble, GOOD_X, GOOD_Y))
    assert sum(m.with_gradient for m in ensemble.modules_of_members) == 0


def test_inputs_on_another_device() -> None:
    ensemble = RandomizedEnsemble([mlp(0)])
    with pytest.raises(InputError, match="x is on meta, y on cpu, the members on cpu; move them to one device"):
        ARC()(ensemble, GOOD_X.to("meta"), GOOD_Y, GOOD_BALL)


def test_something_that_is_no_model() -> None:
    with pytest.raises(InputError, match="member 0 is a str, not a callable from inputs to logits"):
        ARC()("resnet20", GOOD_X, GOOD_Y, GOOD_BALL)


def test_float_noise_on_the_box_is_no_error() -> None:
    x = with_value(1 + 5e-7)
    x[0, 0] = -5e-7
    x_adv = ARC(steps=1)(RandomizedEnsemble([mlp(0)]), x, GOOD_Y, GOOD_BALL)
    assert float(x_adv.min()) >= 0 and float(x_adv.max()) <= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ARC(steps=0), "steps is 0; it must be a whole number of at least 1"),
        (lambda: ARC(steps=2.5), "steps is 2.5; it must be a whole number"),
        (lambda: ARC(planes=0), "planes is 0; it must be a whole number of at least 1"),
        (lambda: ARC(planes=-3), "planes is -3; it must be"),
        (lambda: ARC(planes=1.5), "planes is 1.5; it must be a whole number"),
        (lambda: ARC(step_size=0), "step_size is 0; it must be > 0 in the units of x, or None"),
        (lambda: ARC(step_size=-0.1), "step_size is -0.1; it must be > 0"),
        (lambda: ARC(step_size=math.nan), "step_size is nan; it must be > 0"),
        (lambda: ARC(step_size=math.inf), "step_size is inf; it must be > 0"),
        (lambda: ARC(rho=0), "rho is 0; it must be > 0"),
        (lambda: ARC(rho=math.nan), "rho is nan; it must be > 0"),
        (
            lambda: ARC(variant="correct"),
            r"unknown variant 'correct' \(did you mean 'corrected'\?\); known: corrected, paper",
        ),
        (lambda: LinearARC(rho=-1), "rho is -1; it must be > 0"),
        (lambda: PGD(steps=0), "steps is 0; it must be"),
        (lambda: PGD(step_size=0), "step_size is 0; it must be > 0"),
        (lambda: PGD(loss="cee"), r"unknown loss 'cee' \(did you mean 'ce'\?\); known: ce, dlr, margin"),
        (lambda: AdaptivePGD(steps=True), "steps is True; it must be"),
        (
            lambda: AdaptivePGD(expectation="logit"),
            r"unknown expectation 'logit' \(did you mean 'logits'\?\); known: logits, loss",
        ),
        (lambda: CarliniWagner(steps=0), "steps is 0; it must be"),
        (lambda: CarliniWagner(search_steps=0), "search_steps is 0; it must be"),
        (lambda: CarliniWagner(kappa=-1), "kappa is -1; it must be at least 0"),
        (lambda: CarliniWagner(initial_c=0), r"initial_c and learning_rate must be > 0"),
        (lambda: CarliniWagner(expectation="x"), "unknown expectation 'x'; known: logits, loss"),
    ],
)
def test_bad_knobs(make: Callable[[], Attack], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: WorstOf([PGD(), a])], ids=["alone", "in WorstOf"])
def test_more_planes_than_other_classes(wrap: Callable[[Attack], Attack]) -> None:
    recorder = Recorder(mlp(0))
    with pytest.raises(InputError, match=r"planes is 5; with 5 classes it must be 1..4 or None"):
        wrap(ARC(planes=5))(recorder, GOOD_X, GOOD_Y, GOOD_BALL)
    assert recorder.with_gradient == 0
    ARC(planes=4, steps=1)(recorder, GOOD_X, GOOD_Y, GOOD_BALL)


@pytest.mark.parametrize("member", [2, -1])
@pytest.mark.parametrize("kind", [PGD, CarliniWagner])
def test_a_member_that_does_not_exist(kind: type[PGD] | type[CarliniWagner], member: int) -> None:
    recorders = [Recorder(mlp(0)), Recorder(mlp(1))]
    with pytest.raises(InputError, match=f"member {member} does not exist; the ensemble has members 0..1"):
        kind(member=member)(RandomizedEnsemble(recorders), GOOD_X, GOOD_Y, GOOD_BALL)
    assert sum(r.with_gradient for r in recorders) == 0


def test_unknown_names_list_the_known_ones_and_suggest_the_nearest() -> None:
    assert str(unknown("model", "resnet2", ["vgg16", "resnet20"])) == (
        "unknown model 'resnet2' (did you mean 'resnet20'?); known: resnet20, vgg16"
    )
    assert str(unknown("model", "zzz", ["vgg16"])) == "unknown model 'zzz'; known: vgg16"
    assert isinstance(unknown("model", 3, ["a"]), ValueError)
