"""What recarc promises of every attack and training method, as checks for your own tests.

>>> from recarc.testing import check_attack
>>> check_attack(MyAttack(steps=3))                                             # doctest: +SKIP
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recarc.attacks.base import Attack
from recarc.ensemble import RandomizedEnsemble, frozen
from recarc.errors import first_line
from recarc.evaluation.fingerprint import describe, undescribed
from recarc.evaluation.prepare import check_attack as check_callable
from recarc.geometry import Ball, Norm

if TYPE_CHECKING:
    from recarc.training.method import Method, StepContext

RADIUS = {1.0: 0.6, 1.5: 0.4, 2.0: 0.3, math.inf: 0.1}
WIDE = {1.0: 3.0, 2.0: 1.2, math.inf: 0.7}  # even a single random point of such a ball fools many members
NORMS = (1.0, 2.0, math.inf)
ATOL = 1e-9  # how far rounding may carry a search in float64
MANY = 300  # samples: enough that the accuracy at random points of a wide ball is below the clean one, not by chance


def check_attack(attack: Any) -> None:
    """Raise an AssertionError that lists every promise of `ATTACK_CHECKS` that an attack breaks.

    `attack` is an `Attack` or a callable of (ensemble, x, y, ball); give it few steps, a hundred small problems follow.
    Its random numbers must belong to the sample (`Ball.random_start` with a seed, `recarc.randomness`).
    """
    check_callable(attack)
    _run_all(getattr(attack, "__name__", type(attack).__name__), ATTACK_CHECKS, attack)


def check_method(method: Method) -> None:
    """Raise an AssertionError that lists every promise of `METHOD_CHECKS` that a training method breaks.

    It is trained for a few steps on random images with small networks, on the CPU.
    """
    _run_all(method.name, METHOD_CHECKS, method)


def _run_all(name: str, checks: Mapping[str, Callable[[Any], None]], subject: Any) -> None:
    broken = []
    for promise, check in checks.items():
        try:
            with torch.random.fork_rng(devices=[]):
                check(subject)
        except Exception as error:  # whatever goes wrong breaks the promise
            broken.append(f"- {promise}: {type(error).__name__}: {first_line(error)}")
    if broken:
        raise AssertionError("\n".join([f"{name} breaks {len(broken)} of {len(checks)} promises", *broken]))


# Attacks --------------------------------------------------------------------------------------------------


def small_problem(count: int = 12, dtype: torch.dtype = torch.float64) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """Three random networks with bent decision boundaries, inputs in the unit box, and labels."""
    ensemble = RandomizedEnsemble([mlp(100 + i, dtype=dtype) for i in range(3)], [0.3, 0.5, 0.2])
    x = points(count, 6, seed=1, dtype=dtype)
    return ensemble, x, labels_of(ensemble, x)


def _same_in_every_precision(count: int, dtype: torch.dtype) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    """A small problem whose x is x in every precision, so that a sample draws the same random numbers in each."""
    ensemble = small_problem(count, dtype)[0]
    x = (points(count, 6, seed=1) * 128).round().div(128).to(dtype)  # 8 bits, as many as bfloat16 has
    return ensemble, x, labels_of(ensemble, x)


def _run(attack: Any, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
    """x_adv; a plain callable is called as an evaluation calls it."""
    if isinstance(attack, Attack):
        return attack(ensemble, x, y, ball)
    if not len(x):
        return x.clone()
    with frozen(ensemble), torch.enable_grad():
        x_adv: Tensor = attack(ensemble, x.detach().clone(), y.clone(), ball)
        return x_adv


def _check_points(x: Tensor, x_adv: Tensor, ball: Ball, where: str) -> None:
    """Finite, and inside ball and box up to what an evaluation takes for rounding."""
    assert bool(torch.isfinite(x_adv).all()), f"NaN or infinity in {ball.norm} {where}".strip()
    allowed = 1e-12 if x.dtype == torch.float64 else 1e-6
    excess = float(ball.violation(x, x_adv).max())
    assert excess <= allowed, f"outside ball or box by {excess:.2g} in {ball.norm} {where}".strip()


def _stays_inside(attack: Any) -> None:
    for p, eps in RADIUS.items():
        ensemble, x, y = small_problem()
        x[0], x[1, :3] = 0.0, 1.0
        ball = Ball(p, eps)
        x_adv = _run(attack, ensemble, x, y, ball)
        assert x_adv.shape == x.shape and x_adv.dtype == x.dtype, f"{tuple(x_adv.shape)}, {x_adv.dtype} of {x.dtype}"
        assert not x_adv.requires_grad and x_adv.data_ptr() != x.data_ptr(), "it returned x or a tensor with a graph"
        _check_points(x, x_adv, ball, "")


def _does_harm(attack: Any) -> None:
    for p in NORMS:
        ensemble, x, y = small_problem(MANY)
        clean = ensemble.expected_accuracy(x, y).mean()
        attacked = ensemble.expected_accuracy(_run(attack, ensemble, x, y, Ball(p, WIDE[p])), y).mean()
        assert attacked < clean, f"accuracy {attacked:.3f} of {clean:.3f} without an attack, in {Norm(p)}"


def _repeats_itself(attack: Any) -> None:
    ensemble, x, y = small_problem()
    first = _run(attack, ensemble, x, y, Ball("linf", 0.1))
    torch.rand(1)
    assert torch.equal(_run(attack, ensemble, x, y, Ball("linf", 0.1)), first), "the second call gave other points"


def _ignores_the_batch(attack: Any) -> None:
    ensemble, x, y = small_problem(10)
    ball = Ball("l2", 0.3)
    whole = _run(attack, ensemble, x, y, ball)
    alone = torch.cat([_run(attack, ensemble, x[n : n + 1], y[n : n + 1], ball) for n in range(len(x))])
    torch.testing.assert_close(alone, whole, rtol=0, atol=ATOL)
    assert torch.equal(ensemble.correct(alone, y), ensemble.correct(whole, y))
    order = torch.tensor([3, 1, 4, 9, 5, 2, 6, 8, 7, 0])
    torch.testing.assert_close(_run(attack, ensemble, x[order], y[order], ball), whole[order], rtol=0, atol=ATOL)


def _takes_no_samples(attack: Any) -> None:
    ensemble, x, y = small_problem()
    assert _run(attack, ensemble, x[:0], y[:0], Ball("l2", 0.3)).shape == (0, 6)


def _obeys_each_radius(attack: Any) -> None:
    ensemble, x, y = small_problem()
    eps = torch.linspace(0, 0.5, len(x), dtype=torch.float64)
    x_adv = _run(attack, ensemble, x, y, Ball("l2", eps))
    assert bool((Norm(2).norm(x_adv - x) <= eps + 1e-12).all()), "a sample left its own radius"
    one = _run(attack, ensemble, x[3:4], y[3:4], Ball("l2", float(eps[3])))
    torch.testing.assert_close(one, x_adv[3:4], rtol=0, atol=ATOL)
    for p in NORMS:
        assert torch.equal(_run(attack, ensemble, x, y, Ball(p, 0)), x), f"a radius of 0 moved x in {Norm(p)}"


def _takes_images(attack: Any) -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), mlp(i, dim=8)) for i in range(3)]
    ensemble, x = RandomizedEnsemble(nets, [0.2, 0.5, 0.3]), points(5, 2, 2, 2)
    x_adv = _run(attack, ensemble, x, labels_of(ensemble, x), Ball("l2", 0.3))
    assert x_adv.shape == x.shape, f"{tuple(x_adv.shape)} for {tuple(x.shape)}"
    _check_points(x, x_adv, Ball("l2", 0.3), "on images")


def _takes_every_precision(attack: Any) -> None:
    for p in (2, math.inf):
        moved = {}
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            ensemble, x, y = _same_in_every_precision(60, dtype)
            for eps in (RADIUS[p], WIDE[p]):
                ball = Ball(p, eps)
                x_adv = _run(attack, ensemble, x, y, ball)
                assert x_adv.dtype == dtype, f"it returned {x_adv.dtype} for {dtype}"
                _check_points(x, x_adv, ball, f"in {dtype}")
            moved[dtype] = float(ball.norm.norm(x_adv.float() - x.float()).max())
            assert moved[dtype] >= 0.3 * moved[torch.float64], f"it moves far less in {dtype} than in float64"


class _Flat(nn.Module):
    """The same logits everywhere: every gradient is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0], dtype=x.dtype) + 0 * x.flatten(1).sum(1, keepdim=True)


def _survives_flat_members(attack: Any) -> None:
    x, y = points(4, 6), torch.zeros(4, dtype=torch.long)
    for p in NORMS:
        x_adv = _run(attack, RandomizedEnsemble([_Flat(), _Flat(), _Flat()]), x, y, Ball(p, 0.2))
        _check_points(x, x_adv, Ball(p, 0.2), "where gradients are zero")


def _survives_saturation(attack: Any) -> None:
    for scale, dtype in ((1e4, torch.float32), (1e30, torch.float32), (1e4, torch.float16)):
        torch.manual_seed(0)
        nets = [nn.Linear(6, 5, bias=False) for _ in range(3)]
        for net in nets:
            nn.init.normal_(net.weight, std=scale)
        ensemble, x = RandomizedEnsemble([net.to(dtype) for net in nets]), points(6, 6, dtype=dtype)
        for p in NORMS:
            x_adv = _run(attack, ensemble, x, labels_of(ensemble, x), Ball(p, 0.2))
            _check_points(x, x_adv, Ball(p, 0.2), f"for logits of the order {scale:.0g} in {dtype}")


def _leaves_no_trace(attack: Any) -> None:
    nets = [
        nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 5)).double()
        for _ in range(3)
    ]
    nets[0].train()
    nets[1].eval()
    nets[2].train()[1].eval()
    nets[1][0].weight.requires_grad_(False)
    ensemble = RandomizedEnsemble(nets, [0.3, 0.5, 0.2])
    nets[0](points(4, 6)).sum().backward()  # a gradient that must survive
    x, y = points(5, 6, seed=2).requires_grad_(), torch.tensor([0, 1, 2, 3, 4])
    before = photograph(ensemble, x, y)
    x_adv = _run(attack, ensemble, x, y, Ball("l2", 0.3))
    assert_unchanged(before, photograph(ensemble, x, y))
    assert not x_adv.requires_grad


def _can_be_compared(attack: Any) -> None:
    unknown = undescribed(describe(attack))
    assert not unknown, f"it holds a {unknown[0] if unknown else ''}, so no run of it can be resumed; use plain fields"
    assert describe(attack) == describe(copy.deepcopy(attack)), "two equal ones look different; use plain fields"


ATTACK_CHECKS: dict[str, Callable[[Any], None]] = {
    "stays in ball and box": _stays_inside,
    "lowers the accuracy": _does_harm,
    "gives the same points again": _repeats_itself,
    "treats every sample by itself, whatever the batch": _ignores_the_batch,
    "takes an empty batch": _takes_no_samples,
    "obeys each sample's own radius, also 0": _obeys_each_radius,
    "takes inputs of any shape": _takes_images,
    "works in half, bfloat16 and single precision": _takes_every_precision,
    "survives members without a gradient": _survives_flat_members,
    "survives saturated logits": _survives_saturation,
    "leaves members, inputs and random state as they were": _leaves_no_trace,
    "can be told from another one, so that runs resume": _can_be_compared,
}


# Training methods -----------------------------------------------------------------------------------------


def _trained(method: Method) -> RandomizedEnsemble:
    """The method's ensemble after four steps on 32 random images of three classes."""
    from recarc.data.imageset import ImageSet
    from recarc.training.run import train

    pixels = torch.randint(0, 256, (40, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = ImageSet("random", "train", pixels.numpy(), (torch.arange(40) % 3).numpy(), ("a", "b", "c"), "random")
    sizes = {"epochs": 2.0, "batch": 16, "validation": 8}
    ball: dict[str, Any] = {"norm": "linf", "eps": 0.1} if method.needs_ball else {}
    return train(method, data, "cnn", **ball, changes=sizes, arch_options={"width": 4}, device="cpu", say=None)


def _trains_on_allowed_inputs(method: Method) -> None:
    watched, seen = copy.copy(method), []

    def perturb(context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        before = x.clone()
        x_adv = method.perturb(context, x, y)
        assert torch.equal(x, before), "perturb wrote into x"
        assert x_adv.shape[-x.dim() :] == x.shape, f"perturb returned {tuple(x_adv.shape)} for {tuple(x.shape)}"
        assert bool(torch.isfinite(x_adv).all()), "perturb returned NaN or infinity"
        if context.ball is not None:
            for part in x_adv.reshape(-1, *x.shape):
                excess = float(context.ball.violation(x, part).max())
                assert excess <= 1e-5, f"perturb left ball or box by {excess:.2g}"
        seen.append(len(x))
        return x_adv

    watched.perturb = perturb  # type: ignore[method-assign]
    _trained(watched)
    assert seen, "perturb was never called"


def _minimises_finite_terms(method: Method) -> None:
    watched = copy.copy(method)

    def loss(context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> dict[str, Tensor]:
        terms = method.loss(context, x, x_adv, y)
        assert terms and isinstance(terms, dict), f"loss returned {type(terms).__name__}; expected named terms"
        for name, term in terms.items():
            assert isinstance(term, Tensor) and term.dim() == 0, f"the term {name} is not a scalar tensor"
            assert bool(torch.isfinite(term)), f"the term {name} is {float(term)}"
        return terms

    watched.loss = loss  # type: ignore[method-assign]
    _trained(watched)


def _trains_alike(method: Method) -> None:
    before = torch.get_rng_state()
    one = _trained(method)
    assert torch.equal(torch.get_rng_state(), before), "it changed torch's random state"
    other = _trained(method)
    assert torch.equal(one.alpha, other.alpha)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "two runs with one seed gave other weights"
    assert all(bool(torch.isfinite(p).all()) for p in one.parameters()), "a weight is NaN or infinite"


METHOD_CHECKS: dict[str, Callable[[Any], None]] = {
    "trains on inputs in ball and box": _trains_on_allowed_inputs,
    "minimises named, finite terms": _minimises_finite_terms,
    "gives the same weights for the same seed": _trains_alike,
}


# Small models and data ------------------------------------------------------------------------------------


def mlp(seed: int, dim: int = 6, classes: int = 5, width: int = 16, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A random two-layer network with steep, bent decision boundaries inside the unit cube."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, classes)).to(dtype)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(3.0)
    return net.eval()


def points(count: int, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random inputs in the unit box, away from its faces on average."""
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def labels_of(ensemble: RandomizedEnsemble, x: Tensor) -> Tensor:
    """The heaviest member's answers: labels for which an ensemble has something to lose."""
    with torch.no_grad():
        return ensemble.members[ensemble.order[0]](x).argmax(1)


def photograph(ensemble: RandomizedEnsemble, *inputs: Tensor) -> dict[str, Any]:
    """Everything an attack must leave as it was: flags, parameters, buffers, their gradients, inputs."""
    state: dict[str, Any] = {f"training {name}": m.training for name, m in ensemble.named_modules()}
    for name, p in ensemble.named_parameters():
        state[f"parameter {name}"] = p.detach().clone()
        state[f"requires_grad {name}"] = p.requires_grad
        state[f"grad {name}"] = None if p.grad is None else p.grad.clone()
    for name, b in ensemble.named_buffers():
        state[f"buffer {name}"] = b.clone()
    for i, x in enumerate(inputs):
        state[f"input {i}"] = x.detach().clone()
        state[f"input {i} requires_grad"] = x.requires_grad
        state[f"input {i} grad"] = None if x.grad is None else x.grad.clone()
    state["alpha"] = ensemble.alpha.clone()
    state["rng"] = torch.get_rng_state()
    state["grad mode"] = torch.is_grad_enabled()
    return state


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for key, value in before.items():
        other = after[key]
        if isinstance(value, Tensor):
            assert isinstance(other, Tensor) and value.dtype == other.dtype, key
            assert torch.equal(value.nan_to_num(nan=-7.0), other.nan_to_num(nan=-7.0)), f"{key} changed"
        else:
            assert value == other, f"{key} changed from {value} to {other}"
