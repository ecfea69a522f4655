"""Other people's checkpoints: every container and naming that is claimed, and what bad files get."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recarc.errors import InputError, RecarcWarning
from recarc.models import FORMATS, build, import_checkpoint, load_ensemble, read_manifest
from recarc.models.importers import NORMALISATIONS, CheckpointFormat, PublicFile, matching
from recarc.models.importers.matching import Wanted, fitting_spec, registry_names
from tiny import Malicious

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
DVERGE = SHARED / "dverge" / "3_ResNet20_eps_0.07_seed_0.pth"
State = dict[str, Tensor]


def net_state(arch: str = "resnet20", classes: int = 10, seed: int = 0, **options: Any) -> State:
    """The weights as another code base would have them: without our `net.` prefix."""
    torch.manual_seed(seed)
    return build(arch, classes, **options).net.state_dict()


def prefixed(state: State, prefix: str) -> State:
    return {prefix + key: value for key, value in state.items()}


def renamed(state: State, *pairs: tuple[str, str]) -> State:
    for old, new in pairs:
        state = {re.sub(old, new, key): value for key, value in state.items()}
    return state


def saved(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def dverge_member(seed: int) -> State:
    mean, std = NORMALISATIONS["cifar10"] or ((), ())
    normaliser = {"normalizer.mean": torch.tensor(mean), "normalizer.std": torch.tensor(std)}
    return {**prefixed(net_state(seed=seed, shortcut="conv"), "model."), **normaliser}


def logits_of(state: State, arch: str, x: Tensor, **options: Any) -> Tensor:
    model = build(arch, 10, **options)
    model.net.load_state_dict(state)
    with torch.no_grad():
        return model.eval()(x)


@pytest.mark.parametrize(("format", "key"), [("dverge", "model{}"), ("adp", "model_{}"), ("gal", "{}")])
def test_dverge_old_and_new_keys(format: str, key: str, tmp_path: Path) -> None:
    members = {key.format(i): dverge_member(i) for i in range(3)}
    file = saved(tmp_path / "epoch_200.pth", dict(reversed(list(members.items()))))
    imported = import_checkpoint(format, file, tmp_path / "rec")
    assert imported.alpha == (1 / 3,) * 3
    assert imported.members[0].options == {"shortcut": "conv", "width": 16}
    assert imported.members[0].mean == (0.4914, 0.4822, 0.4465)  # shortest decimals, not 0.49140000343322754
    ensemble = load_ensemble(tmp_path / "rec")
    for i, member in enumerate(ensemble.members):
        assert torch.equal(member.net.conv1.weight, members[key.format(i)]["model.conv1.weight"])
    made_by = read_manifest(tmp_path / "rec").made_by
    assert made_by["import"] == "dverge" and made_by["files"][0]["name"] == "epoch_200.pth"
    assert "3 members (resnet20), alpha 0.333333" in imported.summary()


def test_arc_folder_with_wrappers_and_prefixes(tmp_path: Path) -> None:
    states = [net_state("cnn", seed=i) for i in range(11)]
    for i, state in enumerate(states):
        wrap: Callable[[State], object] = (
            lambda s: s,
            lambda s: {"state_dict": prefixed(s, "module."), "epoch": 3},
            lambda s: {"model": s, "optimizer": {"lr": 0.1}},
            lambda s: {"net": prefixed(s, "module.")},
        )[i % 4]
        saved(tmp_path / "bat" / f"model_{i}.pt", wrap(renamed(state, ("^fc", "linear"))))
    (tmp_path / "bat" / "args.txt").write_text("--epochs 200")
    alpha = [0.5, *[0.05] * 10]
    imported = import_checkpoint("arc", tmp_path / "bat", tmp_path / "rec", normalisation="none", alpha=alpha)
    assert imported.alpha == pytest.approx(alpha) and imported.alpha_from == "argument"
    for i, member in enumerate(load_ensemble(tmp_path / "rec").members):  # 10 comes after 9, not after 1
        assert torch.equal(member.net.conv1.weight, states[i]["conv1.weight"])


def test_barre_alpha_in_the_file(tmp_path: Path) -> None:
    content = {"models": [net_state(seed=0), net_state(seed=1)], "alpha": torch.tensor([0.9, 0.1])}
    file = saved(tmp_path / "b.pt", content)
    imported = import_checkpoint("barre", file, tmp_path / "rec", normalisation="cifar10")
    assert imported.alpha == (0.9, 0.1) and imported.alpha_from == "file"
    file = saved(tmp_path / "b.pt", {**content, "alpha": [0.8, 0.2]})
    assert import_checkpoint("barre", file, tmp_path / "rec2", normalisation="cifar10").alpha == (0.8, 0.2)


@pytest.mark.parametrize("container", ["list", "dict", "integers", "flat", "files"])
def test_trs_containers(container: str, tmp_path: Path) -> None:
    states = [prefixed(net_state(seed=i), "1.") for i in range(3)]
    flat = {f"module.models.{i}.{key}": value for i, s in enumerate(states) for key, value in s.items()}
    contents: dict[str, Any] = {
        "list": states,
        "dict": {"state_dict": {f"model{i}": s for i, s in enumerate(states)}},
        "integers": dict(enumerate(states)),
        "flat": flat,
    }
    file: Any = [saved(tmp_path / f"{i}.pth", s) for i, s in enumerate(states)]
    if container != "files":
        file = saved(tmp_path / "trs.pth", contents[container])
    imported = import_checkpoint("trs", file, tmp_path / "rec", mean=[0.5] * 3, std=[0.25] * 3)
    assert len(imported.members) == 3 and imported.members[0].mean == (0.5,) * 3


def test_robust_overfitting_is_normalised_outside_the_model(tmp_path: Path) -> None:
    state = renamed(net_state("preact_resnet18"), ("^fc", "linear"), ("downsample", "shortcut"))
    file = saved(tmp_path / "model_best.pth", {"state_dict": prefixed(state, "module."), "test_robust_acc": 0.53})
    (spec,) = import_checkpoint("robust_overfitting", file, tmp_path / "rec").members
    assert spec.architecture == "preact_resnet18"
    assert spec.std == (0.2471, 0.2435, 0.2616)


@pytest.mark.parametrize(
    ("arch", "options", "renames"),
    [
        ("resnet20", {"shortcut": "conv"}, [("downsample", "shortcut")]),
        ("wrn28_4", {}, [(r"^layer(\d)\.", r"block\1.layer."), (r"downsample\.0", "convShortcut")]),
        ("cnn", {"batch_norm": True}, []),
    ],
)
def test_the_architecture_is_found_and_gives_the_same_logits(
    arch: str, options: dict[str, Any], renames: list[tuple[str, str]], tmp_path: Path
) -> None:
    state = net_state(arch, **options)
    file = saved(tmp_path / "w.pt", renamed(state, *renames))
    (spec,) = import_checkpoint("plain", file, tmp_path / "rec", normalisation="none").members
    assert spec.architecture == arch
    assert {**spec.options, **options} == dict(spec.options)
    x = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        found = load_ensemble(tmp_path / "rec").members[0](x)
    assert torch.equal(found, logits_of(state, arch, x, **options))


@pytest.mark.parametrize(
    ("arch", "options", "renames"),
    [
        ("resnet18", {}, [("^fc", "linear"), ("downsample", "shortcut")]),
        ("resnet18", {"stem": "imagenet"}, []),
        ("preact_resnet18", {}, [("^fc", "linear"), ("downsample", "shortcut")]),
        ("vgg16", {}, [("^fc", "classifier")]),
        ("mobilenetv1", {}, [("^fc", "linear")]),
    ],
)
def test_large_architectures_are_found_by_names_and_shapes(
    arch: str, options: dict[str, Any], renames: list[tuple[str, str]]
) -> None:
    with torch.device("meta"):
        state = net_state(arch, **options)
    spec = fitting_spec(registry_names(renamed(state, *renames)), Wanted(), "w.pt")
    assert spec.architecture == arch
    assert {**spec.options, **options} == dict(spec.options)
    assert spec.image_size == (224 if options.get("stem") == "imagenet" else 32)


def test_old_checkpoints_without_batch_counters(tmp_path: Path) -> None:
    state = {key: value for key, value in net_state().items() if "num_batches" not in key}
    import_checkpoint("plain", saved(tmp_path / "w.pt", state), tmp_path / "rec", normalisation="none")


def test_own_weights_files_and_named_architectures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("linear", 10, channels=1, image_size=8)
    file = saved(tmp_path / "w.pt", {"weight": model.net.fc.weight.detach(), "bias": model.net.fc.bias.detach()})
    with pytest.raises(InputError, match=r"w.pt does not fit linear: 'net.fc.weight' has shape \(10, 64\), expected"):
        import_checkpoint("plain", file, tmp_path / "rec", architecture="linear", normalisation="none")
    imported = import_checkpoint(
        "plain", file, tmp_path / "rec", architecture="linear", channels=1, image_size=8, normalisation="none"
    )
    assert imported.members[0].channels == 1
    again = tmp_path / "rec" / "member_0.safetensors"
    import_checkpoint(
        "plain", again, tmp_path / "rec2", architecture="linear", channels=1, image_size=8, normalisation="none"
    )


# Bad input ---------------------------------------------------------------------------------------------


def refused(message: str, out: Path, format: str, file: Any, **options: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        import_checkpoint(format, file, out, **options)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_mismatching_shapes_are_listed(tmp_path: Path) -> None:
    state = net_state()
    state["conv1.weight"] = torch.zeros(16, 3, 5, 5)
    del state["fc.bias"]
    state["extra"] = torch.zeros(1)
    file, out = saved(tmp_path / "w.pt", state), tmp_path / "rec"
    message = (
        r"w.pt does not fit resnet20 \(shortcut=identity, width=16\): missing 'net.fc.bias'; unexpected 'net.extra'; "
        r"'net.conv1.weight' has shape \(16, 3, 5, 5\), expected \(16, 3, 3, 3\)$"
    )
    refused(message, out, "trs", file, normalisation="none")
    refused(message, out, "plain", file, normalisation="none", architecture="resnet20")
    refused(
        "w.pt fits none of the registered architectures .* name one with arch", out, "plain", file, normalisation="none"
    )
    fine = saved(tmp_path / "fine.pt", net_state())
    refused(
        r"'net.fc.weight' has shape \(10, 64\), expected \(100, 64\)",
        out,
        "trs",
        fine,
        normalisation="none",
        classes=100,
    )
    refused("unknown architecture 'resnet19'", out, "plain", fine, normalisation="none", architecture="resnet19")
    named: dict[str, Any] = {"normalisation": "none", "architecture": "resnet20"}
    refused("unknown option of resnet20 'stem'", out, "plain", fine, **named, options={"stem": "cifar"})
    refused("unknown shortcut 'B'", out, "plain", fine, **named, options={"shortcut": "B"})
    refused("options .* belong to an architecture", out, "dverge", fine, options={"shortcut": "conv"})
    refused("classes must be an integer from 2 to 1000000, got 1", out, "plain", fine, **named, classes=1)


def test_members_of_different_class_counts(tmp_path: Path) -> None:
    file = saved(tmp_path / "w.pt", [net_state(), net_state(classes=4)])
    refused(r"different numbers of classes: \[10, 4\]", tmp_path / "rec", "trs", file, normalisation="none")


def test_normalisation_is_never_guessed(tmp_path: Path) -> None:
    out, file = tmp_path / "rec", saved(tmp_path / "w.pt", net_state())
    refused("w.pt does not hold the normalisation of its inputs, .* one of cifar10, ", out, "plain", file)
    refused("unknown normalisation 'cifar11'", out, "plain", file, normalisation="cifar11")
    refused(
        "either normalisation='none' or mean and std, not both", out, "plain", file, normalisation="none", mean=[0] * 3
    )
    refused("both mean and std", out, "plain", file, mean=[0.5] * 3)
    refused("mean must be 3 finite numbers", out, "plain", file, mean=[0.5], std=[0.5])
    dverge = saved(tmp_path / "d.pt", {"model0": dverge_member(0)})
    refused("holds its own normalisation", out, "dverge", dverge, normalisation="none")
    half = {key: value for key, value in dverge_member(0).items() if key != "normalizer.std"}
    refused("holds only the mean of its normalisation", out, "dverge", saved(tmp_path / "d.pt", {"model0": half}))


def test_alpha_is_never_guessed_where_it_matters(tmp_path: Path) -> None:
    out, file = tmp_path / "rec", saved(tmp_path / "w.pt", [net_state(seed=0), net_state(seed=1)])
    message = "barre ensembles have sampling probabilities of their own.* alpha= 2 numbers"
    refused(message, out, "barre", file, normalisation="none")
    refused("alpha must be 'uniform' or a list", out, "arc", file, normalisation="none", alpha="equal")
    refused("alpha sums to 1.1, not 1", out, "arc", file, normalisation="none", alpha=[0.5, 0.6])
    assert import_checkpoint("arc", file, out, normalisation="none", alpha="uniform").alpha == (0.5, 0.5)


def test_unrecognised_contents(tmp_path: Path) -> None:
    out = tmp_path / "rec"
    cases: dict[str, tuple[Any, str]] = {
        "numbers": ({"epoch": 3, "acc": 0.9}, "holds no recognisable state dict; its keys: 'epoch', 'acc'"),
        "empty": ({}, "holds no recognisable state dict; its keys: none"),
        "tensor": (torch.zeros(3), "holds a Tensor, expected state dicts of tensors"),
        "nothing": ([], "holds a list, expected state dicts of tensors"),
        "items": ([3], r"\(item 0\) holds a int, expected a state dict"),
        "values": ({"model0": 3}, r"\(key 'model0'\) holds a int, expected a state dict"),
        "gap": ({"model0": net_state(), "model2": net_state()}, r"holds members \[0, 2\]: some are missing"),
        "norm": ({"model0": {"normalizer.mean": torch.zeros(3)}}, "holds no weights"),
    }
    for name, (content, message) in cases.items():
        refused(message, out, "dverge", saved(tmp_path / f"{name}.pt", content))
    (tmp_path / "hollow").mkdir()
    refused(r"hollow holds no checkpoint file \(.safetensors, .pt", out, "arc", tmp_path / "hollow")
    refused("no checkpoint file was given", out, "arc", [])
    refused("absent.pt does not exist", out, "arc", tmp_path / "absent.pt")
    refused(r"unknown checkpoint format 'diverge' \(did you mean 'dverge'\?\); known: adp, arc", out, "diverge", "x.pt")


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_pickles_that_want_more_than_tensors_are_refused(format: str, tmp_path: Path) -> None:
    out, trace = tmp_path / "rec", tmp_path / "executed"
    file = saved(tmp_path / "evil.pt", {"model0": net_state(), "extra": Malicious(trace)})
    refused(
        r"evil.pt is a pickle that asks for '\w+.mkdir'; it was refused and nothing in it was ex", out, format, file
    )
    assert not trace.exists()
    file = saved(tmp_path / "args.pt", {"state_dict": net_state(), "args": argparse.Namespace(lr=0.1)})
    refused("args.pt is a pickle that asks for 'argparse.Namespace'; .* save model.state_dict", out, format, file)


def test_the_target_is_checked_first(tmp_path: Path) -> None:
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "mine").write_text("x")
    with pytest.raises(InputError, match="rec is not empty"):
        import_checkpoint("plain", tmp_path / "absent.pt", tmp_path / "rec")


def test_every_format_says_on_what_it_was_tried() -> None:
    assert all(item.about and item.tried_on for item in FORMATS.values())
    assert "no real file" in FORMATS["arc"].tried_on


@pytest.mark.skipif(not DVERGE.exists(), reason="the public DVERGE checkpoint is not beside the checkout")
def test_the_public_dverge_checkpoint(tmp_path: Path) -> None:
    imported = import_checkpoint("dverge", DVERGE, tmp_path / "rec")
    assert [spec.architecture for spec in imported.members] == ["resnet20"] * 3
    assert imported.members[0].std == (0.2023, 0.1994, 0.201)
    ensemble = load_ensemble(tmp_path / "rec")
    assert sum(p.numel() for p in ensemble.members[0].parameters()) == 272_474
    original = torch.load(DVERGE, map_location="cpu", weights_only=True)
    for i, member in enumerate(ensemble.members):
        for key, value in member.net.state_dict().items():
            assert torch.equal(value, original[f"model{i}"][f"model.{key}"])
    assert json.loads((tmp_path / "rec" / "ensemble.json").read_text())["alpha"] == [1 / 3] * 3


@pytest.mark.skipif(
    not DVERGE.exists() or not (Path(os.environ.get("RECARC_DATA", "")) / "cifar10" / "test.parquet").exists(),
    reason="needs the public DVERGE checkpoint and CIFAR-10 under RECARC_DATA",
)
def test_the_public_dverge_members_are_right_on_nine_images_in_ten(tmp_path: Path) -> None:
    import io

    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    rows = pq.read_table(Path(os.environ["RECARC_DATA"]) / "cifar10" / "test.parquet").slice(0, 200).to_pylist()
    images = np.stack([np.asarray(Image.open(io.BytesIO(row["img"]["bytes"]))) for row in rows])
    x, y = torch.from_numpy(images).permute(0, 3, 1, 2) / 255, torch.tensor([row["label"] for row in rows])
    import_checkpoint("dverge", DVERGE, tmp_path / "rec")
    accuracies = load_ensemble(tmp_path / "rec").correct(x, y).float().mean(1)
    assert (accuracies > 0.85).all()


def test_a_format_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CONTRIBUTING promises: importing, its errors and the choice of alpha follow from the entry."""
    mine = CheckpointFormat(
        "mine", "my own", "this test", architecture="cnn", normalisation="half", uniform=False, aliases=("me",)
    )
    monkeypatch.setitem(FORMATS, mine.name, mine)
    file = saved(tmp_path / "w.pt", [net_state("cnn", seed=0), net_state("cnn", seed=1)])
    refused("mine ensembles have sampling probabilities of their own", tmp_path / "rec", "me", file)
    imported = import_checkpoint("me", file, tmp_path / "rec", alpha=[0.7, 0.3])
    assert imported.format == "mine" and imported.members[0].mean == (0.5,) * 3
    refused(r"unknown checkpoint format 'mime' \(did you mean 'mine'\?\)", tmp_path / "no", "mime", file)


def test_a_checkpoint_that_contains_itself_is_refused(tmp_path: Path) -> None:
    loop: dict[str, Any] = {}
    loop["state_dict"] = loop
    with pytest.raises(InputError, match="contains itself"):
        import_checkpoint("plain", saved(tmp_path / "loop.pt", loop), tmp_path / "out")


@pytest.mark.parametrize(
    "content",
    [
        {"module." * 300_000 + "weight": torch.zeros(2)},
        {"model" + "9" * 5000: {"fc.weight": torch.zeros(2)}},
        {10**5000: {"fc.weight": torch.zeros(2)}},
        {"models": {10**5000: 1}},
    ],
)
def test_absurd_names_are_refused_in_one_line(content: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        import_checkpoint("plain", saved(tmp_path / "names.pt", content), tmp_path / "out")
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_small_files_of_large_tensors_and_pipes_are_refused(tmp_path: Path) -> None:
    repeated = saved(tmp_path / "repeated.pt", {"fc.weight": torch.zeros(1).expand(10**6, 10**4)})
    refused("describes tensors of", tmp_path / "out", "plain", repeated)
    sparse = torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.long), torch.ones(1), (10**6, 10**6))
    refused("not plain arrays", tmp_path / "out", "plain", saved(tmp_path / "sparse.pt", {"fc.weight": sparse}))
    os.mkfifo(tmp_path / "pipe.pt")
    refused("not a plain file", tmp_path / "out", "plain", tmp_path / "pipe.pt")
    plain = saved(tmp_path / "plain.pt", {"fc.weight": torch.zeros(10**6)})
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    refused("unpack to", tmp_path / "out", "plain", tmp_path / "packed.pt")


def test_a_published_file_is_recognised_and_a_changed_copy_is_not(tmp_path: Path, monkeypatch: Any) -> None:
    file = saved(tmp_path / "public.pt", dverge_member(0))
    known = PublicFile("the public file", file.name, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(matching, "PUBLIC_FILES", (known,))
    assert "this is the public file" in import_checkpoint("dverge", file, tmp_path / "same").summary()
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1  # within a tensor
    for name in ("public.pt", "renamed.pt"):
        (tmp_path / name).write_bytes(changed)
        with pytest.warns(RecarcWarning, match="differs from the public file"):
            imported = import_checkpoint("dverge", tmp_path / name, tmp_path / f"out {name}")
        assert "public" not in imported.summary().partition("->")[0]


@pytest.mark.skipif(not DVERGE.exists(), reason="the public DVERGE checkpoint is not beside the checkout")
def test_the_public_dverge_checkpoint_is_known(tmp_path: Path) -> None:
    summary = import_checkpoint("dverge", DVERGE, tmp_path / "rec").summary()
    assert summary.startswith("this is the public DVERGE checkpoint")
