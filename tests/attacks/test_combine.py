"""WorstOf, Restarts and RandomAttacker against their definitions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recarc import (
    ARC,
    PGD,
    AdaptivePGD,
    Attack,
    AutoPGD,
    Ball,
    CarliniWagner,
    Evaluation,
    InputError,
    LinearARC,
    RandomAttacker,
    RandomizedEnsemble,
    Restarts,
    Tight,
    WorstOf,
    evaluate,
)
from recarc.attacks import Outcome
from recarc.attacks.problem import Problem, frozen_problem
from recarc.errors import AttackViolation
from recarc.evaluation import Verdict
from tiny import Recorder, labels_of, mlp, mlp_ensemble, points

pytestmark = pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
BALL = Ball("l2", 0.25)


def problem(count: int = 40) -> tuple[RandomizedEnsemble, Tensor, Tensor]:
    ensemble = mlp_ensemble(3, [0.2, 0.5, 0.3], seed=4)
    x = points(count, 6, seed=4)
    return ensemble, x, labels_of(ensemble, x)


# WorstOf


def test_worst_of_is_the_worst_per_sample() -> None:
    ensemble, x, y = problem()
    attacks = [PGD(steps=5, member=0), ARC(steps=2), AdaptivePGD(steps=5)]
    values = torch.stack([ensemble.expected_accuracy(a(ensemble, x, y, BALL), y) for a in attacks])
    clean = ensemble.expected_accuracy(x, y)
    x_adv = WorstOf(attacks)(ensemble, x, y, BALL)
    assert torch.equal(ensemble.expected_accuracy(x_adv, y), torch.minimum(values.amin(0), clean))
    assert len(set(values.argmin(0).tolist())) > 1  # no single attack wins everywhere
    for n in range(len(x)):  # the first on ties, and the clean point where nothing helps
        if float(values[:, n].min()) < float(clean[n]):
            winner = attacks[int(values[:, n].argmin())](ensemble, x[n : n + 1], y[n : n + 1], BALL)[0]
            torch.testing.assert_close(x_adv[n], winner, rtol=0, atol=1e-9)
        else:
            assert torch.equal(x_adv[n], x[n])


def test_worst_of_attacks_only_what_is_worth_it() -> None:
    recorder = Recorder(mlp(0))
    ensemble = RandomizedEnsemble([recorder])
    x = points(30, 6)
    y = labels_of(ensemble, x)
    lost = ensemble.expected_accuracy(PGD(steps=10)(ensemble, x, y, BALL), y) == 0
    assert 0 < int(lost.sum()) < 30
    recorder.seen.clear()
    WorstOf([PGD(steps=10), PGD(steps=1)])(ensemble, x, y, BALL)
    assert len(recorder.seen[-1]) == 30 - int(lost.sum())


def test_worst_of_nests() -> None:
    ensemble, x, y = problem(10)
    nested = WorstOf([WorstOf([PGD(steps=3)]), Restarts(PGD(steps=3, random_init=True), 2)])
    flat = WorstOf([PGD(steps=3), PGD(steps=3, random_init=True), PGD(steps=3, random_init=True, seed=1)])
    assert torch.equal(nested(ensemble, x, y, BALL), flat(ensemble, x, y, BALL))


# Restarts


@dataclass(frozen=True)
class Sign(Attack):
    """Moves the first coordinate up for even seeds, down for odd ones."""

    seed: int = 0

    def perturb(self, problem: Problem) -> Tensor:
        x, ball = problem.x, problem.ball
        delta = torch.zeros_like(x)
        delta[:, 0] = 0.2 if self.seed % 2 == 0 else -0.2
        return ball.move(x, ball.project(delta, x))


def test_restarts_keep_the_worst_not_the_last() -> None:
    """A sample is fooled by the first run only, another by the second only: both stay fooled."""
    ensemble = RandomizedEnsemble([lambda x: torch.stack([0.1 - (x[:, 0] - 0.5) * x[:, 1].sign(), 0 * x[:, 0]], 1)])
    x = torch.tensor([[0.5, 1.0], [0.5, -1.0]], dtype=torch.float64)
    y = torch.zeros(2, dtype=torch.long)
    ball = Ball("linf", 0.2, box=None)
    runs = [ensemble.expected_accuracy(Sign(seed)(ensemble, x, y, ball), y).tolist() for seed in (0, 1, 2, 3)]
    assert runs == [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    for n in (2, 3, 4):
        assert ensemble.expected_accuracy(Restarts(Sign(), n)(ensemble, x, y, ball), y).tolist() == [0.0, 0.0]


def test_restarts_are_the_worst_of_the_seeds() -> None:
    ensemble, x, y = problem()
    base = AdaptivePGD(steps=3, random_init=True, seed=5)
    runs = [replace(base, seed=5 + r)(ensemble, x, y, BALL) for r in range(4)]
    values = torch.stack([ensemble.expected_accuracy(u, y) for u in runs])
    assert bool((values.amin(0) < values[-1]).any())
    found = ensemble.expected_accuracy(Restarts(base, 4)(ensemble, x, y, BALL), y)
    assert torch.equal(found, torch.minimum(values.amin(0), ensemble.expected_accuracy(x, y)))


@pytest.mark.parametrize("knobs", [{}, {"expectation": "logits"}, {"loss": "margin"}])
def test_restarts_by_loss_keep_the_highest_objective(knobs: dict[str, str]) -> None:
    """The paper's +RR."""
    ensemble, x, y = problem()
    base = AdaptivePGD(steps=3, random_init=True, **knobs)
    runs = [replace(base, seed=r)(ensemble, x, y, BALL) for r in range(4)]
    values = torch.stack([base.objective(ensemble, u, y) for u in runs])
    found = Restarts(base, 4, keep="loss")(ensemble, x, y, BALL)
    torch.testing.assert_close(base.objective(ensemble, found, y), values.amax(0), rtol=1e-6, atol=1e-6)
    assert len(set(values.argmax(0).tolist())) > 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Restarts(ARC(), 3), "restarting ARC would repeat itself: it is deterministic"),
        (lambda: Restarts(AdaptivePGD(), 3), "restarting AdaptivePGD would repeat itself: set random_init=True"),
        (lambda: Restarts(PGD(random_init=True), 0), "n is 0; it must be a whole number of at least 1"),
        (lambda: Restarts(PGD(random_init=True), 3, keep="los"), r"unknown keep 'los' \(did you mean 'loss'\?\)"),
        (lambda: Restarts(RandomAttacker(PGD()), 3, keep="loss"), "has no objective of its own; use keep='accuracy'"),
        (lambda: WorstOf([]), "WorstOf needs at least one attack"),
        (lambda: RandomAttacker(ARC()), "ARC does not attack a single member; use e.g. PGD"),
    ],
)
def test_wrappers_refuse(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


# The randomized attacker


@pytest.mark.parametrize("inner", [PGD(steps=5), CarliniWagner(member=0, steps=5, search_steps=2, learning_rate=0.05)])
def test_random_attacker_value_is_the_exact_double_expectation(inner: Attack) -> None:
    """L-bar = sum_j alpha_j sum_i alpha_i 1{f_i(x + delta_j) = y}, by two loops."""
    ensemble, x, y = problem(12)
    attacker = RandomAttacker(inner)
    expected = torch.zeros(len(x), dtype=torch.float64)
    for j, a_j in enumerate(ensemble.alpha.tolist()):
        u = replace(inner, member=j)(ensemble, x, y, BALL)
        for i, a_i in enumerate(ensemble.alpha.tolist()):
            expected += a_j * a_i * (ensemble.members[i](u).argmax(1) == y)
    torch.testing.assert_close(attacker.expected_accuracy(ensemble, x, y, BALL), expected)
    with frozen_problem(ensemble, x, y, BALL) as stated:
        mixture = attacker.outcome(stated).mixture
    assert [p for p, _ in mixture] == [ensemble.alpha[j].item() for j in ensemble.order]


def test_random_attacker_call_draws_members_as_alpha_says() -> None:
    ensemble, _, _ = problem()
    x = points(3000, 6, seed=9)
    y = labels_of(ensemble, x)
    attacker = RandomAttacker(PGD(steps=1))
    found = attacker(ensemble, x, y, BALL)
    candidates = torch.stack([PGD(steps=1, member=j)(ensemble, x, y, BALL) for j in range(3)])
    distance = (candidates - found).abs().amax(2)
    assert float(distance.amin(0).max()) < 1e-12
    frequency = torch.bincount(distance.argmin(0), minlength=3) / len(x)
    torch.testing.assert_close(frequency.double(), ensemble.alpha, rtol=0, atol=0.03)
    other = RandomAttacker(PGD(steps=1), seed=1)(ensemble, x, y, BALL)
    assert not torch.equal(other, found)


def test_outcome_of_a_plain_attack_is_its_point() -> None:
    ensemble, x, y = problem(5)
    with frozen_problem(ensemble, x, y, BALL) as stated:
        ((probability, u),) = LinearARC().outcome(stated).mixture
    assert probability == 1.0 and torch.equal(u, LinearARC()(ensemble, x, y, BALL))


# What a staged attack shows survives being combined


def staged(attack: Any, ball: Ball = BALL) -> Evaluation:
    ensemble = mlp_ensemble(3, [0.2, 0.5, 0.3], seed=4, dtype=torch.float32)
    x = points(40, 6, seed=4, dtype=torch.float32)
    return evaluate(ensemble, attack, (x, labels_of(ensemble, x)), ball, progress=False, batch_size=16)


def test_restarts_of_a_staged_attack_keep_its_stages_and_its_floor() -> None:
    tight = Tight("quick", steps=2)
    once, twice = staged(tight), staged(Restarts(tight, 2))
    again = staged(replace(tight, seed=1))
    assert list(twice.stages) == list(once.stages)
    assert all(np.array_equal(twice.stages[name], once.stages[name]) for name in once.stages)
    assert np.array_equal(twice.robust_scores, np.minimum(once.robust_scores, again.robust_scores))
    assert np.array_equal(twice.alone & once.alone, twice.alone), "each run may fool a member that others did not"
    assert twice.floor_scores is not None and bool((twice.floor_scores <= twice.robust_scores + 1e-12).all())
    assert Verdict.of(twice).floor == twice.floor and twice.preset == once.preset == "quick"


@dataclass(frozen=True)
class Witness(Attack):
    """Keeps x, and shows where AutoPGD fools one member."""

    member: int = 0

    def perturb(self, problem: Problem) -> Tensor:
        return problem.x.clone()

    def outcome(self, problem: Problem) -> Outcome:
        witnesses = torch.stack([problem.x] * len(problem.ensemble))
        witnesses[self.member] = AutoPGD(self.member, steps=10).run_on(problem)
        return Outcome([(1.0, problem.x.clone())], witnesses=witnesses)


def test_witnesses_come_from_whichever_attack_found_one() -> None:
    ball = Ball("l2", 0.1)
    alone = [staged(Witness(i), ball).alone for i in range(2)]
    both = staged(WorstOf([Witness(0), ARC(steps=1), Witness(1)]), ball)
    plain = staged(ARC(steps=1), ball)
    for i in range(2):
        assert 0 < alone[i][i].sum() < 40
        assert np.array_equal(both.alone[i], alone[i][i] & (plain.records.adversarial[0, i] == plain.records.labels))
    assert (both.robust_scores <= np.minimum(plain.robust_scores, plain.clean_scores)).all()


def test_stages_cover_every_sample_wherever_the_staged_attack_stands() -> None:
    tight = Tight("quick", steps=2)
    alone, after = staged(tight), staged(WorstOf([AutoPGD(steps=20), tight]))
    assert all(np.array_equal(after.stages[name], alone.stages[name]) for name in ("clean", "adaptive_pgd", "arc"))
    assert bool((after.robust_scores <= alone.robust_scores).all()) and after.floor_scores is not None


def test_a_function_is_an_attack_too() -> None:
    def towards_zero(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        (x * torch.ones(1, requires_grad=True)).sum().backward()
        return ball.move(x, ball.project(-x, x))

    alone, arc = staged(towards_zero), staged(ARC(steps=2))
    assert np.array_equal(
        staged(WorstOf([towards_zero, ARC(steps=2)])).robust_scores,
        np.minimum(np.minimum(alone.robust_scores, arc.robust_scores), arc.clean_scores),
    )
    assert staged(WorstOf([towards_zero, Tight("quick", steps=2)])).floor_scores is not None
    ensemble, x, y = problem(4)
    with pytest.raises(AttackViolation, match=r"cut returned \(4, 5\) for inputs \(4, 6\); expected the same shape"):

        def cut(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
            return x[:, 1:]

        WorstOf([cut, ARC()])(ensemble, x, y, BALL)
