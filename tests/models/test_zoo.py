"""The zoo: what is shipped is intact, and what is not intact is refused."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
import torch

from paper.zoo import add, training_commands
from recarc import RandomizedEnsemble, load_ensemble, save_ensemble, zoo
from recarc.cli.app import run
from recarc.data import formats
from recarc.errors import InputError
from recarc.models import build, weights
from recarc.models.archive import add_archive
from recarc.models.store import ensemble_folder, read_manifest

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


def archived(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


@pytest.fixture()
def pair_files(own_zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of an ensemble folder, as an archive names them; what is added goes to a cache of its own."""
    monkeypatch.setenv("RECARC_CACHE", str(tmp_path / "cache"))
    return {f"pair/{path.name}": path.read_bytes() for path in (tmp_path / "pair").iterdir()}


def test_an_archive_is_added_by_command(
    pair_files: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = archived(tmp_path / "some.tgz", pair_files)
    assert run(["zoo", "add", str(file)]) == 0
    assert "zoo:pair: 2 x cnn (method bat, device a CPU, archive some.tgz" in capsys.readouterr().out
    found, original = load_ensemble("zoo:pair"), load_ensemble(tmp_path / "pair")
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(found.logits(x), original.logits(x))
    assert run(["zoo", "list", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [e["name"] for e in told["ensembles"]] == ["tiny"] and [e["name"] for e in told["added"]] == ["pair"]
    assert told["added"][0]["provenance"]["archive_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert run(["zoo", "add", str(file)]) == 2
    assert "zoo:pair exists: choose another name with --name" in capsys.readouterr().err
    assert run(["zoo", "add", str(file), "--name", "tiny"]) == 2, "what is shipped is not hidden"
    assert run(["zoo", "add", str(file), "--name", "other"]) == 0
    weights = tmp_path / "cache" / "zoo" / "pair" / "member_1.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(InputError, match=r"member_1.safetensors is corrupt.*add it again"):
        zoo.verify("pair")


def test_an_archive_with_anything_else_in_it_is_refused(
    pair_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = next(name for name in pair_files if name.endswith("_1.safetensors"))
    manifest = json.loads(pair_files["pair/ensemble.json"])
    code = [{"factory": "os:getcwd", **{k: m[k] for k in ("weights", "sha256")}} for m in manifest["members"]]
    own_code = {**pair_files, "pair/ensemble.json": json.dumps({**manifest, "members": code}).encode()}
    cases: list[tuple[dict[str, bytes], dict[str, str], str]] = [
        ({**pair_files, "pair/../../evil": b"x"}, {}, "not a file of one folder"),
        ({**pair_files, "/tmp/evil": b"x"}, {}, "not a file of one folder"),
        ({**pair_files, "pair/deep/evil": b"x"}, {}, "not a file of one folder"),
        ({**pair_files, "other/evil": b"x"}, {}, "more than one folder"),
        (pair_files, {"pair/link": "/etc/passwd"}, "as a link, a device, with holes or twice"),
        ({**pair_files, "./pair/ensemble.json": b"{}"}, {}, "as a link, a device, with holes or twice"),
        ({**pair_files, "pair/extra.txt": b"x"}, {}, "extra.txt is not named by ensemble.json"),
        ({name: pair_files[name] for name in pair_files if name != weights}, {}, "member_1.safetensors is missing"),
        ({**pair_files, weights: pair_files[weights][:-1] + b"x"}, {}, "is corrupt or was replaced"),
        (own_code, {}, "would import and run that code"),
        ({"pair/readme": b"x"}, {}, "holds no ensemble.json"),
    ]
    for k, (files, links, message) in enumerate(cases):
        with pytest.raises(InputError, match=message) as refused:
            add_archive(archived(tmp_path / f"{k}.tgz", files, links))
        assert "\n" not in str(refused.value) and str(refused.value).count(f"{k}.tgz") == 1
    (tmp_path / "noise.tgz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"cannot read .*noise\.tgz"):
        add_archive(tmp_path / "noise.tgz")
    with monkeypatch.context() as patch, pytest.raises(InputError, match=r"bomb\.tgz: .* bytes unpack to more than"):
        patch.setattr(formats, "MOST_BYTES", 2**16)
        add_archive(archived(tmp_path / "bomb.tgz", {**pair_files, "pair/zeros": bytes(2**22)}))
    whole = archived(tmp_path / "whole.tgz", pair_files)
    (tmp_path / "cut.tgz").write_bytes(whole.read_bytes()[:-200])
    with pytest.raises(InputError, match=r"cannot read .*cut\.tgz"):
        add_archive(tmp_path / "cut.tgz")
    with pytest.raises(InputError, match=r"'../evil' cannot name an ensemble"):
        add_archive(whole, "../evil")
    assert zoo.added() == [] and not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_shipped_is_intact(name: str) -> None:
    entry = next(entry for entry in zoo.entries() if entry.name == name)
    ensemble = load_ensemble(f"zoo:{name}")
    assert set(entry.files) == {path.name for path in zoo.folder(name).iterdir()}
    shape = (1, 8, 8) if name.endswith("digits") else (3, 32, 32)
    assert ensemble.logits(torch.rand(2, *shape)).shape == (len(ensemble), 2, 10)
    assert entry.provenance["method"] and entry.provenance["device"]
    assert all(v.dtype == torch.float32 for v in ensemble.state_dict().values() if v.is_floating_point())


def test_the_package_stays_small() -> None:
    sizes = [(zoo.folder(entry.name) / file).stat().st_size for entry in zoo.entries() for file in entry.files]
    assert sum(sizes) < 40e6


@pytest.mark.parametrize("half", [False, True])
def test_weights_can_be_shipped_with_fewer_digits(half: bool, own_zoo: Path, tmp_path: Path) -> None:
    rec = RandomizedEnsemble([build("cnn", 10, 1, 8, width=8, batch_norm=True) for _ in range(2)])
    add(save_ensemble(rec, tmp_path / "rec"), "pair", "a pair", "pair", "fast", own_zoo, half=half)
    loaded, x = load_ensemble("zoo:pair"), torch.rand(2, 1, 8, 8)
    for mine, theirs in zip(rec.members, loaded.members):
        assert torch.equal(mine.eval()(x), theirs(x)) == (not half)
        torch.testing.assert_close(mine(x), theirs(x), atol=1e-2, rtol=1e-2)
        assert {value.dtype for value in theirs.state_dict().values() if value.is_floating_point()} == {torch.float32}
    size = sum(path.stat().st_size for path in zoo.folder("pair").glob("*.safetensors"))
    assert size < 0.8 * sum(path.stat().st_size for path in (tmp_path / "rec").glob("*.safetensors")) or not half
    again = save_ensemble(loaded, tmp_path / "again")
    assert not read_manifest(again).members[0].precision, "saved as it computes"


def test_the_promised_ensembles_are_shipped() -> None:
    assert {f"{kind}-resnet20-{norm}" for kind in ("at", "bat", "iat") for norm in ("linf", "l2")} <= set(SHIPPED)
