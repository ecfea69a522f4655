"""A gallery of members that only seem robust: every one raises a signal, no honest one does, none is conclusive."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import problem, shorten_tight

from paper.gallery import HONEST, MASKED, digits
from recarc import Ball, Evaluation, RandomizedEnsemble, Tight, Verdict, evaluate
from recarc.attacks import tight, unmasking
from recarc.errors import RecarcWarning
from recarc.evaluation import checks, masking

SEEDS = (0, 1, 2)
LINF, L2, L1 = Ball("linf", 0.1), Ball("l2", 0.9), Ball("l1", 2.0)
SIGNALS = {
    "softmax(50 f)": {"probabilities", "gradients_vanish", "covering_ball_survived"},
    "8 levels": {"gradients_vanish", "covering_ball_survived", "random_beats_gradients"},
    "8 levels, leak": {"gradients_disagree", "random_beats_gradients"},
    "ripple": {"gradients_disagree", "random_beats_gradients"},
    "JPEG-like, leak": {"gradients_disagree", "random_beats_gradients"},
    "k-WTA": {"gradients_disagree"},
    "temperature 1e4": {"gradients_vanish"},
    "dead ReLU": {"gradients_vanish", "covering_ball_survived", "random_beats_gradients"},
    "turned near borders": {"gradients_disagree"},
    "noise inside": {"random_outputs", "gradients_disagree"},
}


def signals_of(member: Any, ball: Ball, count: int = masking.PROBE) -> set[str]:
    x, y = (part[:count] for part in digits("test"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        return {signal.name for signal in checks.check_members(RandomizedEnsemble([member]), x, y, ball)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MASKED)
def test_every_masked_member_is_noticed(name: str, seed: int) -> None:
    torch.manual_seed(seed)

    assert signals_of(MASKED[name](seed), LINF) >= SIGNALS[name]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", HONEST)
def test_honest_members_raise_no_signal(name: str, seed: int) -> None:
    member = HONEST[name](seed)
    for ball in (LINF, (L2, L1, Ball("linf", 0.01))[seed]):
        assert signals_of(member, ball) == set()


def verdict_on(member: Any, attack: Any, count: int = 270) -> Verdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecarcWarning)
        x, y = (part[:count] for part in digits("test"))
        return Verdict.of(evaluate(member, attack, (x, y), LINF, progress=False))


@pytest.mark.parametrize("name", MASKED)
def test_no_masked_member_is_conclusive(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, so that figure and floor meet by construction; on as many samples as a verdict needs."""
    monkeypatch.setattr(tight, "SEARCH", 10)  # `python -m paper gallery` has the whole of it
    monkeypatch.setattr(unmasking, "MORE_NEIGHBOURS", 2)
    torch.manual_seed(0)
    found = verdict_on(MASKED[name](0), Tight("quick", steps=2))
    signals = {signal.name for signal in found.signals}
    assert signals and found.robust.value > 0 and found.to_json()["signals"]
    assert not found.conclusive and any(name in found.sentence for name in signals)
    assert any("gradients mislead" in doubt for doubt in found.doubts), "not only because the preset is quick"


def half_detached(x: torch.Tensor) -> torch.Tensor:
    return HONEST["plain"](0)(x) + HONEST["plain"](1)(x).detach()


def gradient_of_another(x: torch.Tensor) -> torch.Tensor:
    other = HONEST["plain"](1)(x)
    return HONEST["plain"](0)(x).detach() + other - other.detach()


def decoy(x: torch.Tensor) -> torch.Tensor:
    """One network decides, another one's logits show: they lead down, but to its own boundary."""
    return HONEST["plain"](1)(x) + 50 * torch.nn.functional.one_hot(HONEST["plain"](0)(x).argmax(1), 10)


def winner_only(x: torch.Tensor) -> torch.Tensor:
    logits = HONEST["plain"](0)(x)
    return torch.where(logits == logits.amax(1, keepdim=True), logits + 20, 0.01 * logits)


@pytest.mark.parametrize("ball", [LINF, L2, L1])
@pytest.mark.parametrize(
    ("member", "name"),
    [
        (half_detached, "gradients_incomplete"),
        (gradient_of_another, "gradients_incomplete"),
        (decoy, "margin_jumps"),
        (winner_only, "margin_jumps"),
    ],
)
def test_gradients_that_lead_down_but_not_to_the_boundary(member: Any, name: str, ball: Ball) -> None:
    """A step along them does what they predict, so that only other measurements notice."""
    member(digits("test")[0][:1])  # trains its networks, which no measurement could: those run without gradients
    assert name in signals_of(member, ball)


def test_honest_members_stay_conclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_tight(monkeypatch)
    members = [HONEST["adversarially trained"](0), HONEST["plain"](0)]
    found = verdict_on(RandomizedEnsemble(members, [0.9, 0.1]), Tight(steps=2, challenge=1))
    assert found.conclusive and found.doubts == [] and found.signals == ()
    assert "no sign that their gradients mislead" in found.sentence
    assert not verdict_on(members[0], Tight(steps=2), count=3).conclusive, "three images say nothing"


def shifted(member: Any, by: float) -> Any:
    return lambda x: member(x) + by


def test_a_constant_on_the_logits_cannot_hide_a_mask() -> None:
    """Rounding swallows what a step changes: then nobody can tell, and that is a signal."""
    honest, masked = HONEST["plain"](0), MASKED["ripple"](0)
    assert "logits_rounded" in signals_of(shifted(masked, 1e6), LINF)
    assert "gradients_disagree" in signals_of(shifted(masked, 1e4), LINF), "the larger steps still tell"
    assert signals_of(shifted(honest, 1e6), LINF) == {"logits_rounded"}
    assert signals_of(shifted(honest, 100), LINF) == set()
    huge = signals_of(lambda x: torch.cat([masked(x), torch.full((len(x), 1), -1e6)], 1), LINF)
    assert huge >= SIGNALS["ripple"], "a class that plays no part rounds nothing"


class SometimesRounded(torch.nn.Module):
    """Rounds the input of the few samples that are brighter than others, and leaks."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.plain, self.masked, self.least = HONEST["plain"](0), MASKED["8 levels, leak"](0), least

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        light = ((7 * x).round() / 7).mean((1, 2, 3), keepdim=True)[..., 0, 0]
        return torch.where(light > self.least, self.masked(x), self.plain(x))


def test_a_mask_on_few_samples_shows_where_every_attack_failed() -> None:
    x, y = digits("test")
    light, rows = x.mean((1, 2, 3)).sort().values, masking.probe_rows(len(x))
    member = SometimesRounded(float(light[int(0.97 * len(x))]))
    before = masking.measured(RandomizedEnsemble([member]), x[rows], y[rows], LINF)
    assert before == [], "too few to notice before the attack"
    found = verdict_on(member, Tight("quick", steps=2), count=len(x))
    assert {signal.name for signal in found.signals} & {"gradients_disagree", "random_beats_gradients"}
    assert any("gradients mislead" in doubt for doubt in found.doubts)


def test_survivors_are_a_random_few() -> None:
    withstood = np.arange(4000) % 2 == 0
    rows = masking.left_rows(withstood)
    assert len(rows) == 256 and withstood[rows].all() and len(set(rows // 400)) == 10
    assert masking.left_rows(withstood[:40]).tolist() == masking.left_rows(withstood[:40]).tolist()
    assert len(masking.left_rows(withstood[:40])) == 16 and len(masking.left_rows(~withstood[:1])) == 0


def test_members_that_are_never_drawn_are_not_measured() -> None:
    ensemble, (x, y) = problem()
    broken = ensemble.with_members([ensemble.members[0], lambda u: 1 / 0, ensemble.members[2]])
    assert masking.measured(broken.with_alpha([1.0, 0.0, 0.0]), x, y, LINF) == []


def test_random_numbers_and_the_size_of_the_probe() -> None:
    member = HONEST["plain"](0)
    before = torch.get_rng_state()
    assert signals_of(member, LINF, 16) == set() and torch.equal(torch.get_rng_state(), before)
    assert [masking.probe_size(n) for n in (3, 100, 268, 10_000)] == [3, 16, 33, 64]


def test_the_probe_is_a_random_few_in_order() -> None:
    """The first samples of a set that is sorted by class would be of one class."""
    rows = masking.probe_rows(1000)
    assert len(rows) == 64 and (rows[1:] > rows[:-1]).all() and np.array_equal(rows, masking.probe_rows(1000))
    assert len(set(rows // 100)) == 10, "from every tenth of the set"
    assert masking.probe_rows(3).tolist() == [0, 1, 2]


def test_a_larger_ball_that_is_harder_is_noticed() -> None:
    """Waves as long as the steps in the larger ball: these go from crest to crest, those of eps into the troughs."""
    eps = 0.1

    def wavy(x: torch.Tensor) -> torch.Tensor:
        d = (x.double() - 0.5).flatten(1).mean(1) / eps
        return torch.stack([0.5 + (4 * torch.pi * d).cos() - 0.01 * d, 0 * d], dim=1)

    x, y = torch.full((16, 1, 4, 4), 0.5), torch.zeros(16, dtype=torch.long)
    found = {signal.name: signal for signal in masking.member_signals(0, wavy, x, y, Ball("linf", eps))}
    assert found["larger_ball_harder"].figure == 1.0
    shorter = masking.member_signals(0, wavy, x, y, Ball("linf", eps / 2))
    assert "larger_ball_harder" not in {signal.name for signal in shorter}, "other waves"


@pytest.mark.parametrize("name", ["softmax(50 f)", "8 levels, leak", "ripple"])
def test_tight_reacts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few images of the plain network, where gradients see next to nothing; a resumed run reacts alike."""
    monkeypatch.setattr(tight, "SEARCH", 200)
    torch.manual_seed(0)
    x, y = (part[:16] for part in digits("test"))
    member, attack = MASKED[name](0), Tight("quick", steps=2)

    def run(member: Any, **options: Any) -> Evaluation:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecarcWarning)
            return evaluate(member, attack, (x, y), LINF, progress=False, **options)

    found, plain = run(member, out=tmp_path / "run", shard_size=8), run(HONEST["plain"](0))
    masked = found.configuration["attack"]["masked"]
    assert {signal for _, signal in masked} >= SIGNALS[name] and plain.configuration["attack"]["masked"] is None
    assert found.robust_accuracy <= plain.robust_accuracy + 2 / 16
    assert found.robust_accuracy < found.stage_accuracies["adaptive_pgd"].value - 0.2
    if name != "ripple":
        return
    (tmp_path / "run" / "shard-00001.parquet").unlink()
    again = run(member, out=tmp_path / "run", shard_size=8)
    assert np.array_equal(again.adversarial_predictions, found.adversarial_predictions)


def test_a_ball_without_a_box_and_one_radius_per_sample() -> None:
    member = HONEST["plain"](1)
    assert signals_of(member, Ball("linf", 0.1, box=None)) == set()
    assert signals_of(member, Ball("linf", torch.linspace(0, 0.2, masking.PROBE))) == set()
