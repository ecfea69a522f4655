"""Climb against the exact solvers: maximal on linear ensembles, never below the optimum, and its composition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bank import bank
from recarc import ARC, Ball, Climb, InputError, RandomizedEnsemble, Restarts, Tight
from recarc.attacks.climb import Search
from recarc.attacks.problem import Best, Problem
from recarc.exact import optimum
from tiny import binary, labels_of, mlp_ensemble, points

BARELY = 0.02  # what is foolable by less than this share of eps may be missed by a descent of finite steps


@pytest.mark.parametrize("p", ["linf", "l2", "l1"])
def test_maximal_on_linear_ensembles(p: str) -> None:
    """When it stops, no single further member can be added to the fooled set."""
    # Steepest l1 steps move one coordinate at a time, so they need more of them.
    b = bank(30, members=4, dim=10, p=p, seed=1)
    x_adv = Climb(steps=80 if p == "l1" else 40, orders=1)(b.ensemble, b.x, b.y, b.ball)
    missed = b.missed(x_adv, BARELY)
    assert missed, "every member was fooled: the test says nothing"
    assert sum(missed) <= (1 if p == "l1" else 0)


def test_close_to_the_optimum_and_never_below_it() -> None:
    b = bank(40)
    v = b.ensemble.expected_accuracy(Climb(orders=4)(b.ensemble, b.x, b.y, b.ball), b.y)
    best = torch.cat([optimum(*b.single(k), b.ball).accuracy for k in range(40)])
    assert bool((v >= best - 1e-12).all())
    assert float((v - best).mean()) <= 0.01
    arc = b.ensemble.expected_accuracy(ARC()(b.ensemble, b.x, b.y, b.ball), b.y)
    assert float((arc - best).mean()) > 0.15


def test_never_worse_than_its_start_and_refines_it() -> None:
    ensemble = mlp_ensemble(4, [0.4, 0.3, 0.2, 0.1])
    x = points(80, 6)
    y = labels_of(ensemble, x)
    ball = Ball("linf", 0.1)
    start = ARC(variant="corrected")
    before = ensemble.expected_accuracy(start(ensemble, x, y, ball), y)
    after = ensemble.expected_accuracy(Climb(start=start)(ensemble, x, y, ball), y)
    assert bool((after <= before).all())
    assert float(after.mean()) < float(before.mean())


@pytest.mark.parametrize("p", [1, 1.5, 2, "linf"])
def test_inside_ball_and_box_for_any_p_and_many_members(p: float | str) -> None:
    ensemble = mlp_ensemble(9)
    x = points(12, 6)
    y = labels_of(ensemble, x)
    ball = Ball(p, 0.2)
    x_adv = Climb(steps=5, orders=1)(ensemble, x, y, ball)
    assert float(ball.violation(x, x_adv).max()) < 1e-7
    assert bool((ensemble.expected_accuracy(x_adv, y) <= ensemble.expected_accuracy(x, y)).all())


def test_not_stuck_with_the_heaviest_member() -> None:
    """Greedy takes the heaviest member, which excludes the two lighter ones that weigh more together."""
    w = torch.tensor([[1.0, 0.0], [-1.0, 0.2], [-1.0, -0.2]], dtype=torch.float64)
    ensemble = RandomizedEnsemble([binary(row, 0.5) for row in w], [0.4, 0.3, 0.3])
    x, y, ball = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.long), Ball("linf", 1.0, box=None)
    assert optimum(ensemble, x, y, ball).accuracy.item() == pytest.approx(0.4)
    v = ensemble.expected_accuracy(Climb(orders=4)(ensemble, x, y, ball), y)
    assert v.item() == pytest.approx(0.4)


def test_swap_drops_a_light_member_for_a_heavier_one() -> None:
    """Two opposite members, the light one fooled: no perturbation adds the heavy one, but it can take the place."""
    ensemble = RandomizedEnsemble([binary([1.0, 0.0], 0.5), binary([-1.0, 0.0], 0.5)], [0.6, 0.4])
    x, y, ball = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, dtype=torch.long), Ball("linf", 1.0, box=None)
    problem = Problem(ensemble, x, y, ball)
    best = Best.clean(problem)
    best.consider(problem, torch.tensor([[0.7, 0.0]], dtype=torch.float64), torch.tensor([0]))
    assert best.v.item() == 0.6
    Search(problem, best, steps=20, kappa=0.02).swap(hopeless=torch.zeros(2, 1, dtype=torch.bool))
    assert best.v.item() == ensemble.expected_accuracy(best.x_adv, y).item() == 0.4


def test_seeds_restart_it_and_the_batch_does_not_matter() -> None:
    ensemble = mlp_ensemble(3)
    x = points(10, 6)
    y = labels_of(ensemble, x)
    ball = Ball("l2", 0.3)
    attack = Restarts(Climb(steps=5), 2)
    together = attack(ensemble, x, y, ball)
    apart = torch.cat([attack(ensemble, x[i : i + 1], y[i : i + 1], ball) for i in range(10)])
    assert torch.equal(ensemble.correct(together, y), ensemble.correct(apart, y))
    assert torch.allclose(together, apart, atol=1e-9)


def after_the_climb(eps: float = 0.12) -> tuple[Problem, Best, torch.Tensor]:
    """Where a short climb ended on what it left above 0, with random members of three classes."""
    ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2])
    x = points(80, 6)
    problem = Problem(ensemble, x, labels_of(ensemble, x), Ball("linf", eps))
    best = Best.clean(problem)
    Climb(steps=2, orders=1).improve(problem, best, torch.zeros_like(best.wrong))
    index = (best.v > 0).nonzero()[:, 0]
    return problem.take(index), best.take(index), torch.zeros_like(best.wrong[:, index])


@pytest.mark.parametrize("small", [2**12, 0], ids=["four classes at a time", "large images"])
def test_rounds_find_more_and_leave_where_they_started_alone(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.attacks.climb.SMALL", small)
    with torch.no_grad():
        problem, best, nobody = after_the_climb()
        before = best.v.clone()
        rounds = Climb(rounds=3, round_steps=20, targets=3).search_in_rounds(problem, best, nobody)
    assert torch.equal(best.v, before) and len(rounds) == 3
    for found in rounds:
        assert bool((found.v <= before).all()) and float(found.v.mean()) < float(before.mean())
        assert torch.equal(found.v, problem.expected_accuracy(found.x_adv))
        assert float(problem.ball.violation(problem.x, found.x_adv).max()) < 1e-7
    assert not torch.equal(rounds[0].x_adv, rounds[1].x_adv), "they draw other random numbers"


def test_a_round_does_not_depend_on_the_other_rounds_nor_on_the_batch() -> None:
    climb = Climb(round_steps=10, targets=2)
    with torch.no_grad():
        problem, best, nobody = after_the_climb()
        three = replace(climb, rounds=3).search_in_rounds(problem, best, nobody)
        one = replace(climb, rounds=1).search_in_rounds(problem, best, nobody)
        some = torch.arange(0, len(problem), 3)
        part = replace(climb, rounds=3).search_in_rounds(problem.take(some), best.take(some), nobody[:, some])
    assert torch.allclose(three[0].x_adv, one[0].x_adv, atol=1e-9)
    for whole, own in zip(three, part):
        assert torch.allclose(whole.x_adv[some], own.x_adv, atol=1e-9)
        assert torch.equal(whole.wrong[:, some], own.wrong)


def test_members_that_are_hopeless_are_no_goal() -> None:
    """Of sets in a given order, as many members as beat the best point; none where those left are too light."""
    ensemble = mlp_ensemble(3, [0.5, 0.3, 0.2])
    problem = Problem(ensemble, points(3, 6), torch.zeros(3, dtype=torch.long), Ball("linf", 0.1))
    best = Best.clean(problem)
    best.v = torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64)
    hopeless = torch.tensor([[False, False, True], [False, False, False], [True, False, False]])
    order = torch.tensor([[2, 1, 1], [1, 2, 2], [0, 0, 0]])
    goal = Search(problem, best, 20, 0.02).needed(hopeless, order)
    assert goal.T.tolist() == [[False, True, False], [True, True, True], [False, False, False]]


def test_a_descent_towards_one_class_follows_the_margin_over_that_class() -> None:
    ensemble = mlp_ensemble(1)
    x = points(20, 6)
    y = labels_of(ensemble, x)
    problem = Problem(ensemble, x, y, Ball("l2", 0.1))
    rivals = problem.rivals(9)
    assert rivals.shape == (20, 4), "five classes have four rivals"
    assert torch.equal(rivals.sort(1).values, torch.tensor([[c for c in range(5) if c != k] for k in y.tolist()]))
    search = Search(problem, Best.clean(problem), steps=1, kappa=0.02)
    goal = torch.ones(1, 20, dtype=torch.bool)
    for rival in rivals.T:
        push, _ = search._push(problem, x, goal, [True], rival)
        leaf = x.clone().requires_grad_()
        logits = ensemble.members[0](leaf)
        rows = torch.arange(20)
        (gradient,) = torch.autograd.grad((logits[rows, y] - logits[rows, rival]).sum(), leaf)
        torch.testing.assert_close(push, gradient / gradient.norm(dim=1, keepdim=True))
    nearest, _ = search._push(problem, x, goal, [True], None)
    torch.testing.assert_close(nearest, search._push(problem, x, goal, [True], rivals[:, 0])[0])


def test_bad_knobs() -> None:
    with pytest.raises(InputError, match="kappa"):
        Climb(kappa=-1)
    with pytest.raises(InputError, match="orders is 0; it must be a whole number of at least 1"):
        Climb(orders=0)
    with pytest.raises(InputError, match="rounds is -1; it must be at least 0"):
        Climb(rounds=-1)
    with pytest.raises(InputError, match=r"steps is 1.5; it must be a whole number of at least 1"):
        Climb(steps=1.5)  # type: ignore[arg-type]


# Votes


class Planes(nn.Module):
    """Logits (0, x_1 - a, x_2 - b)."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.least = nn.Parameter(torch.tensor([a, b], dtype=torch.float64))
        self.combines = (self,)  # a user's own attribute: this is no vote

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.zeros_like(x[:, :1]), x - self.least], 1)


def three_voters() -> Problem:
    """One is fooled first to class 1, one to class 2, and one never; class 1 in common takes a longer way."""
    ensemble = RandomizedEnsemble([Planes(0.55, 0.65), Planes(0.65, 0.55), Planes(9.0, 9.0)]).voted()
    x = torch.full((1, 2), 0.5, dtype=torch.float64)
    return Problem(ensemble, x, torch.zeros(1, dtype=torch.long), Ball("linf", 0.2))


def test_the_members_of_a_vote_are_led_to_a_common_class() -> None:
    problem = three_voters()
    voters = problem.apart(0)
    assert voters is not None and len(voters.ensemble) == 3
    best = Best.clean(voters)
    best.ever_wrong[:2] = True  # alone
    points_of_climb, *rounds = Climb(rounds=2).against_vote(voters, best)
    assert voters.ensemble.predictions(points_of_climb)[:, 0].tolist() == [1, 2, 0]
    assert problem.ensemble.predictions(points_of_climb).tolist() == [[0]], "two fooled members, and nothing lost"
    assert len(rounds) == 2 and all(problem.ensemble.predictions(x)[0, 0] != 0 for x in rounds)


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_a_vote_is_lost_by_way_of_its_members(preset: str) -> None:
    problem = three_voters()
    x_adv = Tight(preset, steps=1, challenge=0.0).run_on(problem)
    assert problem.ensemble.predictions(x_adv)[0, 0] != 0


class Broken(Planes):
    """Not a number from its plane on."""

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return torch.where(logits[:, 1:2] > 0, torch.nan, logits)


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_a_vote_is_lost_where_one_of_its_members_has_no_answer(preset: str) -> None:
    members = [Broken(0.65, 9.0), Planes(9.0, 9.0), Planes(9.0, 9.0)]
    problem = replace(three_voters(), ensemble=RandomizedEnsemble(members).voted())
    x_adv = Tight(preset, steps=1, challenge=0.0).run_on(problem)
    assert problem.ensemble.predictions(x_adv)[0, 0] == -1


class Counted(Planes):
    """Counts the points that it is asked about."""

    asked = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return super().__call__(x)


def test_a_vote_that_too_few_members_can_lose_is_left_alone() -> None:
    """Two of three withstand: the third is not attacked, nor is the vote without gradients, unless these mislead."""
    members = [Counted(9.0, 9.0), Counted(9.0, 9.0), Counted(0.55, 0.65)]
    problem = replace(three_voters(), ensemble=RandomizedEnsemble(members).voted())
    tight, asked = Tight("quick", steps=1, challenge=0.0), {}
    for name, masked in {"usual": None, "masked": ((0, "gradients_disagree"),)}.items():
        for member in members:
            member.asked = 0
        outcome = replace(tight, masked=masked).outcome(problem)
        assert problem.ensemble.predictions(outcome.mixture[0][1])[0, 0] == 0
        asked[name] = [member.asked for member in members]
    assert asked["usual"][0] == asked["usual"][1] > asked["usual"][2]
    assert asked["masked"][0] > 5 * asked["usual"][0]


def test_only_votes_are_attacked_through_their_members() -> None:
    problem = three_voters()
    (vote,) = problem.ensemble.members
    others = RandomizedEnsemble(vote.combines)  # type: ignore[union-attr]
    for ensemble, stage in ((problem.ensemble, True), (others.averaged(), False), (others, False)):
        other = Problem(ensemble, problem.x, problem.y, problem.ball)
        assert any(s.name == "members_apart" for s in Tight().outcome(other).stages) is stage
