"""Fused blocks of convolutions: the same logits and input gradients, with hand-written gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recarc import InputError
from recarc.fast import FastMember, FastSettings
from recarc.fast.convert import folded_copy, in_search_precision, is_fully_fused, is_fused
from recarc.fast.execute import Executor
from recarc.fast.fuse import FusedBlock, fuse_blocks, plain_convolve
from recarc.models.registry import build
from tiny import points

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
BLOCKS = [  # architecture, its options, lengths of its blocks with their shortcuts
    ("resnet20", {}, [(1, "none")] + [(2, "input")] * 3 + [(2, "other"), (2, "input"), (2, "input")] * 2),
    (
        "resnet20",
        {"shortcut": "conv"},
        [(1, "none")] + [(2, "input")] * 3 + [(2, "other")] + [(2, "input")] * 2 + [(2, "other")] + [(2, "input")] * 2,
    ),
    ("vgg16", {}, [(2, "none")]),
    ("resnet18", {}, [(1, "none"), (2, "input"), (2, "input")]),
    ("cnn", {}, [(2, "none")]),
]


def network(arch: str, options: dict[str, str]) -> nn.Module:
    torch.manual_seed(0)
    net = build(arch, classes=10, channels=3, image_size=32, **options).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
    return net


def pulled(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    u = x.clone().requires_grad_()
    logits = net(u)
    difference = logits[:, 1] - logits[:, 2]
    first, second = (torch.autograd.grad(difference.sum(), u, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)  # a graph may be pulled back several times
    return logits.detach(), first


@pytest.mark.parametrize(("arch", "options", "expected"), BLOCKS, ids=lambda v: v if isinstance(v, str) else "")
def test_fused_networks_compute_the_same(arch: str, options: dict[str, str], expected: list[tuple[int, str]]) -> None:
    net = network(arch, options).double()
    fused = fuse_blocks(folded_copy(net), dtype=torch.float64)
    blocks = [m for m in fused.modules() if isinstance(m, FusedBlock)]
    assert [(len(r.strides), r.shortcut) for r in blocks] == expected
    for block in blocks:
        block.out_dtype = torch.float64
    x = points(2, 3, 32, 32)
    for found, wanted in zip(pulled(fused, x), pulled(net, x)):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    ("arch", "options", "blocks"),
    [
        ("resnet20", {"shortcut": "conv"}, 12),
        ("resnet18", {"stem": "imagenet"}, 12),
        ("preact_resnet18", {}, 20),
        ("cnn", {}, 1),
    ],
)
def test_every_convolution_can_be_fused(arch: str, options: dict[str, str], blocks: int) -> None:
    """Those of many channels (run by the library), large windows and no ReLU too."""
    net = network(arch, options).double()
    fused = fuse_blocks(folded_copy(net), dtype=torch.float64, every=True)
    found = [m for m in fused.modules() if isinstance(m, FusedBlock)]
    assert len(found) == blocks
    if arch == "resnet20":  # the last block is read by the pooling; the shortcuts have no ReLU
        assert sum(block.masked_by_readers for block in found) == 9
        assert sum(block.masks_input for block in found) == 11
    assert not [m for m in fused.modules() if isinstance(m, nn.Conv2d)]
    for block in found:
        block.out_dtype = torch.float64
    x = points(2, 3, 32, 32)
    for ours, wanted in zip(pulled(fused, x), pulled(net, x)):
        torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-9)


def test_batch_norms_that_stay_become_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.fast.convert.kernel_convolve", lambda: plain_convolve)
    net = network("preact_resnet18", {})
    fast = in_search_precision(folded_copy(net), "float16")
    assert not [m for m in fast.modules() if isinstance(m, nn.BatchNorm2d)]
    x = points(4, 3, 32, 32, dtype=torch.float32)
    logits = Executor(fast, "float16", compile=False)(x)
    torch.testing.assert_close(logits, net(x), rtol=2e-2, atol=2e-2)


def test_what_does_not_fit_is_left_alone() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.ReLU(),
        nn.Conv2d(8, 80, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(80, 8, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8 * 16, 3),
    ).eval()
    fused, x = fuse_blocks(net), points(2, 3, 4, 4, dtype=torch.float32)
    assert not [m for m in fused.modules() if isinstance(m, FusedBlock)]
    assert not is_fully_fused(fused)
    for found, wanted in zip(pulled(fused, x), pulled(net, x)):
        torch.testing.assert_close(found, wanted)


def test_a_value_that_others_read_ends_its_run() -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            middle = torch.relu(self.one(x))
            return (torch.relu(self.two(middle)) + middle).mean(dim=(2, 3))

    net, x = Forked().double().eval(), points(2, 3, 4, 4)
    fused = fuse_blocks(net, dtype=torch.float64)
    blocks = [m for m in fused.modules() if isinstance(m, FusedBlock)]
    assert [len(r.strides) for r in blocks] == [1, 1]
    for block in blocks:
        block.out_dtype = torch.float64
    for found, wanted in zip(pulled(fused, x), pulled(net, x)):
        torch.testing.assert_close(found, wanted)


class Odd(nn.Module):
    """Members that do more than convolutions in a row; `kind` names the trap."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.fused_block_0 = nn.Linear(4, 5)
        self.relu, self.scale = nn.ReLU(inplace=True), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "normalises in place":
            x = x.clone()
            x.sub_(0.3)
            x.div_(0.2)
        h = torch.relu(self.one(input=x) if self.kind == "keyword" else self.one(x))
        if self.kind == "statement in place":
            h = h - 0.5
            self.relu(h)
        if self.kind == "weighted sum":
            h = torch.relu(torch.add(h, self.two(h), alpha=0.1))
        elif self.kind == "changed under its feet":
            o = self.two(h - 0.3)
            h = torch.relu(o + self.relu(o - 0.1))
        elif self.kind == "input changed in place":
            g = h - 0.3
            o = self.two(g)
            t = self.relu(g)
            h = torch.relu(o + t)
        elif self.kind == "output changed in place":
            h = self.two(h)
            h += 0.1
        elif self.kind == "broadcast":
            h = torch.relu(self.two(h) + self.scale)
        elif self.kind == "one channel":
            h = torch.relu(self.one(x) + x[:, :1])
        else:
            h = torch.relu(self.two(h) + h)
        return self.fused_block_0(h.mean(dim=(2, 3)))


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    "kind",
    [
        "normalises in place",
        "keyword",
        "statement in place",
        "weighted sum",
        "changed under its feet",
        "input changed in place",
        "output changed in place",
        "broadcast",
        "one channel",
        "plain",
    ],
)
def test_members_with_traps_compute_the_same(kind: str, every: bool) -> None:
    net, x = Odd(kind).double().eval().requires_grad_(False), points(2, 3, 6, 6)
    fused = fuse_blocks(net, dtype=torch.float64, every=every)
    for block in (m for m in fused.modules() if isinstance(m, FusedBlock)):
        block.out_dtype = torch.float64
    torch.testing.assert_close(fused(x), net(x))
    if kind != "input changed in place":  # which nobody can differentiate
        torch.testing.assert_close(pulled(fused, x)[1], pulled(net, x)[1])


def test_hooks_and_patched_forwards_are_refused() -> None:
    hooked, patched = Odd("plain"), Odd("plain")
    hooked.register_forward_pre_hook(lambda module, inputs: (inputs[0] - 0.5,))
    patched.forward = lambda x: Odd.forward(patched, x) * 2  # type: ignore[method-assign]
    for net in (hooked, patched):
        with pytest.raises(InputError, match="it is run unfused"):
            fuse_blocks(net)


def test_a_member_without_runs_is_itself() -> None:
    for net in (nn.Linear(4, 3), nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(inplace=True))):
        assert fuse_blocks(net) is net


def test_logits_do_not_leave_in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.fast.convert.kernel_convolve", lambda: plain_convolve)
    for net in (nn.Linear(6, 3), Odd("plain").eval()):
        x = torch.rand(2, 6) if isinstance(net, nn.Linear) else torch.rand(2, 3, 6, 6)
        logits = Executor(in_search_precision(net, "float16"), "float32", compile=False)(x)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, net(x), rtol=5e-3, atol=5e-3)


def test_a_member_that_is_not_what_its_trace_says_is_run_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return 2 * plain_convolve(x, *arguments, **options)

    monkeypatch.setattr("recarc.fast.convert.kernel_convolve", lambda: wrong)
    net, x = Odd("plain").eval(), torch.rand(2, 3, 6, 6)
    member = FastMember(net, FastSettings("float16", graphs=False))
    with pytest.warns(UserWarning, match="running without fused convolutions: logits differ"):
        member(x)
    assert not is_fused(member.search_net)


class Recalibrated(nn.Module):
    """The convolution is the smaller part of a sum: its block would have to grow."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv2d(3, 3, 1), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3), keepdim=True)
        return self.last(torch.relu(x + self.conv(pooled)).mean(dim=(2, 3)))


@pytest.mark.parametrize("gradient", [False, True])
def test_a_member_whose_fused_form_fails_is_run_unfused(gradient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.fast.convert.kernel_convolve", lambda: plain_convolve)
    net, x = Recalibrated().eval(), torch.rand(2, 3, 6, 6, requires_grad=gradient)
    member = FastMember(net, FastSettings("float16", graphs=False))
    assert is_fused(member.search_net)
    with pytest.warns(UserWarning, match="running without fused convolutions: The expanded size"):
        logits = member(x)
    assert not is_fused(member.search_net)
    torch.testing.assert_close(logits, net(x), rtol=5e-3, atol=5e-3)


def test_running_out_of_memory_is_no_reason_to_run_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> Tensor:
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr("recarc.fast.convert.kernel_convolve", lambda: full)
    member = FastMember(Odd("plain").eval(), FastSettings("float16", graphs=False))
    for _ in range(2):  # a smaller batch is checked again
        with pytest.raises(torch.cuda.OutOfMemoryError):
            member(torch.rand(2, 3, 6, 6))
        assert member.unchecked


@NEEDS_CUDA
@pytest.mark.parametrize(
    ("read", "made", "size", "stride", "side"),
    [
        (3, 16, 3, 1, 32),
        (16, 16, 3, 1, 32),
        (16, 32, 3, 2, 32),
        (32, 64, 3, 2, 7),
        (64, 64, 3, 1, 8),
        (64, 32, 1, 2, 9),
    ],
)
def test_the_kernel_computes_the_plain_convolution(read: int, made: int, size: int, stride: int, side: int) -> None:
    from recarc.fast.kernels import convolve

    torch.manual_seed(0)
    x = torch.randn(5, read, side, side, device="cuda").half()
    weight = (torch.randn(made, read, size, size, device="cuda") / (read * size * size) ** 0.5).half()
    taps = weight.permute(2, 3, 1, 0).flatten(0, 1).contiguous()
    back = weight.permute(2, 3, 0, 1).flatten(0, 1).contiguous()
    bias = torch.randn(made, device="cuda")
    out = plain_convolve(x.double(), taps.double(), stride, bias=bias.double(), relu=True)
    found = convolve(x, taps, stride, bias=bias, relu=True, dtype=torch.float32)
    torch.testing.assert_close(found.double(), out, rtol=1e-3, atol=1e-3)
    add = torch.randn_like(out).half()
    out = plain_convolve(x.double(), taps.double(), stride, bias=bias.double(), add=add.double())
    torch.testing.assert_close(convolve(x, taps, stride, bias=bias, add=add).double(), out, rtol=2e-3, atol=2e-3)
    g, mask, size_of = torch.randn_like(out).half(), torch.randn_like(x), (side, side)
    expected = plain_convolve(g.double(), back.double(), stride, add=x.double(), mask=mask.double(), back_to=size_of)
    found = convolve(g, back, stride, add=x, mask=mask, back_to=size_of)
    torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-3)


@NEEDS_CUDA
def test_a_resnet20_in_float16_is_fused_whole_and_close_to_float32() -> None:
    net = network("resnet20", {}).cuda()
    fused = in_search_precision(folded_copy(net), "float16")
    assert is_fully_fused(fused)
    x = points(64, 3, 32, 32, dtype=torch.float32).cuda()
    (logits, gradient), (exact, slope) = pulled(fused, x), pulled(net, x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, rtol=5e-3, atol=5e-3)
    assert float((gradient - slope).norm() / slope.norm()) < 0.15  # signs of a few activations near zero


class Attentive(nn.Module):
    """Linear layers all the way, as in a transformer; the one that makes the logits is defined first."""

    def __init__(self, traceable: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.traceable = traceable
        self.head = nn.Linear(6, 5)
        self.embed, self.mix, self.out = nn.Linear(12, 6), nn.Linear(6, 6), nn.Linear(6, 6 if traceable else 5)

    def forward(self, x: Tensor) -> Tensor:
        if not self.traceable:
            return self.out(self.mix(self.embed(x.flatten(1)))) if bool((x > -1).all()) else x
        h = self.embed(x.flatten(1))
        h = h + self.out(torch.relu(self.mix(h)))
        return self.head(h).clamp(-9, 9)


@pytest.mark.parametrize(("traceable", "heads"), [(True, {"head"}), (False, {"head", "out"})])
def test_only_the_layers_that_make_the_logits_stay_in_float32(traceable: bool, heads: set[str]) -> None:
    net = in_search_precision(Attentive(traceable).eval(), "float16", fuse=False)
    found = {name for name, module in net.named_children() if type(module).__name__ == "_Float32Linear"}
    assert found == heads
    others = [m.weight.dtype for m in net.children() if isinstance(m, nn.Linear)]
    assert others and set(others) == {torch.float16}
