"""docs/own_network.md: its code, executed; whose code an ensemble folder may run, and when."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import small
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, load_ensemble
from recarc.cli.app import run
from recarc.models import registry
from recarc.testing import check_method
from recarc.training import Method, StepContext

PAGE = Path(__file__).parents[2] / "docs" / "own_network.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder of somebody who follows the page: my_code.py, then every other block in order."""
    module, *others = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    (tmp_path / "my_code.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_own", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {}
    exec("".join(others), names)
    assert isinstance(names["ensemble"], RandomizedEnsemble)
    yield tmp_path
    sys.modules.pop("my_code", None)


def forget() -> None:
    """As in another process."""
    sys.modules.pop("my_code", None)
    registry._own.clear()


@pytest.mark.filterwarnings("ignore::recarc.evaluation.RecarcWarning")
def test_the_page_in_python_and_on_the_command_line(page: Path, capsys: Any) -> None:
    manifest = json.loads((page / "mine" / "ensemble.json").read_text())
    assert {member["architecture"] for member in manifest["members"]} == {"my_code:wide_net"}
    forget()
    with pytest.raises(InputError, match=r"member 0 of mine is made by the code 'my_code:wide_net'.*trust_code=True"):
        load_ensemble("mine")
    assert "my_code" not in sys.modules
    loaded = load_ensemble("mine", trust_code=True)
    assert loaded.members[0](torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert len(load_ensemble("loaded", trust_code=True)) == 1

    forget()
    commands = re.search(r"```bash\n(recarc train my_code.*?)\n```", PAGE.read_text())
    assert commands is not None
    words = [*commands[1].split()[1:], "--epochs", "0.2", "--quiet", "--json"]
    assert run([word for word in words if word != "--trust-code"]) == 2
    assert "training method 'my_code:CleanAndAttacked' runs its own code" in capsys.readouterr().err
    natural = ["train", "natural", "--arch", "my_code:wide_net", "--data", "digits", "--out", "n"]
    assert run(natural) == 2 and "my_code" not in sys.modules
    error = capsys.readouterr().err
    assert "architecture 'my_code:wide_net' is code of that module" in error and "--trust-code" in error
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out) == {"out": "both", "method": "my_code:CleanAndAttacked"} | {
        "members": 1,
        "alpha": [1.0],
    }
    attack = ["--attack", "pgd1", "--steps", "1", "--limit", "4", "--eps", "0.15", "--device", "cpu", "--json"]
    forget()
    assert run(["evaluate", "both", "--data", "digits", *attack]) == 2
    assert run(["evaluate", "both", "--data", "digits", *attack, "--trust-code"]) == 0


def bad_signature(classes: int) -> nn.Module:
    return nn.Linear(1, classes)


def no_module(classes: int, channels: int, image_size: int) -> str:
    return "logits"


def fine(classes: int, channels: int, image_size: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size**2, classes))


@pytest.mark.parametrize(
    ("arch", "message"),
    [
        (bad_signature, r"must be a function of \(classes, channels, image_size\)"),
        (no_module, "returned a str, not a torch.nn.Module"),
        (lambda classes, channels, image_size: fine(classes, channels, image_size), "move it into a module"),
        ("no_such_module:net", "cannot be imported"),
        ("resnet21", r"did you mean 'resnet20'\?"),
    ],
)
def test_networks_that_cannot_be_used(arch: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        small("natural", arch=arch, arch_options={}, norm=None, eps=None, out=tmp_path / "out", trust_code=True)
    assert not (tmp_path / "out").exists()


def test_code_that_was_edited_does_not_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    from recarc.training.config import configure

    ball: dict[str, Any] = {"norm": None, "eps": None, "recipe": "fast", "changes": {}, "members": None, "seed": 0}
    rest: dict[str, Any] = {"start": None, "alpha": None, "arch_options": {}, "confirm": False}

    def code(arch: Any) -> Any:
        return configure("natural", "digits", arch, **ball, **rest).to_json().get("own_code")

    def other(classes: int, channels: int, image_size: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(channels * image_size**2, classes))

    other.__qualname__ = fine.__qualname__
    assert code("cnn") is None and code(fine) == code(fine) != code(other)


class Reckless(Method):
    def perturb(self, context: StepContext, x: Tensor, y: Tensor) -> Tensor:
        return x + torch.randn_like(x)

    def loss(self, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"ce": torch.stack([context.loss(m(x_adv), y) for m in context.trained])}


def test_what_a_method_breaks_is_listed() -> None:
    with pytest.raises(AssertionError) as broken:
        check_method(Reckless())
    assert "perturb left ball or box by" in str(broken.value)
    assert "the term ce is not a scalar tensor" in str(broken.value)
