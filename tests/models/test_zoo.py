"""The zoo: what is shipped is intact, and what is not intact is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paper.zoo import add, training_commands
from recarc import RandomizedEnsemble, load_ensemble, save_ensemble, zoo
from recarc.cli.app import run
from recarc.errors import InputError
from recarc.models import build, weights
from recarc.models.store import ensemble_folder

SHIPPED = [entry.name for entry in zoo.entries()]


@pytest.fixture()
def own_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo with one tiny pair for digits."""
    torch.manual_seed(0)
    pair = RandomizedEnsemble([build("cnn", 10, 1, 8, width=2) for _ in range(2)], [0.9, 0.1])
    source = save_ensemble(pair, tmp_path / "pair", made_by={"method": "bat", "machine": {"device": "a CPU"}})
    home = tmp_path / "zoo"
    home.mkdir()
    add(source, "tiny", "a tiny pair", "bat-digits-cnn-linf", "fast", home)
    index = json.loads((home / "index.json").read_text())
    assert index["recipes"] == training_commands()
    recipes = {"bat-digits-cnn-linf": "train it", "bat-cifar10-vgg16-l2": "python -m paper table1 --train-only"}
    (home / "index.json").write_text(json.dumps({**index, "recipes": recipes}))
    monkeypatch.setattr(zoo, "HOME", home)
    return home


def test_an_ensemble_is_loaded_by_name(own_zoo: Path, tmp_path: Path) -> None:
    found, original = load_ensemble("zoo:tiny"), load_ensemble(tmp_path / "pair")
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(found.logits(x), original.logits(x))
    assert found.alpha.tolist() == [0.9, 0.1]
    (entry,) = zoo.entries()
    assert entry.provenance == {"method": "bat", "device": "a CPU"}
    assert ensemble_folder("some/folder") == Path("some/folder")
    assert ensemble_folder("zoo:tiny") == own_zoo / "tiny"


def test_a_corrupted_file_is_refused(own_zoo: Path) -> None:
    weights = own_zoo / "tiny" / "member_1.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"tiny/member_1.safetensors is corrupt"):
        load_ensemble("zoo:tiny")
    with pytest.raises(InputError, match=r"zoo:tiny: member_1.safetensors is corrupt"):
        zoo.verify("tiny")
    weights.unlink()
    with pytest.raises(InputError, match=r"zoo:tiny lacks member_1.safetensors"):
        zoo.verify("tiny")
    with pytest.raises(InputError, match=r"tiny/member_1.safetensors does not exist"):
        load_ensemble("zoo:tiny")
    (own_zoo / "tiny" / "ensemble.json").write_text("{}")
    with pytest.raises(InputError, match=r"zoo:tiny: ensemble.json is corrupt"):
        load_ensemble("zoo:tiny")


def test_each_weights_file_is_read_and_hashed_once(own_zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read_bytes, read_plain = Path.read_bytes, weights.read_plain
    monkeypatch.setattr(Path, "read_bytes", lambda self: (reads.append(self.name), read_bytes(self))[1])
    monkeypatch.setattr(weights, "read_plain", lambda path: (reads.append(path.name), read_plain(path))[1])
    load_ensemble("zoo:tiny")
    assert sorted(reads) == ["ensemble.json", "member_0.safetensors", "member_1.safetensors"]


def test_unknown_names_and_a_damaged_index(own_zoo: Path) -> None:
    with pytest.raises(InputError, match=r"unknown ensemble of the zoo 'tyny' \(did you mean 'tiny'\?\)"):
        load_ensemble("zoo:tyny")
    (own_zoo / "index.json").write_text("{")
    with pytest.raises(InputError, match="is damaged"):
        zoo.entries()
    (own_zoo / "index.json").unlink()
    assert zoo.entries() == []


def test_adding_again_replaces(own_zoo: Path, tmp_path: Path) -> None:
    add(tmp_path / "pair", "tiny", "another title", "m", "paper", own_zoo)
    add(tmp_path / "pair", "also", "b", "m", "paper", own_zoo)
    assert [(e.name, e.recipe) for e in zoo.entries()] == [("also", "paper"), ("tiny", "paper")]


@pytest.mark.parametrize("weights", ["../stolen.pt", "/etc/hostname", "..", ""])
def test_nothing_is_copied_out_of_the_zoo(weights: str, own_zoo: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    evil.mkdir()
    (tmp_path / "stolen.pt").write_text("x")
    (evil / "ensemble.json").write_text(json.dumps({"members": [{"weights": weights}]}))
    before = sorted(own_zoo.rglob("*"))
    with pytest.raises(InputError, match="would lie outside the zoo"):
        add(evil, "new", "t", "m", "r", own_zoo)
    with pytest.raises(InputError, match="would lie outside the zoo"):
        add(tmp_path / "pair", "../new", "t", "m", "r", own_zoo)
    assert sorted(own_zoo.rglob("*")) == before


def test_the_command_line_evaluates_and_lists(own_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "evaluate zoo:tiny --data digits --eps 0.1 --attack arc --steps 2 --limit 5 --quiet --json --device cpu"
    assert run(words.split()) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 5
    assert run(["zoo", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in told["ensembles"]] == ["tiny"]
    assert told["made_by_recipe"] == {"bat-cifar10-vgg16-l2": "python -m paper table1 --train-only"}
    assert run(["evaluate", "zoo:none", "--data", "digits", "--eps", "0.1"]) == 2
    assert run(["zoo", "list"]) == 0


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_is_intact(name: str) -> None:
    entry = next(entry for entry in zoo.entries() if entry.name == name)
    ensemble = load_ensemble(f"zoo:{name}")
    assert set(entry.files) == {path.name for path in zoo.folder(name).iterdir()}
    shape = (1, 8, 8) if name.endswith("digits") else (3, 32, 32)
    assert ensemble.logits(torch.rand(2, *shape)).shape == (len(ensemble), 2, 10)
    assert entry.provenance["method"] and entry.provenance["device"]
    assert sum((zoo.folder(name) / file).stat().st_size for file in entry.files) < 3e6


def test_the_promised_ensembles_are_shipped() -> None:
    assert {f"{kind}-resnet20-{norm}" for kind in ("at", "bat", "iat") for norm in ("linf", "l2")} <= set(SHIPPED)
