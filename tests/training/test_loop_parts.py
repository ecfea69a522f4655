"""The parts of the loop against those of torch or a literal version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from small_training import small
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from recarc.data.held_out import held_out
from recarc.data.loading import load
from recarc.fast.fuse import FusedBlock, plain_convolve
from recarc.models.registry import build
from recarc.models.store import load_ensemble, read_manifest
from recarc.training import SpeedOptions, recipe_for, train
from recarc.training.batches import Augmentation, epoch_order, split
from recarc.training.method import StepContext
from recarc.training.methods import method_named
from recarc.training.methods.trs import gradient_of_gradient_norm
from recarc.training.optimizer import SGD, Adam, Average
from recarc.training.recipes import Recipe
from recarc.training.shadow_models import ShadowModels, foldable, frozen_copy
from recarc.training.speed_options import Execution, fit_to_method
from recarc.training.streams import side_by_side

CPU = torch.device("cpu")
FOLDED_AND_FUSED = SpeedOptions(bf16=True, fold=True, fuse=True)


def gradients(shapes: list[tuple[int, ...]], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_optimizers_do_what_torchs_do(kind: str) -> None:
    shapes: list[tuple[int, ...]] = [(3, 2), (4,), (2, 2, 2)]
    ours = gradients(shapes, 0)
    theirs = [nn.Parameter(w.clone()) for w in ours]
    reference: torch.optim.Optimizer
    if kind == "sgd":
        mine: SGD | Adam = SGD(ours, 0.9, 5e-4)
        reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=5e-4)
    else:
        mine, reference = Adam(ours, 1e-3), torch.optim.Adam(theirs, lr=0.1, weight_decay=1e-3)
    for step in range(5):
        lr, g = 0.1 / (step + 1), gradients(shapes, step + 1)
        mine.update(g, torch.tensor(lr))
        for group in reference.param_groups:
            group["lr"] = lr
        for w, value in zip(theirs, g):
            w.grad = value.clone()
        reference.step()
    for a, b in zip(ours, theirs):
        assert torch.allclose(a, b.detach(), atol=1e-5)


def test_the_average_holds_weights_and_running_statistics() -> None:
    model = build("cnn", 10, 1, 8, batch_norm=True, width=4)
    average = Average([model])
    names = [k for k, v in model.state_dict().items() if v.is_floating_point()]
    assert any("running_var" in name for name in names)
    expected = {k: model.state_dict()[k].clone() for k in names}
    for _ in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p))
        model(torch.rand(4, 1, 8, 8))
        average.update(torch.tensor(0.8))
        expected = {k: 0.8 * v + 0.2 * model.state_dict()[k] for k, v in expected.items()}
    for name, value in zip(names, average.mean):
        assert torch.allclose(value, expected[name], atol=1e-6)


def test_schedules() -> None:
    paper = recipe_for("paper", "at", "cifar10", "resnet20")
    rates = [paper.learning_rate(epoch * 10, 2000) for epoch in (0, 99, 100, 149, 150, 199)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cycle = Recipe(1, schedule="one-cycle", lr=0.4, warmup=0.25)
    all_rates = [cycle.learning_rate(s, 400) for s in range(400)]
    assert max(all_rates) == pytest.approx(0.4, rel=0.01) and all_rates.index(max(all_rates)) in (99, 100)
    assert 0 < all_rates[0] < 0.01 and 0 < all_rates[-1] < 0.01
    assert Recipe(1, schedule="constant").learning_rate(7, 9) == 0.1
    assert Recipe(1, ema=0.999).average_decay(0) == pytest.approx(0.1)
    assert Recipe(1, ema=0.999).average_decay(10**6) == 0.999


def test_the_papers_recipes() -> None:
    for data in ("svhn", "cifar10", "cifar100"):
        for arch in ("resnet20", "mobilenetv1"):
            recipe = recipe_for("paper", "at", data, arch)
            figures = (recipe.epochs, recipe.batch, recipe.lr, recipe.momentum, recipe.weight_decay, recipe.schedule)
            assert figures == (200, 128, 0.1, 0.9, 2e-4, "step")
            assert (recipe.attack_steps, recipe.attack_step, recipe.drops) == (7, 0.25, (0.5, 0.75))
    for arch in ("vgg16", "resnet18", "wrn28_4"):
        assert recipe_for("paper", "bat", "cifar10", arch).weight_decay == 5e-4
        assert recipe_for("paper", "bat", "cifar100", arch).weight_decay == 2e-4
    free = recipe_for("paper", "free", "imagenet", "resnet18")
    assert (free.epochs * free.replays, free.replays, free.batch, free.weight_decay) == (90, 4, 256, 1e-4)
    assert recipe_for("paper", "trs", "cifar10", "resnet20").optimizer == "adam"


def test_crops_and_flips_are_what_they_say() -> None:
    pixels = torch.arange(2 * 3 * 32 * 32).reshape(2, 3, 32, 32) % 251
    pixels = pixels.to(torch.uint8)
    padded = torch.nn.functional.pad(pixels, (4, 4, 4, 4))
    u = torch.tensor([[0.0, 0.999, 0.7], [0.5, 0.3, 0.1]])
    out = Augmentation(crop=True, flip=True)(pixels, u)
    assert torch.equal(out[0], padded[0, :, 0:32, 8:40])
    assert torch.equal(out[1], padded[1, :, 4:36, 2:34].flip(2))
    assert torch.equal(Augmentation(False, True)(pixels, u)[1], pixels[1].flip(2))
    for name in ("digits", "mnist", "fashion_mnist"):  # all centred alike
        assert Augmentation.of(name) == Augmentation(False, False)
    assert Augmentation.of("svhn") == Augmentation(True, False)
    assert Augmentation.of("cifar10") == Augmentation(True, True)
    assert Augmentation.of("cifar10", crop=False) == Augmentation(False, True)


def test_the_validation_split_is_cut_from_the_training_set() -> None:
    data = load("digits", "train")
    rest, held = split(data, 100, 3, CPU)
    again, _ = split(data, 100, 3, CPU)
    assert held is not None and len(rest) == len(data) - 100 and len(held) == 100
    assert np.array_equal(np.sort(np.concatenate([rest._rows, held._rows])), np.arange(len(data)))
    assert np.array_equal(rest._rows, again._rows)
    x, y = held.images(torch.arange(5))
    expected, labels = data.batch(held._rows[:5])
    assert torch.equal(x, expected) and torch.equal(y, labels)
    assert torch.equal(epoch_order(9, 1, 2), epoch_order(9, 1, 2))
    assert not torch.equal(epoch_order(99, 1, 2), epoch_order(99, 1, 3))


def test_an_ensemble_says_what_its_training_and_that_of_its_first_members_held_out_and_took(tmp_path: Path) -> None:
    tiny: dict[str, Any] = {"arch_options": {"width": 2}, "changes": {"epochs": 0.1, "validation": 300}, "say": None}
    first, second = tmp_path / "first", tmp_path / "second"
    train("natural", "digits", "cnn", out=first, **tiny)
    train("natural", "digits", "cnn", out=second, start=first, members=2, seed=1, **tiny)
    data, made_by = load("digits", "train"), read_manifest(second).made_by
    (split_of_first,) = made_by["start_split"]
    assert split_of_first.pop("seconds") == read_manifest(first).made_by["seconds"]
    assert split_of_first == {"fingerprint": data.fingerprint, "validation_images": 300, "seed": 0}
    held = [split(data, 300, seed, CPU)[1] for seed in (0, 1)]
    common = np.intersect1d(*(part._rows for part in held if part is not None))
    assert len(common) > 30 and held_out(data, made_by).images.fingerprint == data.subset(common).fingerprint


@pytest.mark.parametrize("arch", ["resnet20", "preact_resnet18"])
def test_the_folded_copy_follows_the_training_weights(arch: str) -> None:
    torch.manual_seed(0)
    master = build(arch, 10, mean=(0.5,) * 3, std=(0.2,) * 3).train()
    assert foldable(master) is None
    shadow = ShadowModels(master, half=False, attack_mode="eval", fold=True)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for p in master.parameters():
            p.add_(0.1 * p.abs().mean() * torch.randn_like(p))
        master(x)
        shadow.refresh()
        expected = master.eval()(x)
        assert torch.allclose(shadow.attack(x), expected, atol=1e-4)
        assert torch.allclose(frozen_copy(master, half=False, fold=True)(x), expected, atol=1e-4)


def test_a_master_that_cannot_be_folded_is_attacked_as_it_is() -> None:
    master = build("cnn", 10, 1, 8, width=4).train()
    shadow, x = ShadowModels(master, half=False, attack_mode="eval", fold=True, fuse=True), torch.rand(4, 1, 8, 8)
    with torch.no_grad():
        master.net.fc.weight.mul_(2)  # type: ignore[union-attr,operator]
        shadow.refresh()
        assert torch.equal(shadow.attack(x), master(x)) and not shadow.attack.training


@pytest.mark.parametrize(("method", "widths"), [("adp", [6, 4]), ("gal", [6, 4]), ("mrboost", [6, 6])])
def test_members_of_another_architecture_can_be_given(method: str, widths: list[int], tmp_path: Path) -> None:
    """mrboost starts from a copy of the previous member."""
    settings: dict[str, Any] = {"arch_options": {"width": 4, "batch_norm": True}, "speed": SpeedOptions(fold=True)}
    start = [build("cnn", 10, 1, 8, width=6)]
    small(method, start=start, members=2, epochs=0.1, out=tmp_path / method, **settings)
    members = load_ensemble(tmp_path / method).members
    assert [m.spec.options["width"] for m in members] == widths  # type: ignore[union-attr]


def test_the_fused_copy_follows_the_training_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.fast.convert.kernel_convolve", lambda: plain_convolve)
    torch.manual_seed(0)
    master = build("resnet20", 10).train()
    shadow = ShadowModels(master, half=True, attack_mode="eval", fold=True, fuse=True)
    assert any(isinstance(m, FusedBlock) for m in shadow.attack.modules())
    x = torch.rand(4, 3, 32, 32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        before = shadow.attack(x)
        for p in master.parameters():
            p.add_(0.1 * p.abs().mean() * torch.randn_like(p))
        shadow.refresh()
        expected = frozen_copy(master, half=True, fold=True)(x)
        fixed = frozen_copy(master, half=True, fold=True, fuse=True)(x)
        assert torch.allclose(shadow.attack(x), fixed, atol=1e-6)
        assert float((fixed - expected).norm()) < 0.1 * float((before - expected).norm())


def test_half_precision_copies_share_what_is_not_copied() -> None:
    master = build("cnn", 10, 1, 8, batch_norm=True, width=4).train()
    shadow = ShadowModels(master, half=True, attack_mode="train", fold=False)
    for (name, wide), narrow in zip(master.named_parameters(), shadow.weights()):
        assert narrow.dtype == (torch.bfloat16 if wide.dim() >= 2 else torch.float32), name
        assert (narrow is wide) == (wide.dim() < 2)
    with torch.no_grad():
        master.net.fc.weight.fill_(0.5)  # type: ignore[union-attr,operator]
    shadow.refresh()
    assert bool((shadow.train.net.fc.weight == 0.5).all())  # type: ignore[union-attr]
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        shadow.train(torch.rand(4, 1, 8, 8))
    assert int(master.net.bn1.num_batches_tracked) == 1  # type: ignore[union-attr,arg-type]


def test_speed_options_do_not_change_the_result() -> None:
    settings: dict[str, Any] = {"epochs": 0.5, "arch_options": {"width": 4, "batch_norm": True}, "members": 2}
    plain = small("iat", **settings)
    beside = small("iat", speed=SpeedOptions(side_by_side=True, channels_last=True), **settings)
    fast = small("iat", speed=SpeedOptions(bf16=True, fold=True, cuda_graph=True, side_by_side=True), **settings)
    for one, two, three in zip(plain.members, beside.members, fast.members):
        a, b, c = (parameters_to_vector(m.parameters()).detach() for m in (one, two, three))  # type: ignore[union-attr]
        assert torch.allclose(a, b, atol=1e-4)
        assert float((a - c).norm() / a.norm()) < 0.1


@pytest.mark.parametrize("when", ["asked for", "run"])
def test_what_cannot_be_used_is_reported_and_training_continues(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler here\nand a long story")

    def compile_(self: nn.Module, **_: Any) -> None:
        if when == "asked for":
            refuse()
        self._compiled_call_impl = refuse

    monkeypatch.setattr(nn.Module, "compile", compile_)
    lines: list[str] = []
    settings: dict[str, Any] = {"epochs": 0.5, "arch_options": {"width": 4}}
    requested = SpeedOptions(compile=True, cuda_graph=True, fold=True)
    fallen_back = small("at", say=lines.append, speed=requested, **settings)
    notes = [line for line in lines if "is off" in line]
    assert notes == [
        "cuda graph is off: cpu is not a GPU",
        "fold is off: no batch norm directly after a convolution",
        "compile is off: no compiler here",
    ]
    plain = small("at", **settings)
    one, other = (parameters_to_vector(e.members[0].parameters()) for e in (fallen_back, plain))  # type: ignore[union-attr]
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("method", "fold", "fuse"), [("at", True, True), ("trs", True, False), ("dverge", False, False)]
)
def test_methods_get_copies_they_can_use(method: str, fold: bool, fuse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.training.speed_options.kernel_convolve", lambda: torch.conv2d)
    execution = Execution(torch.device("cuda"), FOLDED_AND_FUSED)
    fit_to_method(execution, SpeedOptions(fold=True), method_named(method), build("resnet20", 10), "eval")
    notes = [] if fold else [f"fold is off: {method} reads features inside the members it attacks"]
    assert (execution.speed.fold, execution.speed.fuse, execution.notes) == (fold, fuse, notes)


def test_gradients_of_gradients_through_a_folded_copy() -> None:
    torch.manual_seed(0)
    net = build("resnet20", 10).double().train()
    x, y = torch.rand(4, 3, 32, 32, dtype=torch.float64), torch.arange(4)
    net(x)
    whole, folded = (ShadowModels(net, half=False, attack_mode="eval", fold=fold) for fold in (False, True))
    folded.refresh()
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in folded.attack.modules())
    actual, expected = (
        gradient_of_gradient_norm(cast(StepContext, SimpleNamespace(victims=[c.attack])), x, y) for c in (folded, whole)
    )
    assert float(expected.abs().max()) > 0
    assert torch.allclose(actual, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_fusing_says_why_it_is_off_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    net, method, gpu = build("resnet20", 10), method_named("at"), torch.device("cuda")
    needs = "it needs a GPU, a folded copy in bfloat16, no compiler, and a method without second derivatives"
    for asked, notes in ((True, [f"fuse is off: {needs}"]), (None, [])):
        execution = Execution(CPU, FOLDED_AND_FUSED)
        fit_to_method(execution, SpeedOptions(fuse=asked), method, net, "eval")
        assert (execution.speed.fuse, execution.notes) == (False, notes)
    monkeypatch.setattr("recarc.training.speed_options.kernel_convolve", lambda: None)
    execution = Execution(gpu, FOLDED_AND_FUSED)
    fit_to_method(execution, SpeedOptions(), method, net, "eval")
    assert (execution.speed.fuse, execution.notes) == (False, ["fuse is off: Triton cannot build the kernels here"])


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


@needs_gpu
@pytest.mark.parametrize("method", ["natural", "bat", "free", "adp", "gal", "trs", "mrboost", "barre", "jat"])
def test_every_step_that_can_be_captured_is(method: str) -> None:
    lines: list[str] = []
    options = {"width": 8, "batch_norm": True}
    members = max(2, method_named(method).min_members)
    small(method, epochs=0.2, members=members, arch_options=options, device="cuda", say=lines.append)
    assert "cuda_graph" in lines[0] and not any("is off" in line for line in lines), lines


@needs_gpu
@pytest.mark.parametrize("method", ["gal", "trs"])
def test_members_on_streams_of_their_own_train_as_one_after_the_other(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_turn(jobs: Sequence[Callable[[], Any]], device: torch.device) -> list[Any]:
        return [job() for job in jobs]

    settings: dict[str, Any] = {"epochs": 0.5, "members": 3, "arch_options": {"width": 8, "batch_norm": True}}
    settings |= {"device": "cuda", "speed": SpeedOptions(bf16=False)}
    beside = small(method, **settings)
    monkeypatch.setattr(f"recarc.training.methods.{method}.side_by_side", in_turn)
    monkeypatch.setattr("recarc.training.methods.gal.side_by_side", in_turn)
    plain = small(method, **settings)
    for one, two in zip(plain.members, beside.members):
        a, b = (parameters_to_vector(m.parameters()).detach() for m in (one, two))  # type: ignore[union-attr]
        assert float((a - b).norm() / a.norm()) < 0.02


def test_side_by_side_keeps_the_order() -> None:
    assert side_by_side([partial(torch.full, (1,), float(i)) for i in range(3)], CPU) == [0.0, 1.0, 2.0]
    assert side_by_side([], CPU) == []


@needs_gpu
def test_the_fast_path_on_a_gpu() -> None:
    settings: dict[str, Any] = {"epochs": 2, "arch_options": {"width": 8, "batch_norm": True}, "device": "cuda"}
    lines: list[str] = []
    fast = small("iat", members=2, say=lines.append, **settings)
    off = SpeedOptions(**{option.name: False for option in fields(SpeedOptions)})
    plain = small("iat", members=2, speed=off, **settings)
    assert not any("is off" in line for line in lines), lines
    x, y = (t.cuda() for t in load("digits", "test").tensors())
    difference = fast.correct(x, y).double().mean(1) - plain.correct(x, y).double().mean(1)
    assert float(difference.abs().max()) < 0.06
