"""Folding batch norm changes the arithmetic, not the function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from recarc.errors import InputError
from recarc.fast.fold import fold_batch_norm
from recarc.models import build

CASES: list[tuple[str, dict[str, Any], int]] = [  # architecture, options, batch norms that must stay
    ("cnn", {"batch_norm": True}, 0),
    ("cnn", {}, 0),
    ("linear", {}, 0),
    ("resnet20", {}, 0),
    ("resnet20", {"shortcut": "conv"}, 0),
    ("resnet18", {}, 0),
    ("resnet18", {"stem": "imagenet"}, 0),
    ("vgg16", {}, 0),
    ("mobilenetv1", {}, 0),
    # Pre-activation: a block's first norm and the last one of all read sums. (In wrn28_4 the stem feeds
    # nothing but the first norm, which therefore goes too.)
    ("wrn28_4", {}, 12),
    ("preact_resnet18", {}, 9),
]


def norms(model: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


def with_statistics(model: nn.Module) -> nn.Module:
    """Running statistics and affine parameters that a folding mistake cannot survive."""
    generator = torch.Generator().manual_seed(3)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.copy_(torch.randn(m.num_features, generator=generator) * 0.2)
            m.running_var.copy_(torch.rand(m.num_features, generator=generator) + 0.5)
            nn.init.uniform_(m.weight, 0.5, 1.2, generator=generator)
            nn.init.normal_(m.bias, 0, 0.2, generator=generator)
    return model


@pytest.mark.parametrize(("arch", "options", "left"), CASES)
def test_folded_models_give_the_same_logits(arch: str, options: dict[str, Any], left: int) -> None:
    torch.manual_seed(0)
    model = with_statistics(build(arch, 10, mean=[0.5] * 3, std=[0.25] * 3, **options)).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    folded = fold_batch_norm(model)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not folded.training
    assert norms(folded) == left
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected, found = model.eval()(x), folded(x)
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_gradients_with_respect_to_the_input_are_the_same() -> None:
    torch.manual_seed(1)
    model = with_statistics(build("resnet20", 10, shortcut="conv")).eval().double()
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    (found,) = torch.autograd.grad(fold_batch_norm(model)(x).sum(), x)
    torch.testing.assert_close(found, expected)


class Shared(nn.Module):
    """One convolution before two norms, and a norm without running statistics: none may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)
        self.a, self.b = nn.BatchNorm2d(2), nn.BatchNorm2d(2)
        self.c = nn.BatchNorm2d(2, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return self.c(self.other(self.a(y) + self.b(y)))


def test_what_cannot_be_folded_is_left_alone() -> None:
    model = with_statistics_of_tracked(Shared()).eval()
    folded = fold_batch_norm(model)
    assert norms(folded) == 3
    x = torch.rand(4, 1, 3, 3)
    assert torch.equal(folded(x), model(x))


def with_statistics_of_tracked(model: Shared) -> Shared:
    with_statistics(model.a)
    with_statistics(model.b)
    return model


def test_a_module_used_twice_is_left_alone() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.conv(self.norm(self.conv(x))))

    assert norms(fold_batch_norm(Twice())) == 1


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match=r"Branches cannot be traced, so its batch norms cannot be folded") as caught:
        fold_batch_norm(Branches())
    assert "\n" not in str(caught.value)
