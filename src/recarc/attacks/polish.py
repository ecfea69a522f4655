"""Points at which coarse arithmetic saw a member fooled and float32 does not, pushed a little further in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from recarc.attacks.climb import Search
from recarc.attacks.problem import Best, Problem
from recarc.ensemble import RandomizedEnsemble, frozen

STEPS = 10
FIRST_STEP, DEPTH = 0.05, 0.02  # in units of eps: small, for this is no search


def polish(problem: Problem, searched: RandomizedEnsemble, x_adv: Tensor, wrong: Tensor) -> Tensor:
    """x_adv, moved where `searched` has more members wrong than the problem's own, if that fools those after all.

    `wrong` (M, B): which of the problem's own members are fooled at x_adv.
    """
    ensemble = problem.ensemble
    best = Best(x_adv.clone(), wrong.clone(), ensemble.score(~wrong), wrong.clone())
    with frozen(ensemble), torch.no_grad():
        believed = ~searched.correct(x_adv, problem.y)
        index = (ensemble.score(~believed) < best.v).nonzero()[:, 0]
        if len(index):
            search = Search(problem, best, STEPS, DEPTH, FIRST_STEP)
            search.chase(index, believed[:, index], search.delta()[index])
    return best.x_adv
