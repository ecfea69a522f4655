"""An attack is registered once: its class alone makes it usable by `evaluate`, the command line and the report."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recarc import (
    ARC,
    PGD,
    Ball,
    CarliniWagner,
    InputError,
    RandomAttacker,
    RandomizedEnsemble,
    Restarts,
    save_ensemble,
)
from recarc.attacks import registry
from recarc.evaluation import evaluate
from recarc.evaluation.fingerprint import describe
from recarc.models import build
from recarc.report.runs import load_runs
from tiny import labels_of, mlp_ensemble, points

OWN = "own_attack:RandomPoints"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the example, registered for one test only."""
    entries = registry._entries()
    before = dict(entries)
    yield importlib.reload(importlib.import_module("own_attack"))
    entries.clear()
    entries.update(before)


@pytest.fixture
def ensemble(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save_ensemble(RandomizedEnsemble([build("linear", 10, 1, 8) for _ in range(2)]), tmp_path / "rec")


def test_a_new_attack_is_usable_everywhere(own: Any, ensemble: Path, tmp_path: Path, capsys: Any) -> None:
    from recarc.cli.app import run

    x = points(20, 6, dtype=torch.float32)
    rec = mlp_ensemble(2, dtype=torch.float32)
    result = evaluate(rec, own.RandomPoints(tries=3), (x, labels_of(rec, x)), Ball("linf", 0.3), progress=False)
    assert result.robust_accuracy < result.clean_accuracy

    assert registry.attack_named("random_points", tries=3) == own.RandomPoints(tries=3)
    assert "random_points" in registry.names() and registry.help("random_points").startswith("the best of")

    out = tmp_path / "run"
    arguments = ["evaluate", str(ensemble), "--data", "digits", "--limit", "12", "--eps", "0.3", "--out", str(out)]
    assert run([*arguments, "--attack", OWN, "--knob", "tries=2", "--seed", "7", "--trust-code", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["attack"].items() >= {"class": "RandomPoints", "tries": 2, "seed": 7}.items()

    (loaded,) = load_runs([out])
    assert loaded.label == "Random points"


def test_contributing_shows_the_attack_that_is_tested_here(own: Any) -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    assert f"```python\n{inspect.getsource(own.RandomPoints)}```" in text


def test_own_code_runs_only_when_it_is_trusted(ensemble: Path, capsys: Any) -> None:
    with pytest.raises(InputError, match=f"attack '{OWN}' runs code of that module; add --trust-code if you trust it"):
        registry.attack_named(OWN)
    with pytest.raises(InputError, match=r"'no_such_module:A' cannot be imported .* put its folder on PYTHONPATH"):
        registry.attack_named("no_such_module:A", trust_code=True)
    with pytest.raises(InputError, match="module 'json' has no 'Nothing'"):
        registry.attack_named("json:Nothing", trust_code=True)


def test_knobs_follow_from_the_class(own: Any) -> None:
    assert registry.attack_named(OWN, trust_code=True, steps=None, tries=2).tries == 2
    with pytest.raises(InputError, match=r"--steps does not apply .* leave it out \(it has seed, tries\)"):
        registry.attack_named(OWN, trust_code=True, steps=3)
    with pytest.raises(InputError, match="--knob variant does not apply to the attack 'corrected_arc'"):
        registry.attack_named("corrected_arc", variant="paper")
    assert registry.attack_named(OWN, 3, trust_code=True) == Restarts(own.RandomPoints(), 3)


def test_a_name_belongs_to_one_class() -> None:
    with pytest.raises(InputError, match=r"the attack name 'arc' is taken by recarc\.attacks\.arc:ARC"):
        registry.register("arc", label="Mine", help="")(dict)
    with pytest.raises(InputError, match="APGD has two meanings"):
        registry.attack_named("apgd")
    with pytest.raises(InputError, match=r"known: .*; your own is module:Class, with --trust-code$"):
        registry.attack_named("mine.Attack")
    with pytest.raises(InputError, match=r"unknown attack 'ark' \(did you mean 'arc'\?\)"):
        registry.attack_named("ark")


@pytest.mark.parametrize("name", registry.names())
def test_what_is_read_from_the_source_is_what_python_registers(name: str) -> None:
    """Names, labels and help are read without importing torch; importing the class must give the same."""
    registered = registry._entries()[name]
    made = registered.load()
    read = {entry.name: entry for entry in registry._registered_in(Path(inspect.getfile(made)))}
    assert registered == read[name] and registered.label and registered.help
    assert set(registered.fixed) <= {field.name for field in dataclasses.fields(made)}


@pytest.mark.parametrize(
    ("attack", "label"),
    [
        (ARC(), "ARC"),
        (ARC(variant="corrected"), "ARC, corrected"),
        (PGD(member=0), "PGD on member 0"),
        (PGD(member=1), "PGD on member 1"),
        (RandomAttacker(PGD()), "PGD"),
        (RandomAttacker(CarliniWagner(member=0)), "C&W on a random member"),
        (CarliniWagner(expectation="logits"), "C&W on logits"),
        (Restarts(PGD(random_init=True), 3), "PGD on member 0, 3 restarts"),
    ],
)
def test_labels(attack: Any, label: str) -> None:
    assert registry.label(describe(attack)) == label


def test_a_users_class_is_not_labelled_as_the_one_whose_name_it_shares() -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(ARC):
        pass

    Own.__name__ = Own.__qualname__ = "ARC"
    assert registry.label(describe(Own())) == "ARC (own code)"
    Own.__name__ = Own.__qualname__ = "RandomAttacker"
    assert registry.label({**describe(Own()), "attack": describe(PGD())}) == "RandomAttacker"


def test_a_knob_without_a_default_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class Needs(ARC):
        strength: int = dataclasses.field(kw_only=True)

    monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(Needs=Needs, made=ARC()))
    with pytest.raises(InputError, match=r"the attack 'mine:Needs' has no default for strength; add --knob strength="):
        registry.attack_named("mine:Needs", trust_code=True)
    assert registry.attack_named("mine:Needs", trust_code=True, strength=3) == Needs(strength=3)
    with pytest.raises(InputError, match="--steps does not apply to the attack 'mine:made'"):
        registry.attack_named("mine:made", trust_code=True, steps=3)


def test_an_unknown_class_is_labelled_by_its_name() -> None:
    assert registry.label({"class": "Elsewhere", "member": 1}) == "Elsewhere on member 1"
