"""What a search in coarse arithmetic took for fooled and float32 does not: pushed a little further, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from recarc.attacks.climb import Found, Problem, chase
from recarc.ensemble import RandomizedEnsemble, frozen
from recarc.geometry import Ball

STEPS = 10
FIRST_STEP, DEPTH = 0.05, 0.02  # in units of eps: small, for this is no search


def settled(
    members: RandomizedEnsemble, searched: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, x_adv: Tensor
) -> Tensor:
    """x_adv, moved where `members` are right although `searched` had them wrong, if that fools them after all."""
    with frozen(members), torch.no_grad():
        wrong = ~members.correct(x_adv, y)
        found = Found(x_adv.clone(), wrong, members.score(~wrong), wrong.clone())
        believed = ~searched.correct(x_adv, y)
        index = (members.score(~believed) < found.v).nonzero()[:, 0]
        if len(index):
            problem = Problem(members, x, y, ball, STEPS, DEPTH, FIRST_STEP)
            chase(problem, found, index, believed[:, index], problem.delta(found)[index])
    return found.x_adv
