"""On a CPU members with batch norms are searched folded, in tiles of several sizes; the judge keeps the originals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import records_of
from torch import Tensor, nn

from recarc import ARC, Ball, RandomizedEnsemble, Square, Tight, WorstOf, evaluate
from recarc.evaluation.prepare import Settings, prepare
from recarc.evaluation.samples import TensorSamples
from recarc.evaluation.tiling import any_accelerated, largest_tile
from recarc.fast import accelerate
from tiny import cnn, labels_of, points

BALL = Ball("linf", 0.1)


def normed(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A small network with batch norms that have something to fold."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5))
    net = nn.Sequential(*layers)
    with torch.no_grad():
        net.train()(torch.randn(64, 2, 4, 4) * 2 + 1)
    return net.eval().to(dtype)


class Fickle(nn.Module):
    """Answers differently once its batch norm is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.net = normed(0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out if isinstance(self.net.get_submodule("1"), nn.BatchNorm2d) else -out


class Locked(nn.Module):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.lock = normed(0), threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Special(nn.Module):
    """Goes on, after convolution, batch norm and ReLU, in a way of its own."""

    def __init__(self, way: Callable[[Special, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.way, self.mean = normed(0), way, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.net[:3]:
            x = layer(x)
        out: Tensor = self.net[4](self.way(self, x))
        return out


def averaging(member: Special, x: Tensor) -> Tensor:
    member.mean = 0.9 * member.mean + 0.1 * x.detach().mean()
    return x.flatten(1)


SPECIAL: dict[str, Callable[[Special, Tensor], Tensor]] = {
    "view": lambda member, x: x.view(x.size(0), -1),
    "detach": lambda member, x: x.detach().flatten(1),
    "reads its batch norm": lambda member, x: x.flatten(1) + member.net[1].running_mean.sum(),
}


def changed(change: Callable[[nn.Module], Any]) -> nn.Module:
    """With something that acts on the weights or outputs of its convolution."""
    net = normed(0)
    change(net.get_submodule("0"))
    return net.eval()


ODD = {
    "locked": Locked,
    "spectral norm": lambda: changed(nn.utils.parametrizations.spectral_norm),
    "weight norm": lambda: changed(nn.utils.parametrizations.weight_norm),
    "bias": lambda: changed(lambda conv: nn.utils.parametrize.register_parametrization(conv, "bias", nn.Identity())),
    "hook": lambda: changed(lambda conv: conv.register_forward_hook(lambda module, given, out: 2 * out)),
}


def searched(member: nn.Module, x: Tensor, **settings: Any) -> RandomizedEnsemble:
    ensemble = RandomizedEnsemble([member])
    samples = TensorSamples(x, torch.zeros(len(x), dtype=torch.long))
    return prepare(ensemble, ARC(), samples, BALL, Settings(**settings), {}).attacker.ensemble


def test_members_are_folded_where_that_changes_nothing_but_rounding() -> None:
    x = points(20, 2, 4, 4, dtype=torch.float32)
    assert any_accelerated(searched(normed(0), x))
    assert largest_tile(searched(normed(0), x), x) == 64
    assert largest_tile(searched(normed(0), x, tile=16), x) == 16
    assert not any_accelerated(searched(cnn(0, dtype=torch.float32), x))
    assert not any_accelerated(searched(Fickle(), x))
    assert not any_accelerated(searched(normed(0), x, precision="float64"))
    assert not any_accelerated(searched(normed(0, torch.float64), x))


@pytest.mark.parametrize("kind", ODD)
def test_members_that_cannot_be_folded_are_searched_as_they_are(kind: str) -> None:
    member, x = ODD[kind](), points(30, 2, 4, 4, dtype=torch.float32)
    y = labels_of(RandomizedEnsemble([member]), x)
    assert not any_accelerated(searched(member, x))
    evaluate(member, ARC(steps=2), (x, y), BALL, progress=False)
    torch.testing.assert_close(accelerate(member).members[0](x), member(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", SPECIAL)
def test_members_that_object_to_being_folded_are_searched_as_they_are(kind: str) -> None:
    member, x = Special(SPECIAL[kind]), points(30, 2, 4, 4, dtype=torch.float32)
    y = labels_of(RandomizedEnsemble([member]), x)
    assert not any_accelerated(searched(member, x))
    assert evaluate(member, Square(queries=3), (x, y), BALL, progress=False).complete


def test_a_member_that_keeps_something_keeps_no_symbols() -> None:
    member, x = Special(averaging), points(30, 2, 4, 4, dtype=torch.float32)
    y = labels_of(RandomizedEnsemble([member]), x)
    evaluate(member, ARC(steps=2), (x, y), BALL, progress=False)
    assert isinstance(member.mean, Tensor)


def test_attacks_of_others_are_given_the_members_themselves() -> None:
    """They may want second derivatives, which an accelerated member does not have."""

    def twice(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        u = x.clone().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(ensemble.members[0](u).square().sum(), u, create_graph=True)
            (g,) = torch.autograd.grad(g.square().sum(), u)
        return ball.project(ball.radius(x)[0] * g.sign(), x) + x

    member, x = normed(0), points(20, 2, 4, 4, dtype=torch.float32)
    y = labels_of(RandomizedEnsemble([member]), x)
    for attack in (twice, Tight("quick", steps=1, extra=[twice]), WorstOf([ARC(steps=1), twice])):
        assert evaluate(member, attack, (x, y), BALL, progress=False).complete


def test_a_resumed_run_keeps_the_tile_of_its_search() -> None:
    x = points(20, 2, 4, 4, dtype=torch.float32)
    samples, saved = TensorSamples(x, torch.zeros(20, dtype=torch.long)), {"tile": 1, "precision": "float32"}
    again = prepare(RandomizedEnsemble([normed(0)]), ARC(), samples, BALL, Settings(), saved)
    assert largest_tile(again.attacker.ensemble, x) == 1


@pytest.mark.parametrize("attack", [ARC(steps=4), Tight("quick", steps=3)], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.1), ("l2", 0.3)])
def test_records_of_a_folded_search_do_not_depend_on_the_batch_size(
    attack: Any, norm: str, eps: float, tmp_path: Path
) -> None:
    ensemble = RandomizedEnsemble([normed(i) for i in range(2)], [0.6, 0.4])
    x = points(90, 2, 4, 4, dtype=torch.float32)
    y, found = labels_of(ensemble, x), []
    for batch in ("auto", 7, 33):
        run = tmp_path / str(batch)
        evaluate(ensemble, attack, (x, y), Ball(norm, eps), out=run, batch_size=batch, save_inputs=True, progress=False)
        found.append((records_of(run), [file.read_bytes() for file in sorted(run.glob("*.safetensors"))]))
    assert found[0] == found[1] == found[2]


def test_what_a_folded_search_finds_is_judged_by_the_members_themselves(tmp_path: Path) -> None:
    member = normed(0)
    x = points(60, 2, 4, 4, dtype=torch.float32)
    y = labels_of(RandomizedEnsemble([member]), x)
    result = evaluate(member, ARC(), (x, y), BALL, progress=False)
    plain = evaluate(lambda u: member(u), ARC(), (x, y), BALL, progress=False)  # what cannot be folded
    assert 0 < result.robust_accuracy < 1
    assert result.robust_accuracy == pytest.approx(plain.robust_accuracy, abs=1 / 60)
