"""Ensembles on the Hub: pushed into and loaded from a folder laid out as the Hub's own cache, without a network."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recarc import Ball, InputError, RandomizedEnsemble, evaluate, load_ensemble
from recarc.attacks import Tight
from recarc.evaluation import RecarcWarning
from recarc.models import build
from recarc.models.hub import snapshot

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an unreachable network, and an upload that goes into the cache as a download would."""
    from huggingface_hub import constants

    def upload_folder(repo_id: str, folder_path: Path, commit_message: str) -> Any:
        files = {file.name: file.read_bytes() for file in Path(folder_path).iterdir()}
        oid = hashlib.sha1(b"".join(files.values())).hexdigest()
        place = tmp_path / f"models--{repo_id.replace('/', '--')}"
        for part in ("blobs", "refs", f"snapshots/{oid}"):
            (place / part).mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            digest = hashlib.sha256(data).hexdigest()
            (place / "blobs" / digest).write_bytes(data)
            os.symlink(f"../../blobs/{digest}", place / "snapshots" / oid / name)
        (place / "refs/main").write_text(oid)
        return SimpleNamespace(oid=oid)

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    api = SimpleNamespace(create_repo=lambda *a, **k: None, upload_folder=upload_folder)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    snapshot.cache_clear()
    return tmp_path


def small() -> RandomizedEnsemble:
    torch.manual_seed(0)
    return RandomizedEnsemble([build("linear", 10, 1, 8).eval() for _ in range(2)], [0.75, 0.25])


def test_what_is_pushed_is_loaded_by_its_commit(hub: Path) -> None:
    ensemble, x = small(), torch.rand(20, 1, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        y = ensemble.members[0](x).argmax(1)
        result = evaluate(ensemble, Tight("quick", steps=2), (x, y), Ball("linf", 0.05), progress=False)
    pinned = ensemble.push_to_hub("lab/pair", result=result)
    assert pinned.startswith("hf:lab/pair@") and len(pinned) == len("hf:lab/pair@") + 40
    loaded = load_ensemble(pinned)
    assert torch.equal(loaded.members[1](x), ensemble.members[1](x)) and loaded.alpha.tolist() == [0.75, 0.25]
    card = (hub / "models--lab--pair" / "snapshots" / pinned.partition("@")[2] / "README.md").read_text()
    assert str(result.robust) in card and result.verdict is not None and result.verdict.sentence in card
    assert "| 0 | 0.75 | linear |" in card and card.startswith("---\nlibrary_name: recarc\n")
    with pytest.warns(RecarcWarning, match=rf"hf:lab/pair is at {pinned[-40:]} now; pin it: {pinned}"):
        load_ensemble("hf:lab/pair")
    small().push_to_hub("lab/two")
    (other,) = hub.glob("models--lab--two/snapshots/*/README.md")
    assert "Not evaluated yet" in other.read_text()


def test_a_file_that_was_replaced_is_refused(hub: Path) -> None:
    pinned = small().push_to_hub("lab/pair")
    blobs = hub / "models--lab--pair" / "blobs"
    largest = max(blobs.iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(b"something else")
    with pytest.raises(InputError, match="is corrupt or was replaced"):
        load_ensemble(pinned)


def test_one_line_without_a_network_a_name_or_the_library(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"^cannot get hf:nobody/nothing: [^\n]+$"):
        load_ensemble("hf:nobody/nothing")
    with pytest.raises(InputError, match="is not of the form hf:user/name"):
        load_ensemble("hf:nothing")
    with pytest.raises(InputError, match="expected user/name"):
        small().push_to_hub("nothing")

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(create_repo=fail))
    with pytest.raises(InputError, match=r"^cannot push to lab/pair: no route to host$"):
        small().push_to_hub("lab/pair")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"install recarc\[hub\]"):
        load_ensemble("hf:lab/pair")
