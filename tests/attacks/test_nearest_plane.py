"""The search for the nearest plane, and what it may leave out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from recarc.attacks.arc import LONGEST
from recarc.attacks.nearest_plane import Linearised, Plane, by_autograd, nearest_plane
from recarc.geometry import Norm
from tiny import linear, mlp, points

CLASSES = 24


def of(member: nn.Module, x: Tensor, p: float, longest: float = LONGEST) -> Plane:
    return nearest_plane(member, x, Norm(p), label=None, planes=CLASSES - 1, longest=longest)


class Counting(nn.Module):
    """Counts the images through a member; `at_once`: says that all gradients cost as much as one."""

    def __init__(self, member: nn.Module, at_once: bool = False) -> None:
        super().__init__()
        self.member, self.at_once, self.forwards, self.backwards = member, at_once, 0, 0

    def linearised(self, x: Tensor, count: int) -> Linearised:
        self.forwards += len(x)
        logits, pull_back, _ = by_autograd(self.member, x)

        def counted(weights: Tensor, again: bool) -> Tensor:
            self.backwards += weights.shape[0] * weights.shape[1]
            return pull_back(weights, again)

        return Linearised(logits, counted, self.at_once)


@pytest.mark.parametrize("p", [1, 2, 3, math.inf])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_out_has_a_much_longer_normal(p: float, seed: int) -> None:
    """On linear members that always answer 0, with normals of very different lengths, so that both things happen."""
    torch.manual_seed(seed)
    weight = torch.randn(CLASSES, 6, dtype=torch.float64) * torch.rand(CLASSES, 1, dtype=torch.float64).mul(3).exp()
    weight[0], norm, x = 0, Norm(p), points(200, 6, seed=seed)
    bias = -(x @ weight.T).amax(0) - torch.rand(CLASSES, dtype=torch.float64).mul(10)
    bias[0] = 0
    member = linear(weight, bias)
    with torch.no_grad():
        found, literal, h = of(member, x, p), of(member, x, p, math.inf), -member(x)[:, 1:]
    length = norm.dual(weight[1:])
    torch.testing.assert_close(literal.zeta, (h / length).amin(1))
    left_out = found.zeta > literal.zeta
    assert 0 < int(left_out.sum()) < len(x) / 2
    first_two = length[h.argsort(1)[:, :2]].amax(1)
    assert bool((length[(h / length).argmin(1)] > LONGEST * first_two)[left_out].all())


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("seed", range(3))
def test_the_batch_and_how_gradients_are_found_do_not_matter(p: float, seed: int) -> None:
    member, x = mlp(seed, classes=CLASSES), points(60, 6, seed=seed)
    found, at_once = of(member, x, p), of(Counting(member, at_once=True), x, p)
    assert all(torch.equal(a, b) for a, b in zip(found, at_once))
    alone = torch.cat([of(member, one, p).zeta for one in x.split(1)])
    torch.testing.assert_close(found.zeta, alone, rtol=0, atol=1e-12)


def test_a_class_that_is_ruled_out_does_not_make_answers_depend_on_the_batch() -> None:
    """With a logit of -inf a member's own class is its own last rival, so that rivals are not in ascending order."""

    class RuledOut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(1, classes=13)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) + torch.tensor([0.0] * 12 + [-math.inf], dtype=x.dtype)

    member, x = RuledOut(), points(80, 6, seed=1)
    together, at_once, alone = (
        [nearest_plane(m, part, Norm(2), label=None, planes=12, longest=LONGEST).zeta for part in parts]
        for m, parts in ((member, [x]), (Counting(member, at_once=True), [x]), (member, x.split(1)))
    )
    torch.testing.assert_close(together[0], torch.cat(alone), rtol=0, atol=1e-12)
    assert torch.equal(together[0], at_once[0])


def test_few_of_many_planes_need_a_gradient() -> None:
    torch.manual_seed(0)
    member = Counting(linear(torch.randn(CLASSES, 6, dtype=torch.float64), torch.zeros(CLASSES, dtype=torch.float64)))
    x = points(200, 6)
    found, few = of(member, x, math.inf), (member.forwards, member.backwards)
    torch.testing.assert_close(found, of(member, x, math.inf, longest=math.inf))
    assert few[0] < 2.5 * len(x)
    assert few[1] < (member.backwards - few[1]) / 2


def test_members_without_a_gradient_have_no_plane() -> None:
    flat = linear(torch.zeros(CLASSES, 6, dtype=torch.float64), torch.arange(CLASSES, dtype=torch.float64))
    plane = of(Counting(flat), points(4, 6), 2)
    assert plane.zeta.isinf().all()
    assert not plane.w.any()
