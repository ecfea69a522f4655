"""Every method's loss against a literal transcription with loops over samples and members."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from recarc import Ball
from recarc.training import recipe_for
from recarc.training.method import Method, StepContext, random_start
from recarc.training.methods import method_named
from recarc.training.methods.adp import log_volume, non_true
from recarc.training.methods.gal import logits_and_gradients
from recarc.training.methods.ibp import RAMP
from recarc.training.methods.mrboost import mixture_log_probabilities
from recarc.training.methods.tournament import tournament
from recarc.training.second_order import Shape

CLASSES, BATCH = 4, 5


class Tiny(nn.Module):
    """Two smooth layers, so that there are second derivatives to test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.fc = nn.Linear(3 * 9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.conv(x)).flatten(1))


@pytest.fixture
def context() -> StepContext:
    torch.manual_seed(0)
    members = [Tiny().double().float() for _ in range(3)]
    recipe = replace(recipe_for("fast", "at", "digits", "cnn"), diversity=1.0)
    alpha = torch.tensor([0.5, 0.3, 0.2])
    return StepContext(
        members, members, [], recipe, Ball("linf", 0.1), alpha, host_generator=torch.Generator().manual_seed(0)
    )


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand((BATCH, 1, 3, 3), generator=generator)
    return x, torch.randint(CLASSES, (BATCH,), generator=generator)


@pytest.fixture
def relu_context() -> StepContext:
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Flatten(), nn.Linear(9, 6), nn.ReLU(), nn.Linear(6, CLASSES)) for _ in range(2)]
    recipe = recipe_for("fast", "ibp", "digits", "cnn")
    return StepContext(members, members, [], recipe, Ball("linf", 0.1), torch.tensor([0.5, 0.5]), progress=1.0)


def interval(member: nn.Module, x: Tensor, eps: float) -> tuple[list[float], list[float]]:
    """Interval bounds of the logits of one image, number by number."""
    low, high = [max(0.0, float(v) - eps) for v in x.flatten()], [min(1.0, float(v) + eps) for v in x.flatten()]
    for layer in (member[1], member[3]):  # type: ignore[index]
        below, above = [], []
        for w, b in zip(layer.weight.tolist(), layer.bias.tolist()):
            below.append(b + sum(v * (lo if v > 0 else hi) for v, lo, hi in zip(w, low, high)))
            above.append(b + sum(v * (hi if v > 0 else lo) for v, lo, hi in zip(w, low, high)))
        low, high = (below, above) if layer is member[3] else ([max(v, 0) for v in below], [max(v, 0) for v in above])  # type: ignore[index]
    return low, high


def test_ibp(relu_context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    """At the end of the ramp: half the clean loss, half that of the worst logits that intervals allow."""
    x, y = batch
    terms = method_named("ibp").loss(relu_context, x, x, y)
    clean = worst = 0.0
    for member in relu_context.trained:
        for image, label in zip(x, y.tolist()):
            low, high = interval(member, image, 0.1)
            logits = torch.tensor([lo if c == label else hi for c, (lo, hi) in enumerate(zip(low, high))])
            clean += ce(member(image[None])[0], label) / BATCH
            worst += ce(logits, label) / BATCH
    assert float(terms["ce"].detach()) == pytest.approx(0.5 * clean, rel=1e-4)
    assert float(terms["bound"].detach()) == pytest.approx(0.5 * worst, rel=1e-4)


def test_crown_tightens_the_bounds_of_ibp_and_can_be_left_out(
    relu_context: StepContext, batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = batch
    middle = replace(relu_context, progress=sum(RAMP) / 2)
    plain = replace(middle, recipe=replace(middle.recipe, crown=0.0))
    with_crown, without = (float(method_named("ibp").loss(c, x, x, y)["bound"].detach()) for c in (middle, plain))
    assert with_crown < without
    monkeypatch.setattr("recarc.training.methods.ibp.linear_margins", None)  # intervals alone ask for none
    assert float(method_named("ibp").loss(plain, x, x, y)["bound"].detach()) == without


def test_the_ramp_starts_with_the_clean_loss(relu_context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    for name in ("ibp", "jointibp"):
        start = method_named(name).loss(replace(relu_context, progress=0.0), x, x, y)
        assert float(start["bound"].detach()) == 0
        total = sum(method_named(name).loss(relu_context, x, x, y).values(), x.new_zeros(()))
        gradients = torch.autograd.grad(total, list(relu_context.trained[0].parameters()))
        assert all(bool(g.isfinite().all()) and float(g.abs().max()) > 0 for g in gradients[:2])


def test_jointibp_bounds_two_members_together(relu_context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    """With members that are equal, the joint bound of choice (c, c) is that of the member alone."""
    x, y = batch
    one = relu_context.trained[0]
    twins = replace(relu_context, trained=[one, one])
    method = method_named("jointibp")
    bound = 2 * float(method.loss(twins, x, x, y)["bound"].detach())
    lowest = method.lowest_margins(one, x, y, Ball("linf", 0.1), beta=1.0)  # type: ignore[attr-defined]
    wrong = lowest.scatter(1, y[:, None], torch.inf)
    same = torch.logsumexp(torch.cat([torch.zeros(BATCH, 1), -wrong], 1), 1).mean()
    assert bound >= float(same.detach())
    assert bound <= math.log(1 + (CLASSES - 1) ** 2 * math.exp(-float(wrong.detach().min()))) + 1e-4


def ce(logits: Tensor, label: int) -> float:
    values = [float(v) for v in logits.detach()]
    return math.log(sum(math.exp(v) for v in values)) - values[label]


def sample_gradient(member: nn.Module, x: Tensor, label: Tensor) -> Tensor:
    x = x[None].clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(member(x), label[None])
    return torch.autograd.grad(loss, x)[0].flatten()


def total(method: str, context: StepContext, x: Tensor, x_adv: Tensor, y: Tensor) -> float:
    parts = method_named(method).loss(context, x, x_adv, y)
    return float(torch.stack(list(parts.values())).sum().detach())


def test_plain_and_adversarial_losses_are_cross_entropy(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    one = replace(context, trained=context.trained[:1], victims=context.victims[:1])
    expected = sum(ce(context.trained[0](x[b : b + 1])[0], int(y[b])) for b in range(BATCH)) / BATCH
    for name in ("natural", "at", "bat", "iat", "free"):
        assert total(name, one, x, x, y) == pytest.approx(expected, abs=1e-6)


def test_label_smoothing_mixes_the_uniform_distribution_in(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    logits = context.trained[0](x)
    smooth = replace(context, recipe=replace(context.recipe, label_smoothing=0.2))
    expected = sum(
        0.8 * ce(logits[b], int(y[b])) + 0.2 / CLASSES * sum(ce(logits[b], c) for c in range(CLASSES))
        for b in range(BATCH)
    )
    assert float(smooth.loss(logits, y).detach()) == pytest.approx(expected / BATCH, abs=1e-6)


def test_adp(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    expected = 0.0
    for b in range(BATCH):
        logits = [member(x[b : b + 1])[0] for member in context.trained]
        p = [torch.softmax(z, 0).double() for z in logits]
        mean = sum(p) / 3
        entropy = -sum(float(q) * math.log(float(q)) for q in mean)
        rows = [torch.cat([q[: y[b]], q[y[b] + 1 :]]) for q in p]
        rows = [r / r.norm() for r in rows]
        gram = torch.tensor([[float(a @ c) for c in rows] for a in rows], dtype=torch.float64) + 1e-6 * torch.eye(3)
        expected += (
            sum(ce(z, int(y[b])) for z in logits) - 2.0 * entropy - 0.5 * math.log(float(torch.linalg.det(gram)))
        )
    assert total("adp", context, x, x, y) == pytest.approx(expected / BATCH, rel=2e-3)


def test_adp_takes_volumes_in_full_precision() -> None:
    torch.manual_seed(0)
    p = torch.softmax(torch.randn(3, 64, 10) * 0.5 + 2 * torch.randn(64, 10), 2)  # three members nearly alike
    v = non_true(p, torch.zeros(64, dtype=torch.int64))
    with torch.autocast("cpu", torch.bfloat16):
        actual = log_volume(v)
    gram = v.double() @ v.double().transpose(1, 2) + 1e-6 * torch.eye(3)
    assert torch.allclose(actual.double(), torch.logdet(gram), atol=0.05)


def test_gal(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    expected = 0.0
    for b in range(BATCH):
        expected += sum(ce(member(x[b : b + 1])[0], int(y[b])) for member in context.trained) / 3
        g = [sample_gradient(member, x[b], y[b]) for member in context.trained]
        terms = [math.exp(float(g[i] @ g[j] / g[i].norm() / g[j].norm())) for i, j in ((0, 1), (0, 2), (1, 2))]
        expected += 0.5 * math.log(sum(terms))
    assert total("gal", context, x, x, y) == pytest.approx(expected / BATCH, abs=1e-5)


def test_gal_backpropagates_through_each_member_once(
    context: StepContext, batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = batch
    owner = {member.conv.weight.data_ptr(): i for i, member in enumerate(context.trained)}  # type: ignore[union-attr,operator]
    back, visited = Shape.back, []

    def noted(self: Shape, g: Tensor, x: Tensor, w: Tensor, wanted: tuple[bool, bool, bool]) -> tuple[Tensor, ...]:
        visited.append((owner[w.data_ptr()], wanted))
        return back(self, g, x, w, wanted)

    monkeypatch.setattr(Shape, "back", noted)
    logits, actual = logits_and_gradients(context, x, y)
    assert visited == [(i, (True, False, False)) for i in range(3)]  # one convolution each, its input alone
    weights = [p for member in context.trained for p in member.parameters()]
    mine = torch.autograd.grad(logits.sum() + actual.square().sum(), weights)
    u = x.clone().requires_grad_()
    losses = [torch.nn.functional.cross_entropy(member(u), y, reduction="sum") for member in context.trained]
    plain = torch.stack([torch.autograd.grad(loss, u, create_graph=True)[0].flatten(1) for loss in losses])
    expected = torch.autograd.grad(sum(m(x).sum() for m in context.trained) + plain.square().sum(), weights)
    assert torch.allclose(actual, plain, atol=1e-6)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(mine, expected, strict=True))


def test_trs(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    x_adv = (x + 0.03).clamp(0, 1)
    ce_sum = cosines = norms = 0.0
    for b in range(BATCH):
        ce_sum += sum(ce(member(x[b : b + 1])[0], int(y[b])) for member in context.trained)
        g = [sample_gradient(member, x[b], y[b]) for member in context.trained]
        cosines += sum(abs(float(g[i] @ g[j] / g[i].norm() / g[j].norm())) for i, j in ((0, 1), (0, 2), (1, 2))) / 3
        norms += sum(float((sample_gradient(m, x_adv[b], y[b]) / 128).norm()) ** 2 for m in context.trained) / 3
    expected = (ce_sum + 5 * (2 * cosines + 2 * 2 * norms)) / BATCH
    assert total("trs", context, x, x_adv, y) == pytest.approx(expected, rel=1e-5)


def test_trs_finds_points_with_larger_gradients(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    x_adv = method_named("trs").perturb(context, x, y)
    assert float(Ball("linf", 0.1).violation(x, x_adv).max()) < 1e-6

    def norms(points: Tensor) -> float:
        return sum(float(sample_gradient(m, points[b], y[b]).norm()) for m in context.trained for b in range(BATCH))

    assert norms(x_adv) > norms(x)
    assert torch.equal(x_adv[1::2], x[1::2])
    assert bool((x_adv[::2] != x[::2]).flatten(1).any(1).all())


@pytest.mark.parametrize("momentum", [0.1, None])
def test_trs_counts_clean_images_alone_in_running_statistics(
    batch: tuple[Tensor, Tensor], momentum: float | None
) -> None:
    x, y = batch

    def net() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, momentum=momentum), nn.Flatten(), nn.Linear(2, CLASSES)
        return nn.Sequential(*layers).train()

    members, expected = [net(), net()], net()
    recipe = replace(recipe_for("fast", "trs", "digits", "cnn"), attack_mode="train")  # victims are those that train
    both = StepContext(members, members, [], recipe, Ball("linf", 0.1), torch.ones(2) / 2)
    for _ in range(3):
        method_named("trs").loss(both, x, method_named("trs").perturb(both, x, y), y)
        expected(x)
    for member in members:
        for (name, buffer), wanted in zip(member.named_buffers(), expected.buffers(), strict=True):
            assert torch.allclose(buffer, wanted, atol=1e-6), name


def test_dverge(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    x_adv = torch.stack([x, (x + 0.01).clamp(0, 1), (x - 0.02).clamp(0, 1)])
    expected = 0.0
    for i in range(3):
        for j in range(3):
            if j != i:
                expected += sum(ce(context.trained[i](x_adv[j, b : b + 1])[0], int(y[b])) for b in range(BATCH)) / BATCH
    assert total("dverge", context, x, x_adv, y) == pytest.approx(expected, rel=1e-5)


def test_dverge_distils_the_other_images_features(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    from recarc.training.methods.dverge import distance, distilled, features

    x, _ = batch
    member, others = context.trained[0], x.roll(1, 0)
    x_adv = distilled(member, 0, x, others)
    assert float((x_adv - x).abs().max()) <= 0.07 + 1e-6
    h = [features(member, member.conv, z) for z in (x, x_adv, others)]  # type: ignore[arg-type]
    assert bool((distance(h[1], h[2]) < distance(h[0], h[2])).all())


def test_margin_loss_and_mixture(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    one = replace(context, trained=context.trained[2:], victims=context.victims[2:], fixed=context.trained[:2])
    expected = 0.0
    for b in range(BATCH):
        z = context.trained[2](x[b : b + 1])[0]
        expected += ce(z, int(y[b])) + sum(ce(-z, c) for c in range(CLASSES) if c != int(y[b])) / (CLASSES - 1)
        p = sum(a * torch.softmax(f(x[b : b + 1])[0], 0) for a, f in zip((0.5, 0.3, 0.2), context.trained))
        actual = mixture_log_probabilities(one, x[b : b + 1])[0]
        assert torch.allclose(actual, p.log(), atol=1e-5)  # type: ignore[union-attr]
    for name in ("mrboost", "barre"):
        assert total(name, one, x, x, y) == pytest.approx(expected / BATCH, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_jat_trains_some_samples_alone_and_the_rest_together(
    share: float, context: StepContext, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    noise = torch.rand((BATCH, 10), generator=torch.Generator().manual_seed(2))
    context = replace(context, recipe=replace(context.recipe, diversity=share), start_noise=noise)
    first = BATCH - round(share * BATCH)
    x_adv = method_named("jat").perturb(context, x, y)
    for i, member in enumerate(context.victims):
        own = method_named("at").perturb(replace(context, victims=[member]), x, y)
        assert torch.allclose(x_adv[i, :first], own[:first], atol=1e-6)
        assert torch.equal(x_adv[i, first:], x_adv[0, first:])
    alone = together = 0.0
    for b in range(BATCH):
        values = [ce(member(x_adv[i, b : b + 1])[0], int(y[b])) for i, member in enumerate(context.trained)]
        if b < first:
            alone += sum(values) / BATCH
        else:
            together -= 3 / BATCH * math.log(sum(math.exp(-v) for v in values) / 3)
    terms = method_named("jat").loss(context, x, x_adv, y)
    assert terms["alone"].item() == pytest.approx(alone, rel=1e-5, abs=1e-6)
    assert terms["together"].item() == pytest.approx(together, rel=1e-5, abs=1e-6)


def test_jat_goes_against_the_members_that_still_stand(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    """A member that is fooled deeply does not steer the perturbation for all."""
    x, y = batch
    fallen = nn.Sequential(nn.Flatten(), nn.Linear(9, CLASSES))
    with torch.no_grad():
        fallen[1].bias.copy_(torch.tensor([-50.0, 50, 0, 0]))
    standing, y = context.victims[0], torch.zeros_like(y)
    context = replace(context, recipe=replace(context.recipe, diversity=1.0))
    jat = method_named("jat")
    both, one = (jat.perturb(replace(context, victims=v), x, y)[0] for v in ([fallen, standing], [standing]))
    assert torch.equal(both, one)


def test_cover_weighs_what_the_others_do_not_hold(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    noise = torch.rand((BATCH, 10), generator=torch.Generator().manual_seed(2))
    context = replace(context, recipe=replace(context.recipe, diversity=0.4), start_noise=noise)
    x_adv = method_named("cover").perturb(context, x, y)
    values = []
    for i, member in enumerate(context.trained):
        own = method_named("at").perturb(replace(context, victims=[context.victims[i]]), x, y)
        assert torch.allclose(x_adv[i], own, atol=1e-6)
        values.append([ce(member(x_adv[i, b : b + 1])[0], int(y[b])) for b in range(BATCH)])
    expected = 0.0
    for i in range(3):
        fallen = [1 - sum(math.exp(-values[j][b]) for j in range(3) if j != i) / 2 for b in range(BATCH)]
        weights = [0.6 + 0.4 * f * BATCH / sum(fallen) for f in fallen]
        expected += sum(w * v for w, v in zip(weights, values[i])) / BATCH
    assert total("cover", context, x, x_adv, y) == pytest.approx(expected, rel=1e-5)


def test_members_of_a_tournament_lean_opposite_ways(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    table = tournament(CLASSES, x.device)
    assert torch.equal(table, -table.T) and (table.abs().sum(1) == CLASSES - 1).all()
    assert table.sum(1).abs().max() < CLASSES - 1  # no class is held against all others
    context = replace(context, recipe=replace(context.recipe, diversity=0.7))
    (stages,) = method_named("tournament").plan(2, 0)
    for stage, side in zip(stages, (1, -1)):
        member = context.trained[stage.members[0]]
        expected = 0.0
        for b in range(BATCH):
            expected += ce(member(x[b : b + 1])[0] + 0.7 * side * table[y[b]], int(y[b])) / BATCH
        assert stage.method is not None
        found = stage.method.loss(replace(context, trained=[member], victims=[member]), x, x, y)["ce"]
        assert found.item() == pytest.approx(expected, rel=1e-5)


def test_free_takes_a_step_of_eps_along_the_losss_gradient(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    method, ball = method_named("free"), Ball("linf", 0.1)
    method.setup(context, x)
    first = method.perturb(context, x, y)
    assert torch.equal(first, x)
    g = torch.stack([sample_gradient(context.trained[0], x[b], y[b]).reshape(1, 3, 3) for b in range(BATCH)])
    method.after_update(context, x, first, g)
    assert torch.allclose(context.buffers["delta"], ball.project(0.1 * g.sign(), x))


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_attacks_in_training_stay_in_the_ball_and_raise_the_loss(
    norm: str, context: StepContext, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    ball = Ball(norm, 0.3)
    u = torch.rand((BATCH, 10), generator=torch.Generator().manual_seed(2))
    attacked = replace(context, ball=ball, start_noise=u)
    start = x + random_start(ball, x, u)
    assert float(ball.violation(x, start).max()) < 1e-6
    x_adv = method_named("at").perturb(attacked, x, y)
    assert float(ball.violation(x, x_adv).max()) < 1e-6
    loss = torch.nn.functional.cross_entropy
    assert float(loss(context.trained[0](x_adv), y)) > float(loss(context.trained[0](x), y))


def test_bat_attacks_the_fixed_mixture_alone(context: StepContext, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    bat: Method = method_named("bat")
    fixed = replace(context, trained=context.trained[2:], victims=context.victims[2:], fixed=context.trained[:2])
    fixed = replace(fixed, alpha=torch.tensor(bat.training_alpha(2, 1)))
    x_adv = bat.perturb(fixed, x, y)
    other: Callable[[Tensor], Tensor] = Tiny()
    assert torch.equal(x_adv, bat.perturb(replace(fixed, trained=[other], victims=[other]), x, y))  # type: ignore[list-item]
    assert bat.alpha(2) == pytest.approx([0.9, 0.1])
    assert bat.alpha(3) == pytest.approx([0.81, 0.09, 0.1])
