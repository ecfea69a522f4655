"""Descriptions of what a run depends on: other content or other code is another attack, in any process."""

from __future__ import annotations

import importlib
import logging
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, QUICK, problem, records_of
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, WorstOf, evaluate
from recarc.attacks import Attack, Problem
from recarc.evaluation.fingerprint import attack_text, canonical, describe, differences, module_hash, undescribed
from recarc.geometry import Ball


def shifted(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball, *, by: float) -> Tensor:
    return ball.move(x, torch.full_like(x, by))


class Shift:
    def __init__(self, by: float) -> None:
        self.by = by

    def attack(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return shifted(ensemble, x, y, ball, by=self.by)


class OwnInit(Attack):
    """An attack that is no dataclass of its own: nothing of its state is a field."""

    def __init__(self, by: Any) -> None:
        object.__setattr__(self, "_by", by)

    def perturb(self, problem: Problem) -> Tensor:
        return problem.ball.move(problem.x, torch.full_like(problem.x, self._by))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Knob(Attack):
    by: float

    def perturb(self, problem: Problem) -> Tensor:
        return problem.ball.move(problem.x, torch.full_like(problem.x, self.by))


class Module(nn.Module):
    """An attack that is a module and keeps a knob in a list."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.knobs = [by]

    def forward(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return shifted(ensemble, x, y, ball, by=self.knobs[0])


def closed_over(by: Any) -> Callable[..., Tensor]:
    def attack(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return shifted(ensemble, x, y, ball, by=by)

    return attack


def class_in_a_closure(by: float) -> Any:
    class Local:
        def __call__(self, ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
            return shifted(ensemble, x, y, ball, by=by)

    return Local()


def class_attribute(by: float) -> Any:
    class Local(Shift):
        scale = by

    return Local(0.1).attack


ATTACKS: dict[str, Callable[[float], Any]] = {
    "partial": lambda by: partial(shifted, by=by),
    "method": lambda by: Shift(by).attack,
    "closure": closed_over,
    "default": lambda by: lambda ensemble, x, y, ball, by=by: shifted(ensemble, x, y, ball, by=by),
    "keyword default": lambda by: lambda ensemble, x, y, ball, *, by=by: shifted(ensemble, x, y, ball, by=by),
    "cached": lambda by: lru_cache(closed_over(by)),
    "own init": OwnInit,
    "dataclass": Knob,
    "module": Module,
    "class in a closure": class_in_a_closure,
    "class attribute": class_attribute,
    "inside WorstOf": lambda by: WorstOf([QUICK, OwnInit(by)]),
    "held object": lambda by: OwnInit(Shift(by)),
}


@pytest.mark.parametrize("make", ATTACKS.values(), ids=ATTACKS)
def test_attacks_are_distinguished_by_their_content(make: Callable[[float], Any]) -> None:
    assert describe(make(0.01)) == describe(make(0.01))
    assert describe(make(0.01)) != describe(make(0.02))
    assert not undescribed(describe(make(0.01)))


CODE = """
from dataclasses import dataclass
import torch
from recarc.attacks import Attack, Problem

STEP = 0.01

def helper(x):
    return torch.full_like(x, STEP)

def function(ensemble, x, y, ball):
    return ball.move(x, helper(x))

nothing = lambda ensemble, x, y, ball: x; another = lambda ensemble, x, y, ball: 1 * x

@dataclass(frozen=True)
class Fields(Attack):
    by: float = 0.01

    def perturb(self, problem):
        return problem.ball.move(problem.x, torch.full_like(problem.x, self.by))

class Own(Attack):
    def __init__(self, by=0.01):
        object.__setattr__(self, "by", by)

    def perturb(self, problem):
        moves = {n: helper(problem.x) for n in ("a", "b") if n in {"a", "c"}}
        return problem.ball.move(problem.x, self.by / STEP * moves["a"])

class Derived(Own):
    pass
"""
EDITS = {
    "a comment": ("def helper(x):", "def helper(x):  # the same as before", True),
    "a constant": ("STEP = 0.01", "STEP = 0.02", False),
    "a helper": ("return torch.full_like(x, STEP)", "return 2 * torch.full_like(x, STEP)", False),
}


def made_by(code: str, name: str, module_name: str = "my_attacks") -> Any:
    """The attack of this name from a module with this code, as another process would import it."""
    module: dict[str, Any] = {"__name__": module_name}
    exec(compile(code, "my_attacks.py", "exec", dont_inherit=True), module)
    return module[name]() if isinstance(module[name], type) else module[name]


@pytest.mark.parametrize("name", ["function", "Own", "Derived"])
@pytest.mark.parametrize(("old", "new", "same"), EDITS.values(), ids=EDITS)
def test_edited_code_is_another_attack(name: str, old: str, new: str, same: bool) -> None:
    before, after = (describe(made_by(code, name)) for code in (CODE, CODE.replace(old, new)))
    assert old in CODE and before == describe(made_by(CODE, name))
    assert (before == after) is same


def test_edited_methods_and_lambdas_are_other_attacks() -> None:
    edited = CODE.replace("torch.full_like(problem.x, self.by)", "torch.full_like(problem.x, -self.by)")
    assert describe(made_by(CODE, "Fields")) != describe(made_by(edited, "Fields"))
    assert describe(WorstOf([made_by(CODE, "Fields")])) != describe(WorstOf([made_by(edited, "Fields")]))
    assert describe(made_by(CODE, "nothing")) != describe(made_by(CODE.replace(": x;", ": -x;"), "nothing"))


def test_a_file_of_ones_own_may_be_named_as_one_of_pythons() -> None:
    edited = CODE.replace("STEP = 0.01", "STEP = 0.02")
    assert describe(made_by(CODE, "function", "test")) != describe(made_by(edited, "function", "test"))
    assert describe(logging.getLevelName) == "logging:getLevelName"


OWN_FILES = {
    "my_size": "SCALE = 1.0\n\ndef size(x):\n    return bigger(x)\n\ndef bigger(x):\n    return 2 * x\n\nunused = 1\n",
    "my_late": "WIDTH = 1\n",
    "my_stars": "shrunk = 1.0\n",
    "my_attack": """
import torch
import my_size
from my_size import size
from my_stars import *
from recarc.attacks import Attack

step = 0.01
config = {"moves": [1.0]}
calls = 0
log = []

class Mine(Attack):
    knobs = {"sign": 1}

    def perturb(self, problem):
        global calls
        calls += 1
        from my_late import WIDTH as later
        log.append(2 * later * shrunk)
        by = size(step) * my_size.SCALE * config["moves"][0] * self.knobs["sign"]
        return problem.ball.move(problem.x, torch.full_like(problem.x, by))
""",
}


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("my_size", "SCALE = 1.0", "SCALE = 2.0", False),
        ("my_size", "return 2 * x", "return 3 * x", False),
        ("my_size", "unused = 1", "unused = 2", True),
        ("my_attack", "step = 0.01", "step = 0.02", False),
        ("my_attack", '{"moves": [1.0]}', '{"moves": [2.0]}', False),
        ("my_attack", '{"sign": 1}', '{"sign": -1}', False),
        ("my_attack", "calls = 0", "calls = 0  # of perturb", True),
        ("my_attack", "2 * later", "3 * later", False),
        ("my_late", "WIDTH = 1", "WIDTH = 2", False),
        ("my_stars", "shrunk = 1.0", "shrunk = 0.5", False),
    ],
)
def test_edits_in_what_an_attack_uses_of_other_files(
    file: str, old: str, new: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described(files: dict[str, str]) -> Any:
        for name, code in files.items():
            (tmp_path / f"{name}.py").write_text(code)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return describe(importlib.import_module("my_attack").Mine())

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = described(OWN_FILES)
    sys.modules["my_attack"].Mine().perturb(SimpleNamespace(x=torch.zeros(1), ball=Ball("linf", 0.1)))
    assert before == describe(sys.modules["my_attack"].Mine()), "a log and a counter do not make it another attack"
    assert old in OWN_FILES[file] and before == described(OWN_FILES) and not undescribed(before)
    assert (before == described({**OWN_FILES, file: OWN_FILES[file].replace(old, new)})) is same
    for name in OWN_FILES:
        sys.modules.pop(name, None)


def test_running_code_does_not_change_it() -> None:
    ensemble, (x, y) = problem()
    attack = made_by(CODE, "Own")
    before = describe(attack)
    for _ in range(100):  # Python specialises byte code that runs often
        attack.perturb(Problem(ensemble, x, y, BALL))
    assert describe(attack) == before


def test_attacks_of_this_package_are_their_class_and_knobs() -> None:
    assert describe(WorstOf([QUICK]))["attacks"][0] == describe(QUICK)
    assert "class_code" not in describe(QUICK) and describe(QUICK)["steps"] == 3
    assert describe(torch.relu) == f"{torch.relu.__module__}:{torch.relu.__qualname__}"
    assert describe(math.sin) == "math:sin" and describe(partial(math.fmod, 1.0)) != describe(partial(math.fmod, 2.0))


@pytest.mark.parametrize("name", ["closure", "own init", "inside WorstOf", "method"])
def test_a_run_is_not_resumed_by_an_attack_of_other_content(name: str, tmp_path: Path) -> None:
    ensemble, data = problem()
    make = ATTACKS[name]
    for _ in range(2):
        evaluate(ensemble, make(0.01), data, BALL, out=tmp_path, progress=False)
    with pytest.raises(InputError, match="belongs to another configuration: attack"):
        evaluate(ensemble, make(0.05), data, BALL, out=tmp_path, progress=False)


@pytest.mark.parametrize("wrap", [lambda attack: attack, lambda attack: WorstOf([QUICK, attack])])
def test_a_run_is_not_resumed_by_edited_code(wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    ensemble, data = problem()
    for _ in range(2):
        evaluate(ensemble, wrap(made_by(CODE, "Own")), data, BALL, out=tmp_path, progress=False)
    before = records_of(tmp_path)
    edited = CODE.replace("self.by / STEP", "-self.by / STEP")
    with pytest.raises(InputError, match=r"\(a new --out\)$") as caught:
        evaluate(ensemble, wrap(made_by(edited, "Own")), data, BALL, out=tmp_path, progress=False)
    assert (
        f"{tmp_path} belongs to another configuration: the code of Own is not the same in the run as now; it was"
        in str(caught.value)
    )
    assert "\n" not in str(caught.value) and records_of(tmp_path) == before


def test_a_run_of_an_attack_that_cannot_be_described_is_not_resumed(tmp_path: Path) -> None:
    ensemble, data = problem()
    draws = (0.01 for _ in range(100))

    def attack(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return shifted(ensemble, x, y, ball, by=next(draws))

    assert len(evaluate(ensemble, attack, data, BALL, out=tmp_path, progress=False)) == 40
    with pytest.raises(InputError, match="cannot be resumed: the attack holds a generator") as caught:
        evaluate(ensemble, attack, data, BALL, out=tmp_path, progress=False)
    assert "\n" not in str(caught.value)


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
    first, second = ([canonical(describe(closed_over(thing))) for thing in odd_things()] for _ in range(2))
    assert first == second
    assert not [text for text in first if "0x" in text]
    assert describe(Slotted(3)) != describe(Slotted(4))
    assert describe(torch.float16) != describe(torch.float32)
    assert describe(np.array(["cat"])) != describe(np.array(["dog"]))
    assert undescribed(describe([threading.Lock(), Slotted(3)])) == ["lock"]


def test_a_web_of_objects_ends_soon_and_is_marked() -> None:
    nodes = [Shift(float(i)) for i in range(40)]
    for node in nodes:
        node.others = list(nodes)  # type: ignore[attr-defined]
    start = time.perf_counter()
    assert "Shift" in undescribed(describe(nodes[0]))
    assert time.perf_counter() - start < 5


def test_attacks_in_words() -> None:
    assert attack_text(describe(Knob(0.5))) == "Knob(by=0.5)"
    assert attack_text(describe(WorstOf([Knob(0.5)]))) == "WorstOf(attacks=[Knob(by=0.5)])"
    assert attack_text(describe(closed_over(0.5))) == f"{__name__}:closed_over.<locals>.attack"


class Normalised(nn.Module):
    def __init__(self, mean: float, value: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        nn.init.constant_(self.net.weight, value)
        nn.init.zeros_(self.net.bias)
        self.mean = mean
        self.register_buffer("hidden", torch.tensor([mean]), persistent=False)


def test_members_are_distinguished_by_architecture_attributes_weights_and_buffers() -> None:
    assert module_hash(Normalised(0.5)) == module_hash(Normalised(0.5))
    other = Normalised(0.5)
    other.hidden += 1
    nets = [Normalised(0.5), Normalised(0.25), Normalised(0.5, 1.0), other, nn.Sequential(Normalised(0.5), nn.ReLU())]
    nets += [nn.Conv2d(1, 1, 3, stride=s, dtype=torch.float64) for s in (1, 2)]
    for net in nets[-2:]:
        nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    assert len({module_hash(net) for net in nets}) == len(nets)


def test_how_a_version_of_torch_prints_a_module_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    before = module_hash(Normalised(0.5))
    monkeypatch.setattr(nn.Linear, "extra_repr", lambda self: "printed in another way")
    assert module_hash(Normalised(0.5)) == before


def test_a_compiled_module_is_the_same_in_every_process() -> None:
    one, other = Normalised(0.5), Normalised(0.5)
    one._torchdynamo_wrapper_id, other._torchdynamo_wrapper_id = id(one), id(other)  # type: ignore[assignment]
    assert module_hash(one) == module_hash(other)


def test_what_differs_in_words() -> None:
    before = {"class": "Mine", "class_code": "ab", "code": "fast", "steps": 3}
    assert differences(before, {**before, "class_code": "cd"}) == [
        "the code of Mine is not the same in the run as now",
    ]
    assert differences(before, {**before, "code": "slow"}) == ['code is "fast" in the run and "slow" now']
    other = {"class": "Other", "class_code": "cd", "code": "fast", "steps": 3}
    assert differences(before, other)[0] == 'class is "Mine" in the run and "Other" now'
    one, two = ({"attack": {"function": "my.module:attack", "code": code}} for code in ("ab", "cd"))
    assert differences(one, two, ("on rank 0", "on rank 1")) == [
        "the code of attack is not the same on rank 0 as on rank 1"
    ]
    own = ({"method": "my:Method", "own_code": code} for code in ("ab", "cd"))
    assert differences(*own) == ["the code of your method or network is not the same in the run as now"]
