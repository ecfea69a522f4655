"""Accelerated ensembles compute what the original ones do, and attacks on them find the same."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

import recarc
from captures import Recorded, Scarce, capture
from oracle import Algorithm2
from recarc import ARC, PGD, AdaptivePGD, Ball, InputError, RandomizedEnsemble, evaluate
from recarc.attacks import Attack, AutoPGD, Climb
from recarc.attacks.nearest_plane import nearest_plane
from recarc.fast import FastMember, FastSettings, accelerate
from recarc.fast.execute import CapturedTile, Executor
from recarc.fast.tiles import busy_tile, captured_sizes, tiles_for
from recarc.models.registry import build
from tiny import assert_unchanged, cnn, labels_of, mlp_ensemble, photograph, points

ATTACKS = [
    pytest.param(ARC(steps=3), id="arc"),
    pytest.param(ARC(steps=3, planes=2, variant="corrected"), id="corrected"),
    pytest.param(PGD(steps=3, member=1), id="pgd"),
    pytest.param(AdaptivePGD(steps=3), id="adaptive"),
    pytest.param(AutoPGD(steps=5), id="autopgd"),
    pytest.param(Climb(steps=4), id="climb"),
]


def test_a_fast_vote_has_all_of_its_voters() -> None:
    """A callable that is no module votes as it is."""
    member, x = mlp_ensemble(1, [1.0]).members[0], points(5, 6)
    vote = RandomizedEnsemble([member, lambda x: -member(x)]).voted()
    (fast,) = accelerate(vote).members
    assert isinstance(fast, FastMember) and [isinstance(v, FastMember) for v in fast.voters()] == [True, False]
    for own, original in zip(fast.voters(), vote.members[0].combines):  # type: ignore[union-attr]
        torch.testing.assert_close(own(x), original(x))


def convolutional(seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A small network with batch norms that have something to fold."""
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.2, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.uniform_(module.bias, -0.3, 0.3)
    return net.to(dtype).eval()


def ensemble_of(dtype: torch.dtype = torch.float32, members: int = 3) -> RandomizedEnsemble:
    return RandomizedEnsemble([convolutional(i, dtype) for i in range(members)], [0.5, 0.3, 0.2][:members])


@pytest.mark.parametrize("settings", [{}, {"tile": 1}, {"tile": 5}, {"tile": 5, "one_size": True}], ids=str)
def test_logits_and_gradients_are_the_same_in_float32(settings: dict[str, Any]) -> None:
    ensemble, x = ensemble_of(), points(13, 2, 4, 4, dtype=torch.float32)
    fast = accelerate(ensemble, **settings)
    for member, quick in zip(ensemble.members, fast.members):
        u, v = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, found = member(u), quick(v)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
        for _ in range(2):  # a graph may be pulled back several times
            (g,) = torch.autograd.grad((expected * weights).sum(), u, retain_graph=True)
            (h,) = torch.autograd.grad((found * weights).sum(), v, retain_graph=True)
            torch.testing.assert_close(h, g, rtol=1e-3, atol=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(quick(x), expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_find_the_same_in_float64(attack: ARC, p: float) -> None:
    """With rounding out of the way, the fast path and the readable one agree on every sample."""
    ensemble, x = ensemble_of(torch.float64), points(16, 2, 4, 4)
    y, ball = labels_of(ensemble, x), Ball(p, {1: 0.6, 2: 0.25, math.inf: 0.06}[p])
    expected = ensemble.expected_accuracy(attack(ensemble, x, y, ball), y)
    x_adv = attack(accelerate(ensemble, tile=5), x, y, ball)
    assert float(ball.violation(x, x_adv).max()) < 1e-9
    assert torch.equal(ensemble.expected_accuracy(x_adv, y), expected)
    assert float(expected.mean()) < 0.99  # the comparison says something


@pytest.mark.parametrize("p", [2, math.inf])  # for p = 1 opposite pushes cancel, and rounding decides what is left
@pytest.mark.parametrize("alpha", [["1/2", "1/2"], ["1/5", "1/2", "3/10"]], ids=len)
def test_arc_on_accelerated_members_agrees_with_algorithm_2(alpha: list[str], p: float) -> None:
    weights = [Fraction(a) for a in alpha]
    nets = [cnn(10 * len(alpha) + i) for i in range(len(alpha))]
    ensemble = RandomizedEnsemble(nets, [float(a) for a in weights])
    x, eps = points(3, 2, 4, 4, seed=len(alpha)), {2: 0.18, math.inf: 0.04}[p]
    y = labels_of(ensemble, x)
    x_adv = ARC(steps=3, step_size=eps)(accelerate(ensemble, tile=2), x, y, Ball(p, eps))
    for k in range(len(x)):
        oracle = Algorithm2(nets, weights, x[k], int(y[k]), p, eps, eta=eps, steps=3, planes=None)
        delta, v = oracle.perturbation()
        assert float(ensemble.expected_accuracy(x_adv[k : k + 1], y[k : k + 1])) == pytest.approx(float(v))
        if v > 0:  # ARC rests where nothing is left to gain; Algorithm 2 goes on
            torch.testing.assert_close((x_adv - x)[k].flatten(), torch.from_numpy(delta), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_expected_accuracy_under_arc_hardly_depends_on_precision(precision: str) -> None:
    ensemble, x = ensemble_of(), points(64, 2, 4, 4, dtype=torch.float32)
    y, ball = labels_of(ensemble, x), Ball("linf", 0.06)
    expected = ensemble.expected_accuracy(ARC(steps=5)(ensemble, x, y, ball), y)
    found = ensemble.expected_accuracy(ARC(steps=5)(accelerate(ensemble, precision), x, y, ball), y)
    tolerance = 0.02 if precision == "bfloat16" else 1e-9
    assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=tolerance)


def test_predictions_are_not_made_in_half_precision() -> None:
    ensemble, x = ensemble_of(), points(32, 2, 4, 4, dtype=torch.float32)
    fast = accelerate(ensemble, "bfloat16")
    with torch.no_grad():
        torch.testing.assert_close(fast.logits(x), ensemble.logits(x), rtol=1e-4, atol=1e-5)
    u = x.clone().requires_grad_()
    rounded = fast.members[0](u)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.detach(), ensemble.members[0](x).detach(), rtol=0.1, atol=0.1)


def test_resnet20_is_folded_and_agrees() -> None:
    torch.manual_seed(0)
    net = build("resnet20", classes=10, mean=[0.49, 0.48, 0.45], std=[0.2, 0.2, 0.2]).eval()
    fast = accelerate(net).members[0]
    assert isinstance(fast, FastMember)
    assert not [m for m in fast.modules() if isinstance(m, nn.BatchNorm2d)]
    x = points(3, 3, 32, 32, dtype=torch.float32)
    ball = Ball("linf", 8 / 255)
    plane, quick = (nearest_plane(m, x, ball.norm, label=None, planes=3) for m in (net, fast))
    torch.testing.assert_close(quick.zeta, plane.zeta, rtol=1e-3, atol=1e-6)


def test_the_original_is_left_alone() -> None:
    ensemble, x = ensemble_of(), points(6, 2, 4, 4, dtype=torch.float32)
    y, before = labels_of(ensemble, x), photograph(ensemble, x)
    AdaptivePGD(steps=2)(accelerate(ensemble, "bfloat16"), x, y, Ball("l2", 0.2))
    assert_unchanged(before, photograph(ensemble, x))


def test_a_batch_is_cut_into_tiles_of_few_sizes() -> None:
    sizes = captured_sizes(1024)
    assert sizes == (64, 128, 256, 512, 1024)
    assert captured_sizes(5) == (5,)
    assert tiles_for(2500, sizes) == [(1024, 1024), (1024, 1024), (452, 512)]
    assert tiles_for(600, sizes) == [(512, 512), (64, 64), (24, 64)]
    for count in range(1, 3000, 7):
        plan = tiles_for(count, sizes)
        assert sum(samples for samples, _ in plan) == count
        assert all(samples <= size and size in sizes for samples, size in plan)
        assert sum(size for _, size in plan) <= 64 + 4 * count / 3


@pytest.mark.parametrize("one_size", [False, True])
def test_tiles_that_are_captured_give_the_same(one_size: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.fast.fast_member.CapturedTile", Recorded)
    monkeypatch.setattr(Recorded, "made", [])
    net, x = convolutional(0), points(200, 2, 4, 4, dtype=torch.float32)
    fast = FastMember(net, FastSettings("float32", graphs=True, tile=64, one_size=one_size))
    u, v = x.clone().requires_grad_(), x.clone().requires_grad_()
    logits, expected = fast(u), net(v)
    torch.testing.assert_close(fast(x[:20]), expected[:20].detach(), rtol=1e-4, atol=1e-5)  # over the same buffers
    (found,) = torch.autograd.grad(logits[:, 1].sum(), u)
    torch.testing.assert_close(found, torch.autograd.grad(expected[:, 1].sum(), v)[0], rtol=1e-3, atol=1e-5)
    # three full tiles, the later ones like the first, and the rest in the smallest tile
    assert Recorded.made[:3] == [(64, False), (64, True), (64, True)]
    assert set(Recorded.made[3:]) == ({(64, True)} if one_size else {(16, False)})


@pytest.mark.parametrize("one_size", [False, True])
def test_without_room_for_graphs_members_run_plainly(one_size: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    capture(monkeypatch, room=2)
    net, x = convolutional(0), points(200, 2, 4, 4, dtype=torch.float32)
    fast = FastMember(net, FastSettings(tile=64, one_size=one_size))
    with pytest.warns(UserWarning, match="without CUDA graphs: CUDA out of memory. Tried to allocate 2.00 GiB.$"):
        logits = fast(x.clone().requires_grad_())
    torch.testing.assert_close(logits, net(x), rtol=1e-4, atol=1e-5)
    assert not fast.capturing and Scarce.made == [(64, False), (64, True)]
    del logits
    assert not Scarce.alive


def test_a_caller_that_makes_room_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    capture(monkeypatch, room=2)
    net, x = convolutional(0), points(192, 2, 4, 4, dtype=torch.float32)
    fast = FastMember(net, FastSettings(tile=64))
    fast.caller_makes_room = True
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fast(x.clone().requires_grad_())
    assert fast.capturing
    fast.free_captured()
    assert not Scarce.alive
    logits = fast(x[:64].clone().requires_grad_())
    torch.testing.assert_close(logits, net(x[:64]), rtol=1e-4, atol=1e-5)
    assert fast.capturing and len(Scarce.alive) == 1


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("cannot take part in a capture")


def test_a_capture_that_fails_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = ["main"]

    @contextmanager
    def stream(entered: str) -> Iterator[None]:
        before, streams[0] = streams[0], entered
        try:
            yield
        finally:
            streams[0] = before

    @contextmanager
    def graph(*arguments: Any, **options: Any) -> Iterator[None]:
        streams[0] = "capture"  # stays there if the capture cannot be ended
        yield

    fakes = {"current_stream": lambda: streams[0], "stream": stream, "graph": graph, "CUDAGraph": object}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(CapturedTile, "_warm_up", lambda tile, executor: tile.x)
    with pytest.raises(RuntimeError, match="cannot take"):
        CapturedTile(Executor(Refusing(), "float32"), torch.rand(2, 3))
    assert streams == ["main"]


def test_tiles_keep_their_sizes_when_they_are_no_longer_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    capture(monkeypatch, room=9)
    fast = FastMember(nn.Flatten(), FastSettings(tile=64, one_size=True))
    fast.any_size, x = True, torch.rand(100, 2, 4, 4)
    assert [size for _, size in fast.parts(x)] == [64, 32, 16]
    with pytest.warns(UserWarning, match="running without CUDA graphs: it is slow"):
        fast.stop_capturing("it is slow")
    assert [size for _, size in fast.parts(x)] == [64, 32, 16]


@pytest.mark.parametrize("one_size", [False, True])
def test_gradients_of_few_images_are_found_side_by_side(one_size: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recarc.fast.fast_member.CapturedTile", Recorded)
    pulled: list[int] = []
    pull_back = Recorded.pull_back
    monkeypatch.setattr(Recorded, "pull_back", lambda tile, c: pulled.append(len(c)) or pull_back(tile, c))
    net, x = convolutional(0, torch.float64), points(40, 2, 4, 4)
    fast = FastMember(net, FastSettings("float32", graphs=True, tile=64, one_size=one_size))
    for count, expected in ((3, [12]), (40, 4 * [40] if one_size else 4 * [32, 8]), (2, [8])):
        pulled.clear()
        found, plane = (nearest_plane(m, x[:count], Ball(2, 1).norm, label=None, planes=4) for m in (fast, net))
        torch.testing.assert_close(found, plane)
        assert pulled == expected


def test_tiles_are_halved_until_the_place_of_an_image_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with kernels that share the last part of a large batch out differently."""

    class Placed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = x.flatten(1)[:, :3]
            if len(x) > 64:  # cannot be traced
                out = out * (1 + 1e-6 * (torch.arange(len(x)) == 0)[:, None])
            return out

    fast = FastMember(Placed(), FastSettings(graphs=False, tile=256, one_size=True))
    x = torch.rand(40, 2, 4, 4)
    assert fast.sizes(x) == (8, 16, 32, 64)  # on a CPU sizes that agree serve side by side
    fast.may_capture, fast._sizes, fast._tile = True, None, 256
    assert fast.sizes(x) == (64,)
    assert [size for _, size in fast.parts(torch.rand(100, 2, 4, 4))] == [64, 64]


def test_a_member_that_answers_at_random_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > -1:  # cannot be traced
                x = x + torch.rand(1)
            return x.flatten(1)[:, :3]

    monkeypatch.setattr("recarc.fast.fast_member.CapturedTile", Recorded)
    monkeypatch.setattr(Recorded, "made", [])
    fast = FastMember(Drawing(), FastSettings("tf32", graphs=True, tile=8))
    x = torch.rand(4, 2, 4, 4)
    assert not torch.equal(fast(x), fast(x))
    assert not Recorded.made


def test_the_more_work_an_image_is_the_fewer_go_at_once() -> None:
    x, hooks = torch.rand(2, 3, 32, 32), "_forward_hooks"
    small, large = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), nn.Sequential(nn.Conv2d(3, 4000, 31))
    assert busy_tile(large, x) < busy_tile(small, x)
    assert busy_tile(small, x) & (busy_tile(small, x) - 1) == 0
    assert not getattr(small[0], hooks)


def test_accelerate_is_exported() -> None:
    assert recarc.accelerate is accelerate


def test_callables_vectors_and_empty_batches() -> None:
    ensemble, x = mlp_ensemble(2), points(4, 6)
    plain = RandomizedEnsemble([ensemble.members[0], lambda u: ensemble.members[1](u)], [0.9, 0.1])
    fast = accelerate(plain)
    assert fast.members[1] is plain.members[1]
    torch.testing.assert_close(fast.logits(x), plain.logits(x))
    assert fast.logits(x[:0]).shape == (2, 0, 5)
    none = x[:0].clone().requires_grad_()
    assert torch.autograd.grad(fast.members[0](none).sum(), none)[0].shape == none.shape
    assert torch.equal(fast.alpha, plain.alpha)


def test_members_that_cannot_be_traced_run_unfolded() -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = cnn(0, dtype=torch.float32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) if bool(x.sum() >= 0) else -self.inner(x)

    member, x = Branching(), points(4, 2, 4, 4, dtype=torch.float32)
    torch.testing.assert_close(accelerate(member).logits(x)[0], member(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_evaluate_searches_with_the_accelerated_members_and_judges_with_the_given_ones(precision: str) -> None:
    ensemble, x = ensemble_of(), points(40, 2, 4, 4, dtype=torch.float32)
    y, ball = labels_of(ensemble, x), Ball("linf", 0.06)
    plain = evaluate(ensemble, ARC(steps=3), (x, y), ball, progress=False)
    fast = evaluate(ensemble, ARC(steps=3), (x, y), ball, precision=precision, progress=False)
    apart = evaluate(ensemble, ARC(steps=3), (x, y), ball, precision=precision, batch_size=7, progress=False)
    assert fast.robust_accuracy == pytest.approx(plain.robust_accuracy, abs=0.05)
    assert fast.robust_accuracy == apart.robust_accuracy


def test_unknown_precision_is_refused() -> None:
    with pytest.raises(InputError, match="bfloat16"):
        accelerate(ensemble_of(), "bfloat61")
    with pytest.raises(InputError, match="tile"):
        accelerate(ensemble_of(), tile=0)


def test_float16_is_refused_without_a_gpu() -> None:
    with pytest.raises(InputError, match="needs a CUDA GPU"):
        accelerate(ensemble_of(), "float16")


def compiler_switches() -> tuple[bool, int]:
    import torch._dynamo
    import torch._functorch.config

    return torch._functorch.config.donated_buffer, torch._dynamo.config.recompile_limit


@pytest.mark.parametrize("fails", [False, True])
def test_the_switches_of_the_compiler_are_restored(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are set while a compiled member runs forwards and backwards, and only then."""
    inside = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
            inside.append(compiler_switches())
            return logits.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            inside.append(compiler_switches())
            return gradient

    def compile(net: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def run(x: torch.Tensor) -> torch.Tensor:
            logits = Watched.apply(net(x))
            if fails:
                raise RuntimeError("no compiler")
            return logits

        return run

    monkeypatch.setattr(torch, "compile", compile)
    member, x = convolutional(0), points(4, 2, 4, 4, dtype=torch.float32)
    before = compiler_switches()
    fast = accelerate(member, compile=True).members[0]
    u, v = x.clone().requires_grad_(), x.clone().requires_grad_()
    with pytest.warns(UserWarning, match="running uncompiled: no compiler") if fails else nullcontext():
        logits = fast(u)
    assert compiler_switches() == before
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), u)
    assert compiler_switches() == before
    assert inside == [(False, 64)] * (1 if fails else 2)
    torch.testing.assert_close(gradient, torch.autograd.grad(member(v)[:, 1].sum(), v)[0], rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("precision", ["float32", "tf32", "float16", "bfloat16"])
def test_captured_members_find_the_same(precision: str) -> None:
    ensemble = ensemble_of().to("cuda")
    x = points(300, 2, 4, 4, dtype=torch.float32).cuda()
    y, ball = labels_of(ensemble, x), Ball("linf", 0.06)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="running without")
        fast = accelerate(ensemble, precision, graphs=True, tile=64)
        found = ensemble.expected_accuracy(ARC(steps=5)(fast, x, y, ball), y)
    expected = ensemble.expected_accuracy(ARC(steps=5)(ensemble, x, y, ball), y)
    assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("attack", ATTACKS)
def test_float16_finds_what_float32_finds(attack: Attack) -> None:
    ensemble = ensemble_of().to("cuda")
    x = points(300, 2, 4, 4, dtype=torch.float32).cuda()
    y, ball = labels_of(ensemble, x), Ball("linf", 0.06)
    found = ensemble.expected_accuracy(attack(accelerate(ensemble, "float16"), x, y, ball), y)
    expected = ensemble.expected_accuracy(attack(ensemble, x, y, ball), y)
    assert float(found.mean()) == pytest.approx(float(expected.mean()), abs=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_float16_keeps_the_gradient_of_a_loss_that_is_nearly_zero() -> None:
    member = convolutional(0).cuda()
    x = points(8, 2, 4, 4, dtype=torch.float32).cuda()
    gradients = []
    for net in (member, accelerate(member, "float16").members[0]):
        u = x.clone().requires_grad_()
        (g,) = torch.autograd.grad((1e-9 * net(u)).sum(), u)
        gradients.append(g / g.flatten(1).norm(dim=1)[:, None, None, None])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0.05, atol=0.01)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_captured_member_that_ran_again_still_gives_its_earlier_gradient() -> None:
    member = convolutional(0).cuda()
    x = points(100, 2, 4, 4, dtype=torch.float32).cuda()
    fast = accelerate(member, "float32", graphs=True, tile=64).members[0]
    u, v = x.clone().requires_grad_(), x.clone().requires_grad_()
    logits = fast(u)
    fast(x.flip(0).requires_grad_())
    (found,) = torch.autograd.grad(logits[:, 1].sum(), u)
    (expected,) = torch.autograd.grad(member(v)[:, 1].sum(), v)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("arch", ["resnet20", "resnet18"])
def test_figures_of_a_sample_do_not_depend_on_its_batch(arch: str) -> None:
    torch.manual_seed(0)
    member = accelerate(build(arch, classes=10).eval().cuda(), "float16", one_size=True).members[0]
    x = points(300, 3, 32, 32, dtype=torch.float32).cuda()
    found = []
    for count in (300, 200, 40, 1):
        u = x[:count].clone().requires_grad_()
        logits = member(u)
        (gradient,) = torch.autograd.grad(logits[:, 1].sum(), u)
        found.append((logits.detach()[:1], gradient[:1], member(x[:count])[:1]))
    for row in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(row, found[0]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_capture_that_runs_out_of_memory_can_be_tried_again() -> None:
    member, x = build("resnet20", classes=10).eval().cuda(), torch.rand(1024, 3, 32, 32, device="cuda")
    fast, before = accelerate(member, "tf32", graphs=True, tile=256).members[0], torch.cuda.current_stream()
    assert isinstance(fast, FastMember)
    fast.caller_makes_room = True
    gc.collect()
    torch.cuda.empty_cache()  # what earlier tests captured would count as this one's
    fast(x[:256].clone().requires_grad_())
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() * 1.5 / total)
    try:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            fast(x.clone().requires_grad_())
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.current_stream() == before and not torch.cuda.is_current_stream_capturing()
    held = torch.cuda.memory_reserved()
    fast.free_captured()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < held / 2
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="running without")
        logits = fast(x.clone().requires_grad_())
    assert fast.capturing
    assert float((logits - member(x)).norm() / logits.norm()) < 0.02
