"""ARC holds at most one graph at a time, and no forward builds a graph without need."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from recarc import ARC, PGD, AdaptivePGD, Attack, Ball, LinearARC, RandomizedEnsemble, WorstOf
from tiny import Recorder, labels_of, mlp, mlp_ensemble, points


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of every tensor storage from the operation that makes it until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if storage not in self.known:
                    self.known.add(storage)
                    self.live += storage.nbytes()
                    weakref.finalize(storage, self._freed, storage.nbytes())
        self.peak = max(self.peak, self.live)
        return out

    def _freed(self, size: int) -> None:
        self.live -= size


def deep_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def peak_of_one_gradient(net: nn.Module, x: Tensor) -> int:
    """One forward and backward at this batch size, to the input alone: the least any gradient attack needs."""
    for p in net.parameters():
        p.requires_grad_(False)
    with LiveBytes() as memory:
        inputs = x.clone().requires_grad_()
        net(inputs).sum().backward()
    for p in net.parameters():
        p.requires_grad_(True)
    return memory.peak


def test_the_meter_measures() -> None:
    with LiveBytes() as memory:
        a = torch.zeros(1000)
        b = a.view(10, 100)  # no new storage
        del a
        assert memory.live == 4000
        del b
        assert memory.live == 0
        (torch.zeros(500) + 1).sum()
    assert memory.peak == 4000


@pytest.mark.parametrize("variant", ["paper", "corrected"])
@pytest.mark.parametrize("p", ["l1", "l2", "linf"])
def test_peak_memory_of_arc(p: str, variant: str, record_property: Callable[[str, object], None]) -> None:
    """At most 1.5 times one forward and backward at the same batch size, with three members and nine planes."""
    nets = [deep_net(i) for i in range(3)]
    ensemble, x = RandomizedEnsemble(nets), points(8, 3, 16, 16, dtype=torch.float32)
    y = labels_of(ensemble, x)
    one = peak_of_one_gradient(nets[0], x)
    with LiveBytes() as memory:
        ARC(steps=2, variant=variant)(ensemble, x, y, Ball(p, 0.1))
    record_property("peak memory of ARC, in forward-and-backwards", [memory.peak / one])
    assert memory.peak <= 1.5 * one
    assert memory.live < 0.1 * one


@pytest.mark.parametrize("attack", [PGD(steps=3), AdaptivePGD(steps=3), ARC(steps=3), LinearARC()], ids=repr)
def test_graphs_are_built_only_for_gradients(attack: Attack) -> None:
    """Tensors are saved for a backward only inside calls whose input asks for a gradient."""
    saved_without_need: list[torch.Size] = []
    inside = {"gradient": False}

    class Watched(Recorder):
        def forward(self, x: Tensor) -> Tensor:
            inside["gradient"] = x.requires_grad and torch.is_grad_enabled()
            with torch.autograd.graph.saved_tensors_hooks(self.pack, lambda t: t):
                return super().forward(x)

        def pack(self, t: Tensor) -> Tensor:
            if not inside["gradient"]:
                saved_without_need.append(t.shape)
            return t

    watched = [Watched(mlp(i)) for i in range(2)]
    ensemble, x = RandomizedEnsemble(watched), points(6, 6)
    attack(ensemble, x.requires_grad_(), labels_of(ensemble, x), Ball("l2", 0.2))
    assert not saved_without_need
    assert 0 < watched[0].with_gradient < len(watched[0].seen)


def test_arc_takes_one_gradient_call_a_member_and_step() -> None:
    """Per step and member one forward with gradient and one plain forward of every member; nothing more."""
    recorders = [Recorder(mlp(i)) for i in range(3)]
    ensemble, x = RandomizedEnsemble(recorders, [0.5, 0.3, 0.2]), points(4, 6)
    y = labels_of(ensemble, x)
    for r in recorders:
        r.seen.clear()
    ARC(steps=5, planes=4)(ensemble, x, y, Ball("l2", 1e-4))  # so small that nothing falls
    for r in recorders:
        assert r.with_gradient == 5
        assert len(r.seen) - r.with_gradient == 5 * 3 + 1  # the clean logits


def test_samples_that_are_lost_cost_nothing_more() -> None:
    ensemble = mlp_ensemble(2)
    recorders = [Recorder(m) for m in ensemble.members]
    watched, x = RandomizedEnsemble(recorders), points(6, 6)
    y = (labels_of(watched, x) + 1) % 5
    y = torch.where((watched.predictions(x) == y).any(0), (y + 1) % 5, y)
    y = torch.where((watched.predictions(x) == y).any(0), (y + 1) % 5, y)
    assert float(watched.expected_accuracy(x, y).max()) == 0
    for attack in (ARC(), WorstOf([ARC(), AdaptivePGD()])):
        x_adv = attack(watched, x, y, Ball("l2", 0.3))
        assert torch.equal(x_adv, x)
    assert recorders[0].with_gradient == 0
