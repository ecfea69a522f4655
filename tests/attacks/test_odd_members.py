"""Members of kinds that people bring: what cannot work is one line with the way out, the rest works."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recarc import ARC, PGD, AdaptivePGD, AutoPGD, Ball, Climb, InputError, RandomizedEnsemble, Restarts, evaluate
from recarc.attacks.climb import Search
from recarc.attacks.problem import Best, Problem
from recarc.ensemble import frozen
from tiny import mlp, mlp_ensemble, points

X, Y, BALL = points(8, 6), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2]), Ball("linf", 0.1)


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (lambda f: (f, None), r"member 1 returns a tuple, not logits; wrap it, such as lambda x: model\(x\)\[0\]"),
        (lambda f: {"logits": f}, r'returns a dict, .* model\(x\)\["logits"\]'),
        (lambda f: SimpleNamespace(logits=f), r"returns a SimpleNamespace, .* model\(x\)\.logits"),
    ],
)
def test_outputs_that_are_no_tensor(wrap: Any, message: str) -> None:
    net = mlp(1)
    with pytest.raises(InputError, match=message):
        ARC()(RandomizedEnsemble([mlp(0), lambda x: wrap(net(x))]), X, Y, BALL)


def test_a_member_that_writes_into_its_input_is_refused() -> None:
    net = mlp(0)
    with pytest.raises(InputError, match="member 0 changes its input in place; let it work on a copy"):
        RandomizedEnsemble([lambda x: net(x.sub_(0.1))]).expected_accuracy(X.clone(), Y)
    with torch.inference_mode():
        assert RandomizedEnsemble([net]).expected_accuracy(X.clone(), Y).shape == (8,)


@pytest.mark.parametrize("attack", [ARC(), PGD(), AdaptivePGD(), AutoPGD(), Climb()], ids=lambda a: type(a).__name__)
def test_a_member_without_gradient_is_refused(attack: Any) -> None:
    net = mlp(0)
    y = net(X).argmax(1)
    with pytest.raises(InputError, match="no gradient in its input"):
        attack(lambda x: net(x).detach(), X, y, BALL)


@pytest.mark.parametrize("net", [mlp(0), nn.Sequential(nn.Flatten(), nn.Linear(6, 5))])
def test_a_single_module_is_not_a_list_of_members(net: nn.Module) -> None:
    with pytest.raises(InputError, match=r"members is one Sequential; give a list of models"):
        RandomizedEnsemble(net)  # type: ignore[arg-type]
    assert len(RandomizedEnsemble(nn.ModuleList([net]))) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", ["0.9,0.1", [None, 1.0], [[0.9], [0.1, 0.2]]])
def test_alpha_that_is_no_list_of_numbers(alpha: Any) -> None:
    with pytest.raises(InputError, match="expected one number per member"):
        RandomizedEnsemble([mlp(0), mlp(1)], alpha)


def test_x_of_another_precision_than_the_weights() -> None:
    with pytest.raises(InputError, match="x is float32, the members' weights are float64; convert one to the other"):
        ARC()(mlp(0), X.float(), Y, BALL)
    mixed = RandomizedEnsemble([mlp(0), mlp(1, dtype=torch.float32)])
    with pytest.raises(InputError, match="weights are float32 and float64"):
        PGD()(mixed, X, Y, BALL)


def test_an_ensemble_is_in_train_mode_only_if_a_member_is() -> None:
    nets = [mlp(0).eval(), mlp(1).eval()]
    assert not RandomizedEnsemble(nets).training
    assert RandomizedEnsemble([nets[0], nets[1].train()]).training


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::recarc.evaluation.RecarcWarning")
def test_a_frozen_script_has_no_modes() -> None:
    script = torch.jit.freeze(torch.jit.script(mlp(0).eval()))
    ensemble = RandomizedEnsemble([script])
    with frozen(ensemble):
        assert ensemble.logits(X).shape == (1, 8, 5)
    assert ARC(steps=2)(ensemble, X, Y, BALL).shape == X.shape
    single = torch.jit.freeze(torch.jit.script(mlp(0, dtype=torch.float32).eval()))
    for precision in (None, "bfloat16"):
        found = evaluate(single, ARC(steps=2), (X.float(), Y), BALL, precision=precision, progress=False)
        assert len(found) == len(X)


class Donated(torch.autograd.Function):
    """Answers like a compiled member that gives its buffers away."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        raise RuntimeError("This backward function was compiled with non-empty donated buffers which requires ...")


def test_a_compiled_member_is_told_how_to_be_given() -> None:
    net = mlp(0)
    with pytest.raises(InputError, match=r"compiled member can be differentiated only once; give it uncompiled"):
        ARC()(lambda x: net(Donated.apply(x)), X, Y, BALL)


def test_chase_reaches_a_set_that_holds_members_of_probability_zero() -> None:
    ensemble = mlp_ensemble(2).with_alpha([1.0, 0.0])
    y = ensemble.predictions(X)[0]
    goal = torch.ones(2, len(X), dtype=torch.bool)
    with torch.no_grad():
        problem = Problem(ensemble, X, y, Ball("linf", 0.4))
        best = Best.clean(problem)
        reached, _ = Search(problem, best, 20, 0.02).chase(torch.arange(len(X)), goal, torch.zeros_like(X))
    assert bool(reached.any()) and torch.equal(reached, best.wrong[0])


def test_restarts_of_climb_start_anew_every_time() -> None:
    runs: list[Any] = Restarts(Climb(orders=4), 10).seeded()
    starts = [run.seed + r for run in runs for r in range(1, run.orders)]
    assert len(set(starts)) == len(starts) == 30


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("an illegal address")])
def test_other_errors_of_members_in_two_precisions_are_shown_as_they_are(error: RuntimeError) -> None:
    class Failing(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    mixed = RandomizedEnsemble([mlp(0), Failing(6, 5)])
    with pytest.raises(type(error), match=str(error)):
        PGD()(mixed, X, Y, BALL)
