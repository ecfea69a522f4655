"""RandomizedEnsemble: exact expectations, ties, order, sampling, and flags that come back."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble, save_ensemble
from recarc.ensemble import as_ensemble, frozen, predictions_of, rounded, validated_alpha
from tiny import binary, mlp, mlp_ensemble, points


def constant(label: int, classes: int = 3) -> nn.Module:
    """A member that always answers `label`."""

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.eye(classes, dtype=x.dtype)[label].expand(len(x), classes) + 0 * x.flatten(1).sum(1)[:, None]

    return Constant()


# Eq. (1)


def test_expected_accuracy_by_hand() -> None:
    """f_1 = x_1 - 0.5, f_2 = x_2 - 0.5 with alpha (0.9, 0.1), label 1: the four corners."""
    ensemble = RandomizedEnsemble([binary([1, 0], -0.5), binary([0, 1], -0.5)], [0.9, 0.1])
    x = torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0]], dtype=torch.float64)
    y = torch.ones(4, dtype=torch.long)
    assert ensemble.predictions(x).tolist() == [[1, 1, 0, 0], [1, 0, 1, 0]]
    assert ensemble.correct(x, y).tolist() == [[True, True, False, False], [True, False, True, False]]
    accuracy = ensemble.expected_accuracy(x, y)
    assert accuracy.dtype == torch.float64
    assert accuracy.tolist() == [1.0, 0.9, 0.1, 0.0]
    assert ensemble.expected_accuracy(x, 1 - y).tolist() == [0.0, 0.1, 0.9, 1.0]


def test_expected_accuracy_is_the_mean_over_many_draws() -> None:
    ensemble = mlp_ensemble(3, [0.2, 0.5, 0.3])
    x = points(1, 6).expand(20000, 6)
    y = torch.zeros(1, dtype=torch.long)
    answers = ensemble(x, generator=torch.Generator().manual_seed(0)).argmax(1)
    for label in range(5):
        frequency = float((answers == label).double().mean())
        assert frequency == pytest.approx(float(ensemble.expected_accuracy(x[:1], y + label)), abs=0.015)


@pytest.mark.parametrize(
    ("alpha", "one", "other"),
    [
        ([0.05, 0.30, 0.35, 0.30], [1, 1, 0, 0], [0, 0, 1, 0]),
        ([0.1, 0.2, 0.3, 0.4], [1, 1, 0, 0], [0, 0, 1, 0]),
        ([0.1] * 10, [1] * 3 + [0] * 7, [0] * 7 + [1] * 3),
        ([0.7, 0.1, 0.1, 0.1], [0, 1, 1, 1], [0, 1, 1, 1]),
        ([1 / 3] * 3, [1, 1, 0], [0, 1, 1]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_sums_of_alpha_compare_equal(
    alpha: list[float], one: list[int], other: list[int], dtype: torch.dtype
) -> None:
    """In floating point 0.1 + 0.2 > 0.3 and, in float32, 0.05 + 0.30 > 0.35: such moves must count as equal."""
    ensemble = RandomizedEnsemble([constant(0)] * len(alpha), torch.tensor(alpha, dtype=dtype))
    bits = torch.tensor([one, other], dtype=torch.bool).T
    first, second = ensemble.score(bits).tolist()
    assert first == second


def test_all_right_is_exactly_one_and_all_wrong_exactly_zero() -> None:
    for alpha in ([0.1] * 10, [1 / 3] * 3, [1 / 7] * 7, [0.05, 0.30, 0.35, 0.30]):
        ensemble = RandomizedEnsemble([constant(0)] * len(alpha), alpha)
        assert ensemble.score(torch.ones(len(alpha), 1, dtype=torch.bool)).item() == 1.0
        assert ensemble.score(torch.zeros(len(alpha), 1, dtype=torch.bool)).item() == 0.0


def test_nan_logits_are_no_label_and_count_as_wrong() -> None:
    logits = torch.tensor([[[0.0, 1.0], [float("nan"), 1.0]], [[2.0, 1.0], [float("nan")] * 2]])
    assert predictions_of(logits).tolist() == [[1, -1], [0, -1]]
    ensemble = RandomizedEnsemble([lambda x: logits[0], lambda x: logits[1]], [0.4, 0.6])
    assert ensemble.expected_accuracy(torch.zeros(2, 3), torch.tensor([1, 1])).tolist() == [0.4, 0.0]


# Order and alpha


@pytest.mark.parametrize(
    ("alpha", "order"),
    [
        (None, [0, 1, 2, 3]),
        ([0.25] * 4, [0, 1, 2, 3]),
        ([0.1, 0.4, 0.1, 0.4], [1, 3, 0, 2]),
        ([0.0, 0.5, 0.0, 0.5], [1, 3]),
        ([0.0, 0.0, 1.0, 0.0], [2]),
        ([0.1, 0.2, 0.3, 0.4], [3, 2, 1, 0]),
    ],
)
def test_order_keeps_equal_alphas_as_given_and_drops_zeros(alpha: list[float] | None, order: list[int]) -> None:
    assert RandomizedEnsemble([constant(0)] * 4, alpha).order == order


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_tensors_mean_the_decimals_they_print(dtype: torch.dtype) -> None:
    alpha = validated_alpha(torch.tensor([0.1, 0.2, 0.7], dtype=dtype), 3)
    assert alpha.dtype == torch.float64
    torch.testing.assert_close(alpha, torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64), rtol=0, atol=1e-15)


def test_alpha_from_numpy_and_lists_and_none() -> None:
    assert validated_alpha(np.array([0.9, 0.1], dtype=np.float32), 2).tolist() == [0.9, 0.1]
    assert validated_alpha((1, 0), 2).tolist() == [1.0, 0.0]
    assert validated_alpha(None, 4).tolist() == [0.25] * 4


def test_alpha_is_a_copy() -> None:
    alpha = torch.tensor([0.5, 0.5], dtype=torch.float64)
    ensemble = RandomizedEnsemble([constant(0)] * 2, alpha)
    alpha[0] = 7
    assert ensemble.alpha.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        ([0.5, 0.6], r"alpha sums to 1.1, not 1: \[0.5, 0.6\]; divide it by its sum"),
        ([0.2, 0.2], "alpha sums to 0.4, not 1"),
        ([1.5, -0.5], r"alpha must be probabilities >= 0, got \[1.5, -0.5\]"),
        ([float("nan"), 1.0], "alpha must be probabilities >= 0, got .nan, 1.0."),
        ([0.5, 0.3, 0.2], r"alpha has 3 values for 2 members: \[0.5, 0.3, 0.2\]"),
        ([1.0], "alpha has 1 values for 2 members"),
        (torch.full((2, 1), 0.5), "alpha has 2 values for 2 members"),
    ],
)
def test_bad_alpha(alpha: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RandomizedEnsemble([constant(0), constant(1)], alpha)


@pytest.mark.parametrize("alpha", [[0.1] * 10, [1 / 7] * 7, [0.05, 0.30, 0.35, 0.30], [0.1, 0.2, 0.7 + 1e-7]])
def test_alpha_survives_other_members_and_being_validated_again(alpha: list[float]) -> None:
    ensemble = RandomizedEnsemble([constant(0)] * len(alpha), alpha)
    other = ensemble.with_members([constant(1)] * len(alpha))
    assert other.alpha.tolist() == ensemble.alpha.tolist() == validated_alpha(ensemble.alpha, len(alpha)).tolist()
    assert abs(sum(other.alpha.tolist()) - 1) < 1e-12 and other.predictions(torch.zeros(2, 3)).tolist()[0] == [1, 1]


def test_sums_of_probabilities_are_rounded_alike() -> None:
    assert rounded(0.1 + 0.2) == rounded(np.array([0.1 + 0.2]))[0] == 0.3
    assert rounded(torch.tensor([0.1 + 0.2], dtype=torch.float64)).item() == 0.3


def test_with_alpha_shares_the_members() -> None:
    ensemble = mlp_ensemble(2)
    other = ensemble.with_alpha([0.9, 0.1])
    assert other.members is not None and all(a is b for a, b in zip(ensemble.members, other.members))
    assert (ensemble.alpha.tolist(), other.alpha.tolist()) == ([0.5, 0.5], [0.9, 0.1])


# Members


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "an ensemble needs at least one member"),
        ([constant(0), 3], "member 1 is a int, not a callable"),
        ([None], "member 0 is a NoneType, not a callable"),
    ],
)
def test_bad_members(members: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RandomizedEnsemble(members)


def test_members_on_different_devices() -> None:
    with pytest.raises(InputError, match=r"members are on different devices \(cpu, meta\); move them with ensemble.to"):
        RandomizedEnsemble([nn.Linear(2, 2), nn.Linear(2, 2, device="meta")])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([constant(0, 3), constant(0, 4)], r"members disagree on the number of classes: \[3, 4\]"),
        ([nn.Linear(4, 1)], "members have 1 output; a binary classifier needs two logits"),
        ([lambda x: x[:, 0]], r"member 0 maps \(2, 4\) to \(2,\); expected \(B, classes\)"),
        ([lambda x: x[:1]], r"member 0 maps \(2, 4\) to \(1, 4\)"),
    ],
)
def test_members_that_do_not_give_logits(members: list[nn.Module], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RandomizedEnsemble(members).predictions(torch.zeros(2, 4))


@pytest.mark.parametrize("y", [torch.zeros(3, dtype=torch.long), torch.zeros(2, 1, dtype=torch.long)])
def test_labels_of_another_length_do_not_broadcast(y: Tensor) -> None:
    with pytest.raises(InputError, match="y has shape"):
        mlp_ensemble(2).expected_accuracy(points(2, 6), y)


def test_any_callable_is_a_member() -> None:
    weights = torch.eye(3, dtype=torch.float64)
    ensemble = RandomizedEnsemble([lambda x: x @ weights, mlp(0, dim=3, classes=3)])
    assert ensemble.logits(points(4, 3)).shape == (2, 4, 3)
    assert ensemble.device_of_members() == torch.device("cpu")
    assert RandomizedEnsemble([lambda x: x]).device_of_members() is None


def test_a_single_model_is_an_ensemble_of_one() -> None:
    net = mlp(0)
    ensemble = as_ensemble(net)
    assert len(ensemble) == 1 and ensemble.alpha.tolist() == [1.0]
    assert as_ensemble(ensemble) is ensemble


def test_module_habits_reach_the_members() -> None:
    ensemble = mlp_ensemble(2, [0.75, 0.25])
    assert sum(p.numel() for p in ensemble.parameters()) == 2 * sum(p.numel() for p in mlp(0).parameters())
    ensemble.to(torch.float32)
    assert all(p.dtype == torch.float32 for m in ensemble.modules_of_members for p in m.parameters())
    assert ensemble.members[0](points(1, 6, dtype=torch.float32)).dtype == torch.float32
    clone = copy.deepcopy(ensemble)
    assert clone.members[0] is clone.modules_of_members[0] and clone.members[0] is not ensemble.members[0]
    assert "alpha=[0.75, 0.25]" in repr(ensemble)


# Expected loss and logits


def test_expected_loss_and_logits_by_hand() -> None:
    ensemble = mlp_ensemble(3, [0.2, 0.5, 0.3])
    x, y = points(4, 6), torch.tensor([0, 1, 2, 3])
    logits = ensemble.logits(x)
    alpha = ensemble.alpha
    torch.testing.assert_close(ensemble.expected_logits(x), (alpha[:, None, None] * logits).sum(0))
    ce = torch.stack([nn.functional.cross_entropy(f, y, reduction="none") for f in logits])
    torch.testing.assert_close(ensemble.expected_loss(x, y), (alpha[:, None] * ce).sum(0))
    own = logits[:, torch.arange(4), y]
    others = logits.masked_fill(nn.functional.one_hot(y, 5).bool(), -torch.inf).amax(2)
    torch.testing.assert_close(ensemble.expected_loss(x, y, "margin"), (alpha[:, None] * (others - own)).sum(0))


def test_expectations_leave_out_members_of_probability_zero() -> None:
    def broken(x: Tensor) -> Tensor:
        raise AssertionError("a member with alpha 0 was called")

    ensemble = RandomizedEnsemble([mlp(0), broken], [1.0, 0.0])
    x, y = points(2, 6), torch.tensor([0, 1])
    torch.testing.assert_close(ensemble.expected_logits(x), mlp(0)(x))
    ensemble.expected_loss(x, y)


# Deployment


def test_forward_draws_each_member_as_often_as_alpha_says() -> None:
    alpha = [0.6, 0.0, 0.3, 0.1]
    ensemble = RandomizedEnsemble([constant(i, 4) for i in range(4)], alpha)
    x = torch.zeros(20000, 2)
    answers = ensemble(x, generator=torch.Generator().manual_seed(1)).argmax(1)
    frequency = torch.bincount(answers, minlength=4) / len(x)
    torch.testing.assert_close(frequency, torch.tensor(alpha), rtol=0, atol=0.015)
    assert frequency[1] == 0
    again = ensemble(x, generator=torch.Generator().manual_seed(1)).argmax(1)
    assert torch.equal(again, answers)


def test_forward_answers_each_sample_with_one_member() -> None:
    ensemble = mlp_ensemble(3)
    x = points(200, 6)
    logits, out = ensemble.logits(x), ensemble(x)
    torch.testing.assert_close((out[None] - logits).abs().amax(2).amin(0), torch.zeros(200, dtype=torch.float64))
    assert len(set((out[None] - logits).abs().amax(2).argmin(0).tolist())) == 3


def test_forward_of_an_empty_batch() -> None:
    assert mlp_ensemble(2)(points(0, 6)).shape == (0, 5)


def test_forward_is_differentiable() -> None:
    x = points(8, 6).requires_grad_()
    mlp_ensemble(2)(x).sum().backward()
    assert x.grad is not None and bool((x.grad.abs().sum(1) > 0).all())


# frozen


@pytest.mark.parametrize("fails", [False, True])
def test_frozen_puts_every_flag_back(fails: bool) -> None:
    first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3)).train()
    first[1].eval()  # mixed flags inside one member
    first[0].weight.requires_grad_(False)
    ensemble = RandomizedEnsemble([first, nn.Linear(4, 3).eval()])
    flags = [m.training for m in ensemble.modules()]
    wants = [p.requires_grad for p in ensemble.parameters()]
    try:
        with frozen(ensemble):
            assert not any(m.training for m in ensemble.modules())
            assert not any(p.requires_grad for p in ensemble.parameters())
            if fails:
                raise KeyError("inside")
    except KeyError:
        assert fails
    assert [m.training for m in ensemble.modules()] == flags
    assert [p.requires_grad for p in ensemble.parameters()] == wants
    assert True in wants and False in wants


def test_predictions_build_no_graph() -> None:
    ensemble, saved = mlp_ensemble(2), []
    x, y = points(3, 6).requires_grad_(), torch.zeros(3, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        assert not ensemble.expected_accuracy(x, y).requires_grad
        ensemble.predictions(x)
    assert not saved


# The vote


def vote_of(*logits: Tensor) -> RandomizedEnsemble:
    """The vote of members that answer the input, row numbers, with these rows."""
    return RandomizedEnsemble([lambda x, own=own: own[x] for own in logits]).voted()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_vote_among_equal_logits_is_counted(count: int, dtype: torch.dtype) -> None:
    """Logits that are small whole numbers: members choose the first of equal ones, whatever else they would do."""
    logits = torch.randint(0, 3, (count, 1000, 4), generator=torch.manual_seed(count)).to(dtype)
    found = vote_of(*logits).predictions(torch.arange(1000))[0]
    mean = logits.double().softmax(2).mean(0)
    votes = nn.functional.one_hot(logits.argmax(2), 4).sum(0)
    likeliest = mean.masked_fill(votes < votes.amax(1, keepdim=True), 0)
    chosen = likeliest.gather(1, found[:, None])[:, 0]
    assert bool((chosen >= likeliest.amax(1) - 1e-6).all())
    gap = likeliest.topk(2).values
    clear = gap[:, 0] - gap[:, 1] > 1e-6
    assert torch.equal(found[clear], likeliest.argmax(1)[clear])


def test_a_vote_of_members_with_infinite_logits() -> None:
    """Logarithms of probabilities that are 0, and all of them but one."""
    shares = torch.rand(3, 1000, 5, generator=torch.manual_seed(0)) - 0.3
    logs = shares.clamp(min=0).log()
    logs[..., 0] = torch.where(logs.isinf().all(-1), 0.0, logs[..., 0])
    certain = nn.functional.one_hot(logs.argmax(2), 5).float().log()
    for own in (logs, certain):
        votes, mean = nn.functional.one_hot(own.argmax(2), 5).sum(0), own.softmax(2).mean(0)
        expected = torch.where(votes == votes.amax(1, keepdim=True), mean, -1).argmax(1)
        found = vote_of(*own).logits(torch.arange(1000))[0]
        assert bool(found.isfinite().all()) and torch.equal(found.argmax(1), expected)


def test_a_vote_of_a_member_that_gives_nan_is_wrong() -> None:
    logits = torch.randn(3, 2, 4, generator=torch.manual_seed(0))
    logits[1, 1, 2] = torch.nan
    assert vote_of(*logits).predictions(torch.arange(2))[0].tolist()[1] == -1
    assert bool(vote_of(*logits).logits(torch.arange(2))[0, 1].isnan().all())


def test_a_list_of_models_is_refused_with_the_way_to_draw_them(tmp_path: Path) -> None:
    models = [nn.Linear(2, 2)]
    for given in (models, tuple(models)):
        with pytest.raises(InputError, match="of models; RandomizedEnsemble"):
            save_ensemble(given, tmp_path / "x")  # type: ignore[arg-type]


def test_modules_of_the_package_are_imported_when_they_are_used() -> None:
    import recarc

    assert recarc.sampling.osp and recarc.adapters.members.timm
    with pytest.raises(AttributeError, match="module 'recarc' has no attribute 'nothing'"):
        recarc.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        recarc.adapters.nothing  # noqa: B018
