"""Ensemble folders: exact round trips, nothing half-written, and a clear line for every kind of damage."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recarc.ensemble import RandomizedEnsemble
from recarc.errors import InputError
from recarc.models import build, load_ensemble, read_manifest, save_ensemble
from recarc.models.store import check_target


def small(seed: int = 0, classes: int = 10, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return build("cnn", classes, channels=1, image_size=8, mean=[0.3], std=[0.4], width=4, **options)


@pytest.fixture
def ensemble() -> RandomizedEnsemble:
    return RandomizedEnsemble([small(0), small(1, batch_norm=True)], [0.9, 0.1])


@pytest.fixture
def folder(ensemble: RandomizedEnsemble, tmp_path: Path) -> Path:
    return save_ensemble(ensemble, tmp_path / "rec")


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "ensemble.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_ensemble(folder)
    assert "\n" not in str(caught.value)


def test_round_trip_is_exact(ensemble: RandomizedEnsemble, tmp_path: Path) -> None:
    folder = save_ensemble(ensemble, tmp_path / "a" / "rec", made_by={"command": "train", "seed": 3})
    again = load_ensemble(folder)
    x = torch.rand(4, 1, 8, 8)
    for old, new in zip(ensemble.members, again.members):
        assert isinstance(new, nn.Module) and not new.training
        assert new.spec == old.spec
        assert torch.equal(old.eval()(x), new(x))
    assert torch.equal(again.alpha, ensemble.alpha)
    assert read_manifest(folder).made_by == {"command": "train", "seed": 3}
    assert sorted(p.name for p in folder.iterdir()) == [
        "ensemble.json", "member_0.safetensors", "member_1.safetensors"
    ]  # fmt: skip
    assert [p.name for p in folder.parent.iterdir()] == ["rec"]


@pytest.mark.parametrize("count", [3, 6, 7, 11])
def test_alpha_comes_back_to_the_last_bit(count: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(count)
    member = build("linear", 2, channels=1, image_size=1)
    for i in range(5):
        alpha = torch.rand(count, generator=generator, dtype=torch.float64)
        rec = RandomizedEnsemble([member] * count, alpha / alpha.sum())
        assert torch.equal(load_ensemble(save_ensemble(rec, tmp_path / str(i))).alpha, rec.alpha)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    rec = RandomizedEnsemble([small(batch_norm=True).to(dtype)])
    (member,) = load_ensemble(save_ensemble(rec, tmp_path / "rec")).members
    x = torch.rand(2, 1, 8, 8, dtype=dtype)
    assert torch.equal(member(x), rec.members[0].eval()(x))


def test_mixed_precision_is_kept(tmp_path: Path) -> None:
    model = small(batch_norm=True)
    model.net.fc.double()
    (member,) = load_ensemble(save_ensemble(RandomizedEnsemble([model]), tmp_path / "rec")).members
    assert member.net.fc.weight.dtype == torch.float64
    assert member.net.conv1.weight.dtype == torch.float32


def test_loading_leaves_the_random_state_alone(folder: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_ensemble(folder)
    assert torch.equal(torch.rand(3), expected)


class Compiled(nn.Module):
    """What torch.compile returns, without the seconds it takes to import the compiler."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod, self.spec = inner, inner.spec


def test_compiled_and_parallel_members_are_saved_as_what_they_wrap(tmp_path: Path) -> None:
    inner = small()
    wrapped = nn.DataParallel(inner)  # moves the model to the GPU on a machine with one
    wrapped.spec = inner.spec
    compiled = Compiled(small(1).to(inner.net.fc.weight.device))
    folder = save_ensemble(RandomizedEnsemble([wrapped, compiled]), tmp_path / "rec")
    loaded = load_ensemble(folder, device="cpu")
    assert torch.equal(loaded.members[0].net.fc.weight, inner.net.fc.weight.cpu())
    assert torch.equal(loaded.members[1].net.fc.weight, small(1).net.fc.weight)


# Saving ------------------------------------------------------------------------------------------------


def test_a_folder_with_anything_in_it_is_refused(ensemble: RandomizedEnsemble, tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    save_ensemble(ensemble, tmp_path / "rec")  # empty: fine
    with pytest.raises(InputError, match="rec is not empty: choose another path or pass overwrite=True"):
        save_ensemble(ensemble, tmp_path / "rec")


def test_overwriting_replaces_the_whole_folder(ensemble: RandomizedEnsemble, folder: Path) -> None:
    save_ensemble(RandomizedEnsemble([small(7)]), folder, overwrite=True)
    assert len(load_ensemble(folder)) == 1
    assert sorted(p.name for p in folder.iterdir()) == ["ensemble.json", "member_0.safetensors"]
    assert [p.name for p in folder.parent.iterdir()] == ["rec"]


def test_overwriting_never_costs_other_files(ensemble: RandomizedEnsemble, folder: Path, tmp_path: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"also holds 'notes.txt', so it is not overwritten"):
        save_ensemble(ensemble, folder, overwrite=True)
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "cat.jpg").write_text("miau")
    with pytest.raises(InputError, match=r"photos is not overwritten, because it may hold something else"):
        save_ensemble(ensemble, photos, overwrite=True)
    assert (photos / "cat.jpg").exists()
    with pytest.raises(InputError, match="exists and is not a folder"):
        save_ensemble(ensemble, photos / "cat.jpg", overwrite=True)
    with pytest.raises(InputError, match="give it a name"):
        check_target(Path("/"), overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_leaves_nothing_behind(
    overwrite: bool, ensemble: RandomizedEnsemble, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    target = folder if overwrite else folder.parent / "new"
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device; nothing was saved"):
        save_ensemble(ensemble, target, overwrite=overwrite)
    assert [p.name for p in folder.parent.iterdir()] == ["rec"]
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_failed_rename_brings_the_old_folder_back(
    ensemble: RandomizedEnsemble, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, calls = Path.rename, []

    def second_fails(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(InputError, match="cannot write"):
        save_ensemble(ensemble, folder, overwrite=True)
    assert len(load_ensemble(folder)) == 2
    assert [p.name for p in folder.parent.iterdir()] == ["rec"]


def test_members_that_cannot_be_rebuilt_are_refused(tmp_path: Path) -> None:
    for member in (nn.Linear(3, 2), lambda x: x):
        with pytest.raises(InputError, match=r"member 0 \(\w+\) does not say how to rebuild it: .*with_factory"):
            save_ensemble(RandomizedEnsemble([member]), tmp_path / "rec")
    changed = small()
    changed.net.fc = nn.Linear(128, 5)
    with pytest.raises(
        InputError, match=r"member 0 does not fit its own description \(cnn\): 'net.fc.weight' has shape"
    ):
        save_ensemble(RandomizedEnsemble([changed]), tmp_path / "rec")
    with pytest.raises(InputError, match=r"different numbers of classes: \[10, 3\]"):
        save_ensemble(RandomizedEnsemble([small(), small(classes=3)]), tmp_path / "rec")
    with pytest.raises(InputError, match="must be plain JSON values"):
        save_ensemble(RandomizedEnsemble([small()]), tmp_path / "rec", made_by={"when": object()})
    with pytest.raises(InputError, match="must be plain JSON values"):
        save_ensemble(RandomizedEnsemble([small()]), tmp_path / "rec", made_by={"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


# Loading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="zip"), "format is 'zip', expected 'recarc-ensemble'"),
        (lambda d: d.update(format_version=2), r"format_version 2 is newer than this recarc reads \(1\): upgrade"),
        (lambda d: d.update(format_version="1"), "format_version is '1', expected 1"),
        (lambda d: d.update(alfa=[1]), "the document has the unknown key 'alfa'; known: alpha"),
        (lambda d: d.pop("alpha"), "alpha must be a list of probabilities, got None"),
        (lambda d: d.update(alpha=[0.5]), "alpha has 1 values for 2 members"),
        (lambda d: d.update(alpha=[0.5, "x"]), "alpha must be a list of numbers"),
        (lambda d: d.update(alpha=[0.5, 0.6]), r"ensemble.json: alpha sums to 1.1, not 1"),
        (lambda d: d.update(alpha=[1.5, -0.5]), r"alpha must be probabilities >= 0"),
        (lambda d: d.update(members=[]), "members is empty"),
        (lambda d: d.update(members={}), "members must be a list"),
        (lambda d: d.update(made_by=3), "made_by must be a JSON object"),
        (lambda d: d["members"].__setitem__(0, 3), "member 0: it must be a JSON object, got 3"),
        (lambda d: d["members"][1].update(architecture="cmm"), "member 1 of .*rec: unknown architecture 'cmm'"),
        (lambda d: d["members"][1].update(architecture=7), "architecture must be a name, got 7"),
        (lambda d: d["members"][1].update(colour="red"), "member 1: it has the unknown key 'colour'"),
        (lambda d: d["members"][1].update(factory="a:b"), "exactly one of 'architecture' and 'factory'"),
        (lambda d: d["members"][1].pop("classes"), "member 1: classes is missing"),
        (lambda d: d["members"][1].update(classes=None), "member 1: classes is missing"),
        (lambda d: d["members"][1].update(classes=9), r"different numbers of classes: \[10, 9\]"),
        (lambda d: d["members"][1].update(classes=10**30), "member 1: classes must be an integer from 2 to 1000000"),
        (lambda d: d["members"][0].update(image_size=10_000), r"expected \(10, 200000000\)"),
        (lambda d: d.update(alpha=[10**400, 0]), "alpha must be a list of numbers"),
        (lambda d: d["members"][1].update(mean="dark"), "member 1: mean must be a list of 1 numbers, got 'dark'"),
        (lambda d: d["members"][1].update(std=[0.0]), "member 1: std must be positive"),
        (lambda d: d["members"][1].update(options=[]), "options must be a JSON object"),
        (lambda d: d["members"][1].update(weights="../x.safetensors"), "must name a file inside the folder"),
        (lambda d: d["members"][1].update(weights="x.pkl"), "must end in .safetensors, .pt or .pth"),
        (lambda d: d["members"][1].update(weights="x.pt"), r"x.pt does not exist"),
        (lambda d: d["members"][1].update(precision="int4"), "precision is 'int4', expected float32 or float64"),
        (lambda d: d["members"][1].update(precision=[]), r"precision is \[\], expected float32 or float64"),
        (lambda d: d["members"][1].update(sha256="abc"), "64 hexadecimal digits that `sha256sum member_1.safetensors`"),
        (lambda d: d["members"][1].update(sha256="0" * 64), r"corrupt or was replaced: its SHA-256 is"),
        (lambda d: d["members"][0].update(image_size=9), r"does not fit cnn: 'net.fc.weight' has shape \(10, 128\)"),
        (
            lambda d: d["members"][1]["options"].update(batch_norm=False),
            r"does not fit cnn: unexpected 'net.bn1.bias'; .*; and 2 more$",
        ),
        (lambda d: d["members"][0]["options"].update(batch_norm=True), r"missing 'net.bn1.weight'"),
    ],
)
def test_an_edited_description_gets_one_clear_line(
    change: Callable[[dict[str, Any]], Any], message: str, folder: Path
) -> None:
    edit(folder, change)
    refused(folder, message)


def test_damaged_folders_get_one_clear_line(folder: Path, tmp_path: Path) -> None:
    text = (folder / "ensemble.json").read_text()
    for broken in (text[:-30], "", "\x00", text.replace("0.9", "NaN"), "[" * 100_000):
        (folder / "ensemble.json").write_text(broken)
        refused(folder, "ensemble.json is not valid JSON")
    (folder / "ensemble.json").write_bytes(b"\xff\xfe\x00")
    refused(folder, "ensemble.json is not valid JSON")
    (folder / "ensemble.json").write_text("[1]")
    refused(folder, "the document must be a JSON object")
    (folder / "ensemble.json").unlink()
    refused(folder, "it has no ensemble.json")
    os.mkfifo(folder / "ensemble.json")  # reading it would wait for ever
    refused(folder, "cannot read .*ensemble.json: not a plain file")
    refused(tmp_path / "nowhere", "nowhere is not an ensemble folder")


def test_a_truncated_or_missing_weights_file(folder: Path) -> None:
    path = folder / "member_1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, r"member_1.safetensors is corrupt or was replaced")
    path.unlink()
    refused(folder, r"member_1.safetensors does not exist")
    path.mkdir()
    refused(folder, r"cannot read .*member_1.safetensors: Is a directory")


def test_unknown_or_absent_devices(folder: Path) -> None:
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        load_ensemble(folder, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device 'cuda' is not available here"):
            load_ensemble(folder, device="cuda")
