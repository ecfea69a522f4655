"""affine_parameters: exact weights, nothing touched, and a clear word where there are none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from recarc.errors import InputError
from recarc.exact.affine import affine_parameters


def test_linear_layer_gives_its_own_weights() -> None:
    layer = nn.Linear(7, 3)
    w, b = affine_parameters(layer, torch.rand(4, 7))
    assert w.dtype == b.dtype == torch.float64
    assert torch.equal(w, layer.weight.double())
    assert torch.equal(b, layer.bias.double())


def test_deep_affine_module_on_images() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 4))
    net[1].running_mean.uniform_()
    x = torch.rand(5, 2, 6, 6)
    w, b = affine_parameters(net, x)
    assert w.shape == (4, 72)
    assert torch.allclose(net.eval()(x), (x.double().flatten(1) @ w.T + b).float(), atol=1e-5)


def test_callables_in_their_own_dtype() -> None:
    weight = torch.randn(3, 7)
    w, b = affine_parameters(lambda x: x @ weight.T + 1, torch.rand(2, 7))
    assert torch.equal(w, weight.double())
    assert torch.equal(b, torch.ones(3).double())


def test_constant_member_has_zero_weights() -> None:
    w, b = affine_parameters(lambda x: torch.tensor([[1.0, 2.0]]).expand(len(x), 2), torch.rand(2, 7))
    assert not w.any()
    assert b.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_nothing_is_changed(context: type) -> None:
    net = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.Linear(5, 2)).train()
    net[0].weight.requires_grad_(False)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.rand(3, 5)
    random_state = torch.random.get_rng_state()
    with context():
        affine_parameters(net, x)
    assert net.training and net[1].training
    assert [p.requires_grad for p in net.parameters()] == [False, True, True, True]
    assert all(p.grad is None and p.dtype == torch.float32 for p in net.parameters())
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random_state)


@pytest.mark.parametrize(
    "member",
    [
        nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)),
        lambda x: x[:, :2] * x[:, 2:4],
        lambda x: x[:, :2].detach(),
    ],
)
def test_not_affine(member: nn.Module) -> None:
    with pytest.raises(InputError, match="not affine") as error:
        affine_parameters(member, torch.rand(3, 5))
    assert "\n" not in str(error.value)


def test_logits_of_the_wrong_shape() -> None:
    with pytest.raises(InputError, match="expected logits"):
        affine_parameters(lambda x: x.sum(1), torch.rand(3, 5))
