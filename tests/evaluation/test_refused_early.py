"""What can be refused is refused before the run folder exists, so that the corrected call works in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import QUICK, problem
from torch import Tensor, nn

from recarc import (
    ARC,
    PGD,
    AutoPGD,
    Ball,
    CarliniWagner,
    Climb,
    InputError,
    RandomAttacker,
    RandomizedEnsemble,
    WorstOf,
    evaluate,
)
from tiny import labels_of, mlp_ensemble, points

ENSEMBLE = mlp_ensemble(2, dtype=torch.float32)
X = points(40, 6, dtype=torch.float32)
Y = labels_of(ENSEMBLE, X)
BALL = Ball("linf", 0.05)


@pytest.mark.parametrize(
    ("attack", "ball", "says"),
    [
        (ARC(planes=9), BALL, "planes is 9; with 5 classes"),
        (Climb(start=ARC(planes=9)), BALL, "planes is 9"),
        (WorstOf([PGD(), PGD(member=7)]), BALL, "member 7 does not exist"),
        (AutoPGD(member=7), BALL, "member 7 does not exist"),
        (RandomAttacker(CarliniWagner(member=0)), Ball("linf", 0.05, box=None), "inside a pixel box"),
    ],
)
def test_knobs_that_do_not_fit(tmp_path: Path, attack: Any, ball: Ball, says: str) -> None:
    with pytest.raises(InputError, match=says):
        evaluate(ENSEMBLE, attack, (X, Y), ball, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    evaluate(ENSEMBLE, ARC(steps=1, planes=4), (X, Y), BALL, out=tmp_path / "run", progress=False)


def test_a_bad_sample_far_behind(tmp_path: Path) -> None:
    for value, says in (
        (float("nan"), "NaN or infinity in 1 samples, the first is sample 39"),
        (1.5, "outside the box"),
    ):
        x = X.clone()
        x[39, 0] = value
        with pytest.raises(InputError, match=says):
            evaluate(ENSEMBLE, ARC(steps=1), (x, Y), BALL, out=tmp_path / "run", shard_size=10, progress=False)
        assert not (tmp_path / "run").exists()


class Scaled(nn.Module):
    """A member whose behaviour hangs on a plain attribute."""

    def __init__(self, inner: nn.Module, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.scale * x)


def test_a_member_with_another_attribute_is_another_member(tmp_path: Path) -> None:
    inner = ENSEMBLE.members[0]
    assert isinstance(inner, nn.Module)
    evaluate(Scaled(inner, 1.0), ARC(steps=1), (X, Y), BALL, out=tmp_path / "run", progress=False)
    with pytest.raises(InputError, match="belongs to another configuration"):
        evaluate(Scaled(inner, 0.5), ARC(steps=1), (X, Y), BALL, out=tmp_path / "run", progress=False)


def test_members_of_different_precision_are_evaluated_each_in_its_own() -> None:
    one, other = mlp_ensemble(2, dtype=torch.float32).members
    assert isinstance(other, nn.Module)
    mixed = RandomizedEnsemble([one, other.double()])
    result = evaluate(mixed, ARC(steps=1), (X, Y), BALL, progress=False)
    assert result.clean_accuracy == evaluate(ENSEMBLE, ARC(steps=1), (X, Y), BALL, progress=False).clean_accuracy


class LinfPGD:
    """As a peer's attack is called."""

    def __call__(self, model: nn.Module, inputs: Tensor, criterion: Tensor, *, epsilons: float) -> None: ...


class Foreign:
    __module__ = "torchattacks.attacks.pgd"

    def __call__(self, inputs: Tensor, labels: Tensor, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (ARC, r"the class ARC; expected an attack: write ARC\(\)"),
        ("arc", "'arc'; names are for the command line"),
        (None, "a NoneType; expected one of recarc.attacks"),
        (LinfPGD(), "a LinfPGD; expected one of recarc.attacks, or a callable of"),
        (Foreign(), r"of torchattacks; pass it through recarc.adapters.torchattacks.stage"),
    ],
)
def test_what_is_no_attack(attack: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        evaluate(ENSEMBLE, attack, (X, Y), BALL, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)).eval()


def normalised(x: Tensor) -> Tensor:
    return (x - 0.45) / 0.22


@pytest.mark.parametrize(
    ("change", "ball", "says"),
    [
        (lambda x: x.permute(0, 2, 3, 1), BALL, r"x looks like HWC images: pass x.permute\(0, 3, 1, 2\)$"),
        (lambda x: x[:, :2], BALL, r"cannot take inputs of shape \(8, 2, 9, 9\): .*channels"),
        (normalised, BALL, r"x looks normalised, with values in \[-2.\d+, 2.\d+\]: .* normalise inside the model"),
        (lambda x: 255 * x, BALL, r"x looks 8-bit, with values in \[\S+, 25\d.*: divide 8-bit images by 255"),
        (lambda x: 1.2 * x, BALL, r"outside the box \[0.0, 1.0\]"),
        (lambda x: x, Ball("linf", 8), r"eps 8 in linf is larger than the box \[0, 1\]: did you mean 8/255\?"),
    ],
)
def test_images_and_radii_of_another_kind(tmp_path: Path, change: Any, ball: Ball, says: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(8, 3, 9, 9, generator=generator), torch.arange(8) % 5
    for data in ((change(x), y), torch.utils.data.TensorDataset(change(x), y)):
        with pytest.raises(InputError, match=says):
            evaluate(small_net(), QUICK, data, ball, out=tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()


def test_members_that_give_no_logits_or_write_into_their_input() -> None:
    ensemble, (x, y) = problem(8)
    net, before = ensemble.members[0], x.clone()
    odd = RandomizedEnsemble([net, lambda z: (net(z), z)])
    with pytest.raises(InputError, match=r"member 1 returns a tuple, not logits; wrap it"):
        evaluate(odd, QUICK, (x, y), BALL, progress=False)
    with pytest.raises(InputError, match="member 0 changes its input in place"):
        evaluate(RandomizedEnsemble([lambda z: net(z.mul_(0.5))]), QUICK, (x, y), BALL, progress=False)
    assert torch.equal(x, before)
