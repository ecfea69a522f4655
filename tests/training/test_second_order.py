"""Second derivatives of convolutions: PyTorch's own, by another way."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recarc.models import build
from recarc.training.second_order import Shape, inputs_only, second_order


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(4, 6, 3, padding=1),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(4, 8, 3, dilation=2, groups=4),
        nn.Conv2d(4, 6, 1, stride=2),
    ],
    ids=["plain", "strided", "grouped", "pointwise"],
)
def test_derivatives_up_to_the_second_are_right(conv: nn.Conv2d) -> None:
    conv = conv.double()
    x = torch.rand(2, 4, 7, 7, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor, w: Tensor) -> Tensor:
        with second_order():
            return F.conv2d(x, w, conv.bias, conv.stride, conv.padding, conv.dilation, conv.groups)

    assert torch.allclose(run(x, conv.weight), conv(x), rtol=1e-12)
    assert torch.autograd.gradcheck(run, (x, conv.weight))
    assert torch.autograd.gradgradcheck(run, (x, conv.weight))


@pytest.mark.parametrize("scale", [0.3, 30.0])
def test_second_derivatives_of_batch_norm_are_right(scale: float) -> None:
    x = (scale * torch.rand(3, 4, 2, 5, dtype=torch.float64) + 7).requires_grad_()
    gamma, beta = torch.rand(2, 4, dtype=torch.float64, requires_grad=True).unbind()
    t = torch.rand(3, 4, 2, 5, dtype=torch.float64)

    def gradient_in_x(x: Tensor, gamma: Tensor, beta: Tensor, cheap: bool) -> Tensor:
        with second_order() if cheap else nullcontext():
            y = F.batch_norm(x, None, None, gamma, beta, training=True)
        return torch.autograd.grad((t * y.tanh()).sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(partial(gradient_in_x, cheap=True), (x, gamma, beta))
    assert torch.allclose(*(gradient_in_x(x, gamma, beta, cheap) for cheap in (False, True)), rtol=1e-9)


def test_batch_norm_keeps_its_running_statistics_and_its_memory_format() -> None:
    torch.manual_seed(0)
    plain, cheap = (nn.BatchNorm2d(4, momentum=0.3).train() for _ in range(2))
    x = torch.rand(2, 4, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    expected = plain(x)
    with second_order():
        actual = cheap(x)
    assert torch.allclose(actual, expected) and actual.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(cheap.running_mean, plain.running_mean) and torch.equal(cheap.running_var, plain.running_var)
    (g,) = torch.autograd.grad(actual.square().sum(), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.square().sum(), x)
    assert g.is_contiguous(memory_format=torch.channels_last) and gg.is_contiguous(memory_format=torch.channels_last)
    plain.eval(), cheap.eval()
    with second_order():
        assert torch.equal(cheap(x), plain(x))


def test_a_batch_norm_that_is_not_usual_is_left_alone() -> None:
    x, norm = torch.rand(2, 4, 3, 3), nn.BatchNorm2d(4).train()
    with second_order():
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            norm(x[:1, :, :1, :1])
        computed = F.batch_norm(x, None, None, x.mean((0, 2, 3)).requires_grad_() * 2, norm.bias, training=True)
    assert "NativeBatchNorm" in type(computed.grad_fn).__name__, "its weight may depend on the input"


def test_second_derivatives_of_relu_are_right() -> None:
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def run(x: Tensor) -> Tensor:
        with second_order():
            return F.relu(x) * x

    assert torch.autograd.gradcheck(run, (x,)) and torch.autograd.gradgradcheck(run, (x,))


def test_what_a_batch_norm_cannot_differentiate_twice_is_said() -> None:
    x, norm = torch.rand(2, 4, 3, 3), nn.BatchNorm2d(4).train()
    with second_order():
        y = norm(x)
    (g,) = torch.autograd.grad(y.square().sum(), norm.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        torch.autograd.grad(g.square().sum(), norm.weight)


def penalised(net: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    logits = net(x).float()
    (g,) = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), x, create_graph=True)
    return list(torch.autograd.grad(F.cross_entropy(logits, y) + g.square().sum(), list(net.parameters())))


@pytest.mark.parametrize("arch", ["resnet20", "mobilenetv1"])
def test_a_net_gets_the_same_weight_gradients(arch: str) -> None:
    torch.manual_seed(0)
    net, x, y = build(arch, 10, 3, 32).train(), torch.rand(4, 3, 32, 32), torch.arange(4)
    expected = penalised(net, x, y)
    with second_order():
        actual = penalised(net, x, y)
    for a, b in zip(expected, actual, strict=True):
        assert float((a - b).norm()) <= 1e-3 * float(a.norm()) + 1e-6


def test_autocast_lowers_the_precision_as_without() -> None:
    conv, x = nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = conv(x)
        with second_order():
            actual = conv(x)
    assert actual.dtype == expected.dtype == torch.bfloat16
    assert torch.allclose(actual.float(), expected.float(), atol=0.02)


def test_padding_by_name_is_left_alone() -> None:
    conv, x = nn.Conv2d(3, 4, 3, padding="same"), torch.rand(2, 3, 8, 8)
    expected = conv(x)
    with second_order():
        assert torch.equal(conv(x), expected)


def test_a_pass_for_inputs_computes_no_weight_gradients_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 2, 3), nn.Flatten(), nn.Linear(32, 3))
    x, back, asked = torch.rand(2, 3, 8, 8, requires_grad=True), Shape.back, []

    def noted(self: Shape, g: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        asked.append(wanted)
        return back(self, g, x, w, wanted)

    def gradients(pass_: AbstractContextManager[None]) -> tuple[Tensor, ...]:
        asked.clear()
        with second_order():
            z = net(x)
        with pass_:
            (g,) = torch.autograd.grad(z.square().sum(), x, create_graph=True)
        weights_asked.append([wanted[1] for wanted in asked])
        return g, *torch.autograd.grad(z.sum() + g.square().sum(), list(net.parameters()))

    monkeypatch.setattr(Shape, "back", noted)
    weights_asked: list[list[bool]] = []
    expected, actual = gradients(nullcontext()), gradients(inputs_only())
    assert weights_asked[0].count(True) == 2 and weights_asked[1] == [False, False]
    for a, b in zip(expected, actual, strict=True):
        assert torch.equal(a, b)
