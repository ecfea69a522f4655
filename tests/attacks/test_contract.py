"""What every attack promises, whatever it does: feasible, repeatable, batch-free, dtype-free, and leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recarc import (
    ARC,
    MORA,
    PGD,
    AdaptivePGD,
    Attack,
    AutoPGD,
    Ball,
    CarliniWagner,
    Climb,
    LatticeClimber,
    LinearARC,
    RandomAttacker,
    RandomizedEnsemble,
    Restarts,
    Square,
    Tight,
    WorstOf,
)
from recarc.testing import ATTACK_CHECKS, RADIUS, small_problem
from tiny import Recorder, assert_unchanged, cnn, labels_of, mlp, photograph, points

ATTACKS: dict[str, Attack] = {
    "PGD": PGD(steps=4, member=1),
    "PGD+R": PGD(steps=4, random_init=True),
    "AdaptivePGD": AdaptivePGD(steps=4),
    "AdaptivePGD+R": AdaptivePGD(steps=4, random_init=True, seed=3),
    "AdaptivePGD-L": AdaptivePGD(steps=4, expectation="logits", loss="margin"),
    "AdaptivePGD+RR": Restarts(AdaptivePGD(steps=3, random_init=True), 3, keep="loss"),
    "Restarts": Restarts(AdaptivePGD(steps=3, random_init=True), 3),
    "ARC": ARC(steps=3),
    "ARC-G1": ARC(steps=3, planes=1),
    "ARC-corrected": ARC(steps=3, variant="corrected"),
    "LinearARC": LinearARC(),
    "C&W": CarliniWagner(steps=6, search_steps=3, learning_rate=0.05, initial_c=1.0),
    "C&W-1": CarliniWagner(steps=6, search_steps=2, learning_rate=0.05, initial_c=1.0, member=1),
    "AC&W-L": CarliniWagner(steps=6, search_steps=2, learning_rate=0.05, initial_c=1.0, expectation="logits"),
    "random PGD": RandomAttacker(PGD(steps=4)),
    "AutoPGD": AutoPGD(steps=4),
    "AutoPGD-1": AutoPGD(steps=4, member=1, loss="dlr"),
    "AutoPGD-T": AutoPGD(steps=3, member=1, loss="dlr_targeted", targets=2),
    "AutoPGD-scout": AutoPGD(steps=3, member=1, loss="dlr_targeted", targets=3, scout=1),
    "Square": Square(queries=12),
    "Square-1": Square(queries=12, member=1),
    "Climb": Climb(steps=4),
    "LatticeClimber": LatticeClimber(steps=4),
    "MORA": MORA(steps=4),
    "Tight": Tight("quick", steps=3),
    "WorstOf": WorstOf([AdaptivePGD(steps=3), ARC(steps=2), PGD(steps=3, member=2, random_init=True)]),
}
TOLD_WHOM = (
    "PGD",
    "PGD+R",
    "C&W-1",
    "AutoPGD-1",
    "AutoPGD-T",
    "AutoPGD-scout",
    "Square-1",
)  # they attack the member they are given
every_attack = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
every_norm = pytest.mark.parametrize("p", [1, 2, math.inf])


@pytest.mark.parametrize("promise", ATTACK_CHECKS)
@every_attack
def test_keeps_what_recarc_testing_promises(attack: Attack, promise: str) -> None:
    ATTACK_CHECKS[promise](attack)


@pytest.mark.parametrize("p", RADIUS)
@pytest.mark.parametrize("name", ["ARC", "ARC-G1", "ARC-corrected", "LinearARC", "Restarts", "WorstOf"])
def test_these_never_hurt_a_sample(name: str, p: float) -> None:
    ensemble, x, y = small_problem(60)
    attacked = ensemble.expected_accuracy(ATTACKS[name](ensemble, x, y, Ball(p, RADIUS[p])), y)
    assert bool((attacked <= ensemble.expected_accuracy(x, y)).all())


# Shapes and dtypes


@pytest.mark.parametrize("shape", [(2, 4), (2, 2, 2)])
@every_attack
def test_any_shape_with_a_leading_batch(attack: Attack, shape: tuple[int, ...]) -> None:
    nets = [nn.Sequential(nn.Flatten(), mlp(i, dim=8)) for i in range(3)]
    ensemble = RandomizedEnsemble(nets, [0.2, 0.5, 0.3])
    x = points(5, 8)
    y = labels_of(ensemble, x)
    flat = attack(ensemble, x, y, Ball("l2", 0.3))
    shaped = attack(ensemble, x.reshape(5, *shape), y, Ball("l2", 0.3))
    assert shaped.shape == (5, *shape)
    if isinstance(attack, Square):  # its windows follow the shape
        assert float(Ball("l2", 0.3).violation(x, shaped.reshape(5, 8)).max()) <= 1e-12
        return
    torch.testing.assert_close(shaped.reshape(5, 8), flat, rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_labels_of_every_integer_dtype(dtype: torch.dtype) -> None:
    ensemble, x, y = small_problem()
    expected = ARC(steps=2)(ensemble, x, y, Ball("linf", 0.1))
    assert torch.equal(ARC(steps=2)(ensemble, x, y.to(dtype), Ball("linf", 0.1)), expected)


def test_channels_last_and_strided_inputs() -> None:
    ensemble = RandomizedEnsemble([cnn(0), cnn(1)])
    x = points(4, 2, 4, 4)
    y = labels_of(ensemble, x)
    for attack in (ARC(steps=2), AdaptivePGD(steps=2, random_init=True)):
        expected = attack(ensemble, x, y, Ball("linf", 0.05))
        other = attack(ensemble, x.to(memory_format=torch.channels_last), y, Ball("linf", 0.05))
        strided = attack(ensemble, x.repeat_interleave(2, 0)[::2], y, Ball("linf", 0.05))
        torch.testing.assert_close(other, expected, rtol=0, atol=1e-12)
        assert torch.equal(strided, expected)


# Where members are asked


@every_norm
@every_attack
def test_no_member_is_asked_outside_the_box(attack: Attack, p: float) -> None:
    recorders = [Recorder(mlp(i)) for i in range(3)]
    ensemble = RandomizedEnsemble(recorders, [0.3, 0.5, 0.2])
    x = points(6, 6)
    x[0], x[1] = 0.0, 1.0
    attack(ensemble, x, labels_of(ensemble, x), Ball(p, 3 * RADIUS[p]))
    for recorder in recorders:
        seen = torch.cat(recorder.seen)
        assert float(seen.min()) >= 0 and float(seen.max()) <= 1


@pytest.mark.parametrize("name", [n for n in ATTACKS if n not in TOLD_WHOM])
def test_members_of_probability_zero_are_not_attacked(name: str) -> None:
    attack = WorstOf([AdaptivePGD(steps=3), ARC(steps=2)]) if name == "WorstOf" else ATTACKS[name]
    recorders = [Recorder(mlp(i)) for i in range(3)]
    ensemble = RandomizedEnsemble(recorders, [0.6, 0.0, 0.4])
    x = points(6, 6)
    attack(ensemble, x, labels_of(ensemble, x), Ball("l2", 0.3))
    assert recorders[1].with_gradient == 0
    assert recorders[0].with_gradient > 0 or isinstance(attack, Square)
    without = RandomizedEnsemble([recorders[0], recorders[2]], [0.6, 0.4])
    y = labels_of(ensemble, x)
    assert torch.equal(attack(ensemble, x, y, Ball("l2", 0.3)), attack(without, x, y, Ball("l2", 0.3)))


def test_equal_alphas_are_visited_in_the_given_order() -> None:
    called: list[int] = []

    def member(i: int) -> Callable[[Tensor], Tensor]:
        net = mlp(i)

        def forward(x: Tensor) -> Tensor:
            if x.requires_grad:
                called.append(i)
            return net(x)

        return forward

    ensemble = RandomizedEnsemble([member(i) for i in range(4)], [0.2, 0.3, 0.2, 0.3])
    x = points(3, 6)
    y = labels_of(ensemble, x)
    ARC(steps=1, planes=4)(ensemble, x, y, Ball("l2", 1e-3))
    LinearARC()(ensemble, x, y, Ball("l2", 1e-3))
    assert called == [1, 3, 0, 2] * 2


@every_attack
def test_a_member_that_breaks_off_the_data_gives_no_nan(attack: Attack) -> None:
    """NaN logits away from the clean points: the answer there is wrong, and x_adv stays finite."""

    class Fragile(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            logits = x @ torch.eye(6, 5, dtype=x.dtype)
            return torch.where((x[:, :1] > 0.55), logits / 0 * 0, logits)

    x = points(6, 6)
    x[:, 0] = 0.5
    ensemble = RandomizedEnsemble([Fragile(), mlp(0), mlp(1)])
    ball = Ball("l2", 0.5)
    x_adv = attack(ensemble, x, labels_of(ensemble, x), ball)
    assert bool(torch.isfinite(x_adv).all())
    assert float(ball.violation(x, x_adv).max()) <= 1e-12


# Traces


def normalised_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5)).double()


@every_attack
def test_leaves_no_trace_after_an_error(attack: Attack) -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = mlp(0), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("out of memory")
            return self.inner(x)

    ensemble = RandomizedEnsemble([Fails().train(), mlp(1).train(), mlp(2)], [0.4, 0.3, 0.3])
    x, y = points(5, 6), torch.zeros(5, dtype=torch.long)
    before = photograph(ensemble, x, y)
    if isinstance(attack, PGD) and attack.member != 0:
        attack = PGD(steps=4)
    with pytest.raises(RuntimeError, match="out of memory"):
        for _ in range(4):
            attack(ensemble, x, y, Ball("l2", 0.3))
    assert_unchanged(before, photograph(ensemble, x, y))


def test_dropout_and_batch_norm_answer_as_in_evaluation_mode() -> None:
    nets = [normalised_net(i) for i in range(2)]
    training = RandomizedEnsemble([net.train() for net in nets])
    x, y, ball = points(5, 6), torch.tensor([0, 1, 2, 3, 4]), Ball("l2", 0.3)
    found = ARC(steps=3)(training, x, y, ball)
    assert torch.equal(ARC(steps=3)(training.eval(), x, y, ball), found)


def test_knobs_are_frozen_and_shown() -> None:
    with pytest.raises(AttributeError):
        ARC().steps = 3
    assert repr(ARC(steps=5, planes=4)).startswith("ARC(steps=5, step_size=None, planes=4, variant='paper'")
    assert ARC(steps=5) == ARC(steps=5) != ARC(steps=6)
    assert len({ARC(), ARC(), AdaptivePGD()}) == 2


def test_a_single_model_can_be_attacked() -> None:
    net = mlp(0)
    x = points(5, 6)
    y = net(x).argmax(1)
    found = ARC(steps=2)(net, x, y, Ball("l2", 0.3))
    assert torch.equal(found, ARC(steps=2)(RandomizedEnsemble([net]), x, y, Ball("l2", 0.3)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("p", RADIUS)
@pytest.mark.parametrize("attack", [ARC(steps=6), ARC(steps=6, variant="corrected"), LinearARC()], ids=repr)
def test_the_returned_point_is_one_that_was_judged(attack: Attack, p: float, dtype: torch.dtype) -> None:
    """Bit for bit: the members saw exactly x_adv, so evaluating it again gives what the attack relied on."""
    recorder = Recorder(mlp(0, dtype=dtype))
    ensemble = RandomizedEnsemble([recorder, mlp(1, dtype=dtype), mlp(2, dtype=dtype)], [0.3, 0.5, 0.2])
    x = points(40, 6, seed=7, dtype=dtype)
    y = labels_of(ensemble, x)
    x_adv = attack(ensemble, x, y, Ball(p, RADIUS[p]))
    seen = torch.cat(recorder.seen)
    assert bool((x_adv[:, None] == seen[None]).all(2).any(1).all())
