"""An architecture is one function: what CONTRIBUTING promises, executed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import nn

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.models import build, import_checkpoint, load_ensemble, names, register, registry, save_ensemble


@pytest.fixture(autouse=True)
def only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def one_hidden(
    classes: int,
    channels: int,
    image_size: int,
    *,
    hidden: int = 8,
    bias: bool = True,
    activation: Literal["relu", "tanh"] = "relu",
) -> nn.Module:
    """A network with one hidden layer; in the package it would be `make` in architectures/one_hidden.py."""
    between = nn.ReLU() if activation == "relu" else nn.Tanh()
    first = nn.Linear(channels * image_size**2, hidden, bias=bias)
    return nn.Sequential(nn.Flatten(), first, between, nn.Linear(hidden, classes))


def test_a_registered_function_is_an_architecture(tmp_path: Path) -> None:
    register(one_hidden)
    assert "one_hidden" in names()
    model = build("one_hidden", 10, 1, 8, mean=[0.5], std=[0.25], bias=False)
    assert model.spec is not None and model.spec.options == {"hidden": 8, "bias": False, "activation": "relu"}
    x = torch.rand(3, 1, 8, 8)
    again = load_ensemble(save_ensemble(RandomizedEnsemble([model]), tmp_path / "rec"))
    assert torch.equal(again.members[0](x), model.eval()(x))
    with pytest.raises(InputError, match=r"unknown activation 'rely' \(did you mean 'relu'\?\); known: relu, tanh"):
        build("one_hidden", 10, 1, 8, activation="rely")
    with pytest.raises(InputError, match="bias must be true or false, got 3"):
        build("one_hidden", 10, 1, 8, bias=3)
    with pytest.raises(InputError, match="an architecture named 'one_hidden' exists already"):
        register(one_hidden)


class Plain(nn.Module):
    """As people write it: a class, its option not keyword-only, and something that cannot be saved."""

    def __init__(self, classes: int, channels: int, image_size: int, hidden: int = 4, act: type = nn.ReLU) -> None:
        super().__init__()
        size = channels * image_size**2
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), act(), nn.Linear(hidden, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def test_a_class_is_an_architecture_too() -> None:
    register(Plain)
    model = build("Plain", 10, 1, 8, hidden=6)
    assert (
        model.spec is not None
        and model.spec.options == {"hidden": 6}
        and model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    )
    with pytest.raises(InputError, match="unknown option of Plain 'width'; known: hidden"):
        build("Plain", 10, 1, 8, width=6)


def test_importing_tries_its_options(tmp_path: Path) -> None:
    register(one_hidden)
    state = build("one_hidden", 10, 1, 8, bias=False).net.state_dict()
    torch.save(state, tmp_path / "w.pt")
    size = {"channels": 1, "image_size": 8}
    imported = import_checkpoint("plain", tmp_path / "w.pt", tmp_path / "rec", normalisation="none", **size)  # type: ignore[arg-type]
    assert imported.members[0].architecture == "one_hidden"
    assert imported.members[0].options == {"hidden": 8, "bias": False, "activation": "relu"}
