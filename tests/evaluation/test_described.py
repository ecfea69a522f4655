"""Descriptions of what a run depends on: different content is told apart, and nothing depends on the process."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, problem
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, evaluate
from recarc.evaluation.fingerprint import canonical, described, module_hash
from recarc.evaluation.samples import tensor_hash
from recarc.geometry import Ball
from recarc.models import build, names


def shifted(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, *, by: float) -> Tensor:
    return ball.move(x, torch.full_like(x, by))


class Shift:
    def __init__(self, by: float) -> None:
        self.by = by

    def attack(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return shifted(ensemble, x, y, ball, by=self.by)


def closed_over(by: Any) -> Callable[..., Tensor]:
    def attack(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return shifted(ensemble, x, y, ball, by=by)

    return attack


def by_default(by: float) -> Callable[..., Tensor]:
    return lambda ensemble, x, y, ball, by=by: shifted(ensemble, x, y, ball, by=by)


def by_keyword_default(by: float) -> Callable[..., Tensor]:
    return lambda ensemble, x, y, ball, *, by=by: shifted(ensemble, x, y, ball, by=by)


ATTACKS: list[Callable[[float], Any]] = [
    lambda by: partial(shifted, by=by),
    lambda by: Shift(by).attack,
    closed_over,
    by_default,
    by_keyword_default,
    lambda by: lru_cache(closed_over(by)),
    lambda by: partial(closed_over(by)),
]


@pytest.mark.parametrize("make", ATTACKS)
def test_callables_are_told_apart_by_their_content(make: Callable[[float], Any]) -> None:
    assert described(make(0.01)) == described(make(0.01))
    assert described(make(0.01)) != described(make(0.02))


def test_positional_arguments_of_a_partial_are_part_of_it() -> None:
    assert described(partial(math.copysign, 1.0)) != described(partial(math.copysign, 2.0))
    assert described(partial(math.copysign, 1.0)) != described(partial(math.fmod, 1.0))


def test_methods_of_builtin_objects_and_of_classes() -> None:
    assert described({"a": 1}.get) != described({"a": 2}.get)
    assert described(torch.zeros(2).add) != described(torch.ones(2).add)

    class Base:
        scale = 1

        @classmethod
        def scaled(cls) -> int:
            return cls.scale

    class Other(Base):
        scale = 2

    assert described(Base.scaled) != described(Other.scaled)


def test_functions_with_nothing_inside_are_told_by_name() -> None:
    assert described(torch.relu) == f"{torch.relu.__module__}:{torch.relu.__qualname__}"
    assert described(math.sin) == "math:sin"
    assert described(Shift) == f"{__name__}:Shift"
    assert described(Shift.attack) == f"{__name__}:Shift.attack"


@pytest.mark.parametrize("make", [ATTACKS[0], ATTACKS[1], ATTACKS[2]])
def test_a_run_folder_is_not_continued_with_another_content(make: Callable[[float], Any], tmp_path: Path) -> None:
    ensemble, data = problem()
    for _ in range(2):
        evaluate(ensemble, make(0.01), data, BALL, out=tmp_path, progress=False)
    with pytest.raises(InputError, match="belongs to another configuration"):
        evaluate(ensemble, make(0.05), data, BALL, out=tmp_path, progress=False)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


def odd_things() -> list[Any]:
    node = Shift(0.1)
    node.parent = node  # type: ignore[attr-defined]

    def recursive(n: int) -> int:
        return recursive(n - 1) if n else unassigned

    if not odd_things:
        unassigned = 1
    loop: list[Any] = [1]
    loop.append(loop)
    return [
        *(node, node.attack, recursive, loop, {node: node}, {Slotted(3)}, Slotted(3), object(), threading.Lock()),
        *(logging.getLogger("recarc"), math, torch.float16, torch.device("cpu"), Path("a"), np.float32(3), 1j),
        *(iter([1]), (n for n in range(3)), np.array(["cat"]), np.arange(4)[::-1], torch.eye(2).to_sparse()),
    ]


def test_descriptions_end_and_hold_no_addresses() -> None:
    """Made twice, each thing lies elsewhere in memory; inside a closure it is reached as an attack reaches it."""
    first, second = ([canonical(described(closed_over(thing))) for thing in odd_things()] for _ in range(2))
    assert first == second
    assert not [text for text in first if "0x" in text]
    assert described(Slotted(3)) != described(Slotted(4))
    assert described(torch.float16) != described(torch.float32)
    assert described(np.array(["cat"])) != described(np.array(["dog"]))


class Normalised(nn.Module):
    """Holds what it computes with as a plain attribute."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        nn.init.zeros_(self.net.weight)
        nn.init.zeros_(self.net.bias)
        self.held = held


def constant(value: float) -> nn.Module:
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, value)
    nn.init.zeros_(layer.bias)
    return layer


@pytest.mark.parametrize(
    "make",
    [
        lambda v: torch.tensor([v, 1.0]),
        lambda v: np.array([v, 1.0]),
        lambda v: [v, 1.0],
        lambda v: (v, 1.0),
        lambda v: [torch.tensor(v)],
        lambda v: (constant(v),),
        lambda v: [closed_over(v)],
        lambda v: {"mean": v},
        lambda v: {v},
        closed_over,
        lambda v: partial(shifted, by=v),
    ],
)
def test_members_are_told_apart_by_what_is_not_registered(make: Callable[[float], Any]) -> None:
    assert module_hash(Normalised(make(0.5))) == module_hash(Normalised(make(0.5)))
    assert module_hash(Normalised(make(0.5))) != module_hash(Normalised(make(0.25)))


def test_attributes_of_torchs_own_layers_count_too() -> None:
    one, other = nn.Sequential(nn.ReLU()), nn.Sequential(nn.ReLU())
    one.mean, other.mean = [0.5], [0.25]  # type: ignore[assignment]
    assert module_hash(one) != module_hash(other)


def hooked(value: float, times: int = 1) -> nn.Module:
    net = Normalised(0.5)
    for _ in range(times):
        net.net.register_forward_pre_hook(lambda module, inputs: (inputs[0] * value,))
    return net


def test_hooks_are_part_of_a_member() -> None:
    assert module_hash(hooked(0.5)) == module_hash(hooked(0.5))
    assert len({module_hash(net) for net in (hooked(0.5), hooked(0.25), hooked(0.5, times=2), Normalised(0.5))}) == 4


def test_which_of_several_gpus_makes_no_difference() -> None:
    assert described(torch.device("cuda", 0)) == described(torch.device("cuda", 3)) != described(torch.device("cpu"))


def web(size: int) -> dict[str, Any]:
    """Objects that all know each other, as a trainer and its callbacks do."""
    nodes = [Shift(float(i)) for i in range(size)]
    for node in nodes:
        node.others = nodes  # type: ignore[attr-defined]
    return {"trainer": nodes[0]}


def test_a_web_of_objects_is_told_in_no_time_by_its_kind() -> None:
    began = time.perf_counter()
    assert module_hash(Normalised(web(40))) == module_hash(Normalised(web(40)))
    assert time.perf_counter() - began < 5
    assert module_hash(Normalised(web(3))) != module_hash(Normalised(web(4)))


def test_a_compiled_module_is_the_same_in_every_process() -> None:
    one, other = Normalised(0.5), Normalised(0.5)
    one._torchdynamo_wrapper_id, other._torchdynamo_wrapper_id = id(one), id(other)  # type: ignore[assignment]
    assert module_hash(one) == module_hash(other)


def test_a_module_that_holds_itself_has_a_hash() -> None:
    nets = [Normalised([]) for _ in range(2)]
    for net in nets:
        net.held = [net, net.net, Normalised([net])]
    assert module_hash(nets[0]) == module_hash(nets[1])


def hash_of_old_runs(module: nn.Module) -> str:
    """As the first run folders have it."""
    digest = hashlib.sha256(repr(module).encode())
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, (bool, int, float, str)) and k != "training"}
        digest.update(f"{name} {sorted(plain.items())}".encode())
    for name, tensor in sorted([*module.named_parameters(), *module.named_buffers()], key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor_hash(tensor)}".encode())
    return digest.hexdigest()


def test_old_run_folders_go_on() -> None:
    usual = nn.Sequential(
        *(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d((2, 2)),
            nn.ZeroPad2d((1, 1, 1, 1)),
        ),
        *(nn.AdaptiveAvgPool2d((4, 4)), nn.LayerNorm((4, 4)), nn.Flatten(), nn.Unflatten(1, (8, 8)), nn.LSTM(8, 3)),
    )
    ours = [build(name, 10, 3, 32) for name in names() if name in ("cnn", "linear", "resnet20")]
    for module in (usual, Normalised(0.5), Normalised([]), *ours):
        assert module_hash(module) == hash_of_old_runs(module)
