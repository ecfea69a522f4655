"""Each warning appears where it should, says what to do, and stays away elsewhere."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import BALL, QUICK, problem, shorten_tight
from torch import Tensor, nn

from recarc import PGD, Ball, Evaluation, RandomizedEnsemble, Tight, Verdict, evaluate, load_ensemble, save_ensemble
from recarc.attacks import Outcome, Problem, Stage, tight, unmasking
from recarc.evaluation import RecarcWarning
from recarc.models import build


def warned(ensemble: Any, attack: Any = QUICK, data: Any = None, ball: Ball = BALL) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(ensemble, attack, data or problem()[1], ball)
    return [str(w.message) for w in caught if issubclass(w.category, RecarcWarning)]


def test_a_sound_evaluation_is_silent() -> None:
    assert warned(problem()[0]) == []


def member(index: int = 0) -> Any:
    return problem()[0].members[index]


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = member()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + torch.randn(5)


class Saturated(nn.Module):
    """A softmax that is exactly one-hot, then its logarithm: no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return 1e6 * member()(x)


def in_train_mode() -> Any:
    """A BatchNorm that evaluation mode does not reach."""
    net = nn.Sequential(nn.BatchNorm1d(6), member()).train()
    return lambda x: net(x)


class Rounded(nn.Module):
    """Inputs cut to eight levels: no gradient anywhere."""

    def forward(self, x: Tensor) -> Tensor:
        return member()((8 * x).round() / 8)


@pytest.mark.parametrize(
    "broken, message, advice",
    [
        (lambda: nn.Sequential(member(), nn.Softmax(1)).eval(), "look like probabilities", "take the softmax out"),
        (lambda: Noisy().eval(), "different outputs on the same inputs", "average"),
        (lambda: Saturated().eval(), "gradient of members[0] vanishes on", "loss='margin'"),
        (lambda: in_train_mode(), "differently alone than in a batch", "in eval mode"),
        (lambda: Rounded().eval(), "even that of its logits", "a smooth copy"),
        (lambda: lambda x: member()(x).detach(), "no gradient in its input", "detach"),
        (lambda: member().train(), "train mode", "call .eval()"),
    ],
)
def test_members(broken: Any, message: str, advice: str) -> None:
    def nothing(ensemble: RandomizedEnsemble, x: Tensor, y: Tensor, ball: Ball) -> Tensor:
        return x

    found = warned(RandomizedEnsemble([broken()]), nothing)
    assert any(message in text and advice in text for text in found), found


def test_chance_level() -> None:
    ensemble, (x, y) = problem(60)
    found = warned(ensemble, data=(x, (y + 1) % 5))
    assert any("chance level" in text and "normalisation" in text for text in found)


def test_no_box_for_images() -> None:
    assert any("pass box=(0, 1)" in text for text in warned(problem()[0], ball=Ball("linf", 0.1, box=None)))
    assert any("the box is [0, 255]" in text for text in warned(problem()[0], ball=Ball("linf", 0.1, box=(0, 255))))


class Flattered:
    """A staged attack whose last stage finds much more than AdaptivePGD."""

    def outcome(self, problem: Problem) -> Outcome:
        x_adv = QUICK(problem.ensemble, problem.x, problem.y, problem.ball)
        return Outcome([(1.0, x_adv)], [Stage("adaptive_pgd", problem.x, alone=True), Stage("last", x_adv)])


@pytest.mark.parametrize(
    ("ball", "told"),
    [
        (Ball("l2", 2.5), "eps 2.5 in l2 covers the whole box, as inputs are in [0, 1]: did you mean 2.5/255?"),
        (Ball("l2", 1.3), "eps 1.3 in l2 is large enough to turn any input into the middle of the box"),
        (Ball("l1", 6.0), "eps 6 in l1 covers the whole box"),
        (Ball("linf", 0.5), "eps 0.5 in linf is large enough to turn any input into the middle of the box"),
        (Ball("l2", 5.0, (-1.0, 1.0)), "eps 5 in l2 covers the whole box, as inputs are in [-1, 1]"),
        (Ball("l2", torch.linspace(0, 3, len(problem()[1][0]))), "eps 3 in l2 covers the whole box"),
        (Ball("l2", 1.2), None),
        (Ball("l1", 2.0), None),  # a whole number says nothing of inputs that are no images
        (Ball("linf", 0.4), None),
        (Ball("l2", 2.4, (-1.0, 1.0)), None),
    ],
)
def test_a_ball_as_wide_as_the_box(ball: Ball, told: str | None) -> None:
    found = warned(problem()[0], ball=ball)
    assert found == [] if told is None else [text for text in found if text.startswith(told)]


@pytest.mark.parametrize(
    ("ball", "told"),
    [
        (Ball("linf", 0.05), "the members were trained in l2 and are attacked in linf: did you mean l2?"),
        (
            Ball("l2", 0.04),
            "the members were trained for eps 0.5 in l2 and are attacked with 0.04: is that intended?",
        ),
        (Ball("l2", 0.06), None),
        (Ball("l2", 0.0), None),
    ],
)
def test_another_ball_than_the_members_were_trained_for(ball: Ball, told: str | None, tmp_path: Path) -> None:
    members = [build("cnn", 5, 1, 8, width=4) for _ in range(2)]
    save_ensemble(RandomizedEnsemble(members), tmp_path / "rec", made_by={"norm": "l2", "eps": 0.5})
    data = torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 5
    loaded = load_ensemble(tmp_path / "rec")
    for rec in (loaded, loaded.with_alpha([0.9, 0.1]), loaded.averaged()):
        found = [text for text in warned(rec, PGD(steps=1), data, ball) if "trained" in text]
        assert found == ([] if told is None else [told])


def test_adaptive_pgd_far_above_the_worst() -> None:
    found = warned(problem()[0], Flattered(), ball=Ball("linf", 0.5))
    assert any("AdaptivePGD alone would report" in text and "publish the latter" in text for text in found)


def test_nan() -> None:
    x, y = problem()[1]
    x = x.clamp(max=0.9)
    x[3, 0] = 0.999

    def broken(u: Tensor) -> Tensor:
        return torch.where(u[:, :1] > 0.99, torch.nan, member()(u))

    found = warned(broken, data=(x, y), ball=Ball("linf", 1e-4))
    assert any("NaN logits" in text and "[3]" in text for text in found), np.array(found)


@pytest.fixture()
def short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a signal stands, tight searches long and without gradients."""
    monkeypatch.setattr(tight, "SEARCH", 10)
    monkeypatch.setattr(unmasking, "MORE_NEIGHBOURS", 2)
    shorten_tight(monkeypatch)


def test_warnings_stay_with_the_run(short_searches: None, tmp_path: Path) -> None:
    ensemble = RandomizedEnsemble([member(), Rounded().eval()])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = evaluate(ensemble, Tight(), problem()[1], BALL, out=tmp_path)
    assert any("even that of its logits" in text for text in result.warnings) and result.blind_members == [1]
    for again in (evaluate(ensemble, Tight(), problem()[1], BALL, out=tmp_path), Evaluation.load(tmp_path)):
        assert (again.warnings, again.signals, again.blind_members) == (result.warnings, result.signals, [1])
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["warnings"] == result.warnings
    assert summary["signals"] == [signal.to_json() for signal in result.signals]
    assert not Verdict.of(result).conclusive


def test_a_run_that_stops_early_keeps_its_warnings(short_searches: None, tmp_path: Path) -> None:
    class Stop:
        def shard_done(self, shard: Any) -> None:
            raise KeyboardInterrupt

    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        warnings.simplefilter("ignore")
        evaluate(Rounded().eval(), Tight(), problem()[1], BALL, out=tmp_path, shard_size=8, callbacks=[Stop()])
    found = Evaluation.load(tmp_path, partial=True)
    assert len(found) == 8 and found.blind_members == [0]
    assert [text.split(":")[0] for text in found.warnings] == [signal.name for signal in found.signals]


def test_a_silent_run_has_no_warnings() -> None:
    result = evaluate(problem()[0], QUICK, problem()[1], BALL)
    assert result.warnings == [] and result.blind_members == [] and {s.name for s in result.signals} <= {"chance_level"}


class OncePerPass(torch.autograd.Function):
    """Like a compiled member, whose buffers are given away to the first gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.used = False
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        assert not ctx.used, "a second gradient through one pass"
        ctx.used = True
        return gradient


def test_the_checks_take_one_gradient_a_pass() -> None:
    ensemble, (x, y) = problem(16)
    net = ensemble.members[0]
    found = evaluate(RandomizedEnsemble([lambda z: net(OncePerPass.apply(z))]), PGD(steps=2), (x, y), BALL)
    assert len(found) == 16 and not found.blind_members
