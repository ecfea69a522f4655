"""Architectures: published parameter counts, shapes, normalisation inside, and what bad input gets."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import recarc.models
from recarc.errors import InputError
from recarc.models import ModelSpec, build, names
from recarc.models.architectures.wrn28_4 import WideResNet


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("arch", "classes", "options", "published"),
    [
        ("resnet20", 10, {}, 269_722),  # He et al. 2016, Table 6: 0.27M
        ("resnet20", 10, {"shortcut": "conv"}, 272_474),  # the public DVERGE members
        ("resnet18", 10, {}, 11_173_962),
        ("resnet18", 1000, {"stem": "imagenet"}, 11_689_512),  # 11.7M
        ("preact_resnet18", 10, {}, 11_172_170),
        ("vgg16", 10, {}, 14_728_266),  # 14.7M
        ("mobilenetv1", 10, {}, 3_217_226),  # 3.2M
        ("mobilenetv1", 1000, {"stem": "imagenet"}, 4_231_976),  # Howard et al. 2017, Table 8: 4.2M
    ],
)
def test_parameter_counts_are_the_published_ones(
    arch: str, classes: int, options: dict[str, Any], published: int
) -> None:
    with torch.device("meta"):
        assert parameters(build(arch, classes, **options)) == published


@pytest.mark.parametrize(
    ("depth", "widen", "millions"), [(40, 1, 0.6), (40, 2, 2.2), (40, 4, 8.9), (16, 8, 11.0), (28, 10, 36.5)]
)
def test_wide_resnets_have_the_sizes_of_their_paper(depth: int, widen: int, millions: float) -> None:
    with torch.device("meta"):  # Zagoruyko and Komodakis 2016, Tables 4 and 5
        assert round(parameters(WideResNet(10, 3, depth, widen)) / 1e6, 1) == pytest.approx(millions, abs=0.051)


def test_wrn28_4_has_5_8_million_parameters() -> None:
    with torch.device("meta"):
        assert parameters(WideResNet(10, 3, 28, 10)) == 36_479_194
        count = parameters(build("wrn28_4", 10))
    assert count == 5_849_050
    # By hand: stem, (2 convolutions + norms) a block, 1x1 shortcuts, last norm, head.
    stages = [(16, 64), (64, 128), (128, 256)]
    blocks = sum(9 * i * o + 9 * o * o + 2 * i + 2 * o + i * o + 3 * (18 * o * o + 4 * o) for i, o in stages)
    assert count == 3 * 16 * 9 + blocks + 2 * 256 + 257 * 10


@pytest.mark.parametrize("arch", names())
@pytest.mark.parametrize("channels", [1, 3])
def test_every_architecture_maps_images_to_logits(arch: str, channels: int) -> None:
    model = build(arch, 7, channels=channels, image_size=32, mean=[0.4] * channels, std=[0.2] * channels).eval()
    with torch.no_grad():
        logits = model(torch.rand(2, channels, 32, 32))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    assert isinstance(model.spec, ModelSpec)
    assert model.spec.architecture == arch


@pytest.mark.parametrize("arch", ["resnet18", "mobilenetv1"])
def test_imagenet_stems_take_larger_images(arch: str) -> None:
    model = build(arch, 5, image_size=64, stem="imagenet").eval()
    with torch.no_grad():
        assert model(torch.rand(1, 3, 64, 64)).shape == (1, 5)


@pytest.mark.parametrize("size", [1, 7, 8, 28])
def test_the_small_ones_take_any_size(size: int) -> None:
    for arch in ("cnn", "linear"):
        assert build(arch, 10, channels=1, image_size=size)(torch.rand(3, 1, size, size)).shape == (3, 10)


@pytest.mark.parametrize("size", [1, 7, 28, 32])
def test_the_cnn_can_be_made_cheaper_and_deeper(size: int) -> None:
    model = build("cnn", 10, channels=1, image_size=size, width=4, stride=2, hidden=5)
    assert model(torch.rand(3, 1, size, size)).shape == (3, 10)
    assert model.net.hidden.out_features == 5 and model.net.conv1.stride == (2, 2)
    assert build("cnn", 10, channels=1, image_size=size).net.hidden is None


def test_normalisation_is_inside() -> None:
    model = build("linear", 4, channels=2, image_size=3, mean=(0.1, 0.7), std=(0.5, 0.25))
    plain = build("linear", 4, channels=2, image_size=3)
    plain.load_state_dict(model.state_dict())  # the constants are not weights
    x = torch.rand(5, 2, 3, 3)
    by_hand = torch.stack([(x[:, 0] - 0.1) / 0.5, (x[:, 1] - 0.7) / 0.25], dim=1)
    torch.testing.assert_close(model(x), plain(by_hand))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_normalisation_follows_the_precision_of_the_model(dtype: torch.dtype) -> None:
    model = build("cnn", 3, channels=1, image_size=8, mean=[0.5], std=[0.3]).to(dtype)
    assert model(torch.rand(2, 1, 8, 8, dtype=dtype)).dtype == dtype


def test_option_a_shortcut_subsamples_and_pads_with_zeros() -> None:
    block = build("resnet20", 10).net.layer2[0]
    x = torch.rand(1, 16, 4, 4)
    out = block.downsample(x)
    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].abs().sum() == 0 == out[:, 24:].abs().sum()


def test_importing_the_package_is_light() -> None:
    for name in ("__init__", "registry", "architectures/__init__", "importers/__init__"):
        tree = ast.parse((Path(recarc.models.__file__).parent / f"{name}.py").read_text())
        imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        imported |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
        assert not any(str(module).startswith(("torch", "safetensors", "numpy")) for module in imported)


def test_names_are_exported() -> None:
    for name in recarc.models.__all__:
        assert getattr(recarc.models, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = recarc.models.nonsense


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "resnet21"}, r"unknown architecture 'resnet21' \(did you mean 'resnet20'\?\); known: cnn, linear"),
        ({"arch": "resnet18", "stem": "imagnet"}, r"unknown stem 'imagnet' \(did you mean 'imagenet'"),
        ({"arch": "resnet20", "shortcut": "C"}, "unknown shortcut 'C'; known: conv, identity"),
        ({"arch": "resnet18", "stam": "cifar"}, r"unknown option of resnet18 'stam' \(did you mean 'stem'"),
        ({"arch": "linear", "width": 3}, r"unknown option of linear 'width'; known: \(none\)"),
        ({"arch": "cnn", "width": 0}, "width must be an integer from 1 to 10000, got 0"),
        ({"arch": "cnn", "stride": 9}, "stride must be an integer from 1 to 8, got 9"),
        ({"arch": "cnn", "hidden": -1}, "hidden must be an integer from 0 to 10000, got -1"),
        ({"arch": "cnn", "batch_norm": "yes"}, "batch_norm must be true or false, got 'yes'"),
        ({"arch": "vgg16", "image_size": 28}, "image_size must be at least 32, got 28"),
        ({"arch": "cnn", "classes": 1}, "classes must be an integer from 2 to 1000000, got 1"),
        ({"arch": "cnn", "classes": True}, "classes must be an integer from 2 to 1000000, got True"),
        ({"arch": "cnn", "channels": 0}, "channels must be an integer from 1 to 10000, got 0"),
        ({"arch": "cnn", "image_size": 2.5}, "image_size must be an integer from 1 to 10000, got 2.5"),
        ({"arch": "cnn", "mean": [0.5] * 3}, "both mean and std"),
        (
            {"arch": "cnn", "mean": [0.5], "std": [0.5]},
            r"mean must be 3 finite numbers \(one per channel\), got \[0.5\]",
        ),
        ({"arch": "cnn", "mean": [0.5] * 3, "std": [0.5, 0, 1]}, "std must be positive in every channel"),
        ({"arch": "cnn", "mean": 0.5, "std": 0.5}, "mean must be a list of 3 numbers, got 0.5"),
        ({"arch": "cnn", "mean": ["a"] * 3, "std": [1] * 3}, "mean must be a list of 3 numbers"),
        ({"arch": "cnn", "mean": [float("nan")] * 3, "std": [1] * 3}, "mean must be 3 finite numbers"),
    ],
)
def test_bad_input_gets_one_clear_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        build(**{"classes": 10, **arguments})
    assert "\n" not in str(caught.value)


def test_images_of_another_shape_are_not_broadcast() -> None:
    model = build("cnn", 10)
    for shape in [(2, 1, 32, 32), (2, 3, 28, 28), (3, 32, 32)]:
        with pytest.raises(InputError, match=r"expects images of shape \(B, 3, 32, 32\), got"):
            model(torch.rand(shape))
