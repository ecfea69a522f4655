"""Members from a user's own code, and weights files that want to run code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.models import FactorySpec, build, from_factory, load_ensemble, save_ensemble, with_factory
from tiny import Malicious

OWN = "own_models:make"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def write_folder(folder: Path, weights: str, data: bytes, **entry: Any) -> Path:
    """An ensemble folder made by hand."""
    folder.mkdir()
    (folder / weights).write_bytes(data)
    member = {"factory": OWN, "weights": weights, "sha256": hashlib.sha256(data).hexdigest(), **entry}
    document = {"format": "recarc-ensemble", "format_version": 1, "alpha": [1], "members": [member]}
    (folder / "ensemble.json").write_text(json.dumps(document))
    return folder


def torch_bytes(path: Path, value: object, **options: Any) -> bytes:
    torch.save(value, path, **options)
    return path.read_bytes()


def test_factory_members_round_trip_and_mix_with_registered_ones(tmp_path: Path) -> None:
    own = from_factory(OWN, {"hidden": 6}, classes=10)
    registered = build("linear", 10, channels=1, image_size=8)
    folder = save_ensemble(RandomizedEnsemble([own, registered], [0.25, 0.75]), tmp_path / "rec")
    again = load_ensemble(folder, allow_factories=True)
    assert again.members[0].spec == FactorySpec(OWN, {"hidden": 6}, 10)
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(again.logits(x), RandomizedEnsemble([own, registered]).logits(x))
    save_ensemble(again, tmp_path / "again")


def test_code_runs_only_when_allowed(tmp_path: Path) -> None:
    folder = save_ensemble(RandomizedEnsemble([from_factory(OWN)]), tmp_path / "rec")
    with pytest.raises(InputError, match=r"member 0 of .*rec is made by the code 'own_models:make', .*trust_code=True"):
        load_ensemble(folder)


@pytest.mark.parametrize("suffix", ["pt", "pth"])
@pytest.mark.parametrize("legacy", [False, True])
def test_weights_saved_by_torch_are_loaded_strictly(suffix: str, legacy: bool, tmp_path: Path) -> None:
    model = from_factory(OWN)
    data = torch_bytes(tmp_path / "w", model.state_dict(), _use_new_zipfile_serialization=not legacy)
    folder = write_folder(tmp_path / "rec", f"w.{suffix}", data)
    (member,) = load_ensemble(folder, allow_factories=True).members
    assert torch.equal(member[1].weight, model[1].weight)
    (tmp_path / "w").unlink()
    wrong = write_folder(tmp_path / "wrong", "w.pt", data, kwargs={"hidden": 5})
    with pytest.raises(
        InputError, match=r"w.pt does not fit own_models:make: '1.weight' has shape \(4, 64\), expected"
    ):
        load_ensemble(wrong, allow_factories=True)


@pytest.mark.parametrize("writer", ["zip", "legacy", "pickle"])
@pytest.mark.parametrize("hidden_in", ["alone", "among tensors"])
def test_a_pickle_with_code_in_it_is_refused_without_executing(writer: str, hidden_in: str, tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    content: Any = Malicious(trace)
    if hidden_in == "among tensors":
        content = {**from_factory(OWN).state_dict(), "extra": content}
    if writer == "pickle":
        data = pickle.dumps(content)
    else:
        data = torch_bytes(tmp_path / "w", content, _use_new_zipfile_serialization=writer == "zip")
    folder = write_folder(tmp_path / "rec", "w.pt", data)
    with pytest.raises(
        InputError, match=r"w.pt (is a pickle that asks for|cannot be read as a file of tensors)"
    ) as caught:
        load_ensemble(folder, allow_factories=True)
    assert not trace.exists()
    assert "\n" not in str(caught.value)
    if writer != "pickle":
        assert f"asks for '{os.mkdir.__module__}.mkdir'; it was refused and nothing in it was executed" in str(
            caught.value
        )
        torch.load(tmp_path / "w", weights_only=False)  # the same file does harm in careless hands
        assert trace.exists()


def test_other_contents_are_refused(tmp_path: Path) -> None:
    cases = {
        "list.pt": (torch_bytes(tmp_path / "w", [torch.zeros(1)]), "holds a list that is not a plain state dict"),
        "text.pt": (b"hello", r"cannot be read as a file of tensors \(corrupt, truncated or of another kind\)"),
        "empty.pt": (b"", "cannot be read as a file of tensors"),
        "torn.pth": (torch_bytes(tmp_path / "w", from_factory(OWN).state_dict())[:-50], "cannot be read as a file of"),
        "a.safetensors": (pickle.dumps(Malicious(tmp_path / "executed")), "is not a readable safetensors file"),
        "module.pt": (torch_bytes(tmp_path / "w", from_factory(OWN)), "is a pickle that asks for 'torch.nn.modules"),
    }
    for name, (data, message) in cases.items():
        folder = write_folder(tmp_path / f"rec-{name}", name, data)
        with pytest.raises(InputError, match=message) as caught:
            load_ensemble(folder, allow_factories=True)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_integer_weights_do_not_pass_for_floats(tmp_path: Path) -> None:
    state = {key: value.to(torch.int8) for key, value in from_factory(OWN).state_dict().items()}
    folder = write_folder(tmp_path / "rec", "w.pt", torch_bytes(tmp_path / "w", state))
    with pytest.raises(InputError, match=r"'1.weight' is int8, expected float32"):
        load_ensemble(folder, allow_factories=True)


@pytest.mark.parametrize(
    ("factory", "kwargs", "message"),
    [
        ("own_models", {}, "factory 'own_models' is not of the form 'module:function'"),
        ("os; rm:x", {}, "is not of the form"),
        ("__main__:make", {}, "is in the running script"),
        ("no_such_module:make", {}, r"cannot be imported \(No module named 'no_such_module'\): .*PYTHONPATH"),
        ("own_models:build", {}, "module 'own_models' has no 'build'"),
        (OWN, {"depth": 3}, r"'own_models:make' does not accept \{'depth': 3\}"),
        ("own_models:not_a_model", {}, "returned a str, not a torch.nn.Module"),
    ],
)
def test_bad_factories(factory: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_factory(factory, kwargs)


def test_bad_kwargs() -> None:
    with pytest.raises(InputError, match="must be a mapping with string keys"):
        FactorySpec(OWN, {1: 2})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="classes must be an integer from 2"):
        FactorySpec(OWN, {}, 1)


def test_a_factory_that_makes_something_else_is_found_when_saving(tmp_path: Path) -> None:
    module = with_factory(nn.Linear(3, 2), OWN)
    with pytest.raises(
        InputError, match=r"member 0 does not fit its own description \(own_models:make\): missing '1.wei"
    ):
        save_ensemble(RandomizedEnsemble([module]), tmp_path / "rec")
