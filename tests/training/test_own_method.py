"""A method is one class in one file: lookup, command line and documentation follow from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_method import TRADES
from small_training import small

from recarc import InputError
from recarc.cli.app import run as command_line
from recarc.models.store import load_ensemble
from recarc.testing import check_method
from recarc.training import Recipe, method_named, names, recipe_for, recipes

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "training.md"
COMMAND = ["--data", "digits", "--arch", "cnn", "--arch-option", "width=8", "--norm", "linf", "--eps", "0.15"]
COMMAND += ["--epochs", "0.5", "--device", "cpu", "--quiet", "--json"]


def test_the_documentation_lists_every_method_as_its_class_describes_it() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `") and line.count("|") == 4]
    listed = {row.split("`")[1]: row for row in rows if not row.startswith("| `--")}
    methods = [method_named(name) for name in names()]
    assert listed == {m.name: f"| `{m.name}` | {m.default_members} | {m.summary} |" for m in methods}


def test_the_command_describes_every_method(capsys: Any) -> None:
    assert command_line(["train", "--list-methods"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(method_named(name).summary in shown for name in names())
    assert command_line(["train", "--help"]) == 0
    help_text = "".join(capsys.readouterr().out.replace("│", " ").split())
    assert ",".join(names()) in help_text


def test_a_method_of_your_own_in_python_and_on_the_command_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    history: list[str] = []
    ensemble = small(TRADES(), epochs=0.5, say=history.append)
    assert history[0].startswith("trades: 1 x cnn") and any("kl " in line for line in history)
    monkeypatch.chdir(HERE)
    out = tmp_path / "trades"
    assert command_line(["train", "own_method:TRADES", *COMMAND, "--trust-code", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["members"] == 1
    made = json.loads((out / "ensemble.json").read_text())["made_by"]
    assert made["method"] == "trades" and set(made["curve"]["member 1"]["epochs"][0]["loss"]) == {"ce", "kl"}
    for a, b in zip(ensemble.members[0].parameters(), load_ensemble(out).members[0].parameters()):  # type: ignore[union-attr]
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["cover", "jat", "tournament"])
def test_our_own_defences_keep_what_methods_promise(name: str) -> None:
    check_method(method_named(name))


def test_a_method_brings_its_hyper_parameters() -> None:
    class Gentle(TRADES):
        def recipe(self, base: Recipe, name: str, data: str) -> Recipe:
            assert (name, data) == ("fast", "digits")
            return replace(base, lr=base.lr / 10)

    assert recipe_for("fast", TRADES(), "digits", "cnn") == recipe_for("fast", "at", "digits", "cnn")
    assert recipe_for("fast", Gentle(), "digits", "cnn").lr == recipe_for("fast", "at", "digits", "cnn").lr / 10
    assert "method ==" not in Path(recipes.__file__).read_text(), "a method's hyper-parameters live with the method"


@pytest.mark.parametrize(
    ("method", "trust", "message"),
    [
        ("own_method:TRADES", False, "training method 'own_method:TRADES' runs its own code: .* add --trust-code"),
        ("no_such_module:TRADES", True, r"cannot be imported \(No module named 'no_such_module'\)"),
        ("own_method:Trades", True, "module 'own_method' has no 'Trades'"),
        ("own_method:divergence", True, "is no subclass of recarc.training.Method"),
    ],
)
def test_a_method_that_cannot_be_used_is_refused(method: str, trust: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(method, trust_code=trust)


def test_a_class_instead_of_a_method_is_refused() -> None:
    with pytest.raises(InputError, match=r"method is <class .*TRADES'>; expected a name, or an instance of a subclass"):
        small(TRADES)  # type: ignore[arg-type]
