"""Choosing alpha, against exact optima of linear ensembles and small programs solved by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from recarc import AdaptivePGD, Ball, InputError, RandomizedEnsemble, Tight, save_ensemble
from recarc import sampling as choosing
from recarc.cli import app as program
from recarc.exact import optimum
from recarc.models import build
from tiny import assert_unchanged, binary, photograph, points


def linear_pair(seed: int, count: int = 30) -> tuple[RandomizedEnsemble, choosing.AttackedSamples]:
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(2, 6, generator=g, dtype=torch.float64)
    ensemble = RandomizedEnsemble([binary(w[0], 0.4), binary(w[1], 0.6)])
    x = 0.4 * torch.randn(count, 6, generator=g, dtype=torch.float64)
    y = torch.ones(count, dtype=torch.long)
    return ensemble, choosing.AttackedSamples(x, y, Ball("linf", 0.15, box=None), batch_size=32)


def exact(ensemble: RandomizedEnsemble, samples: choosing.AttackedSamples, alpha: list[float]) -> float:
    return float(optimum(ensemble.with_alpha(alpha), samples.x, samples.y, samples.ball).accuracy.mean())


def test_two_member_formula_is_the_exact_error_at_every_alpha() -> None:
    ensemble, samples = linear_pair(0)
    found = choosing.two_members(ensemble, samples)
    for a in (0.0, 0.2, 0.5, 0.8, 1.0):
        assert 1 - found.error(a) == pytest.approx(exact(ensemble, samples, [a, 1 - a]), abs=1e-9)


def test_what_any_attack_found_counts_at_every_alpha() -> None:
    ensemble, samples = linear_pair(0)
    weak = samples.patterns(ensemble.with_alpha([1.0, 0.0]), AdaptivePGD(steps=1, step_size=1e-4))
    assert samples.accuracy([1.0, 0.0]) == pytest.approx(1 - weak[0].mean())
    found = choosing.two_members(ensemble, samples)
    for a in (0.0, 0.3, 0.5, 1.0):
        assert samples.accuracy([a, 1 - a]) == pytest.approx(1 - found.error(a), abs=1e-12)
    samples.seen.append(np.ones_like(weak))
    assert samples.accuracy([0.3, 0.7]) == pytest.approx(0)
    assert choosing.two_members(ensemble, samples) == choosing.TwoMembers(1.0, 1.0, 0.0)


def test_copies_search_and_the_members_judge() -> None:
    ensemble, samples = linear_pair(0)
    away = [lambda x, f=f: -f(x) for f in ensemble.members]  # leads the search the wrong way
    alike, misled = (replace(samples, search=members, seen=[]) for members in (ensemble.members, away))
    for part in (samples, alike, misled):
        part.patterns(ensemble, AdaptivePGD())
        part.witnessed(ensemble, Tight("quick"))
    assert np.array_equal(samples.seen, alike.seen)
    assert misled.accuracy([0.5, 0.5]) > samples.accuracy([0.5, 0.5])


@pytest.mark.parametrize("seed", [0, 1])
def test_osp_and_cutting_planes_find_the_best_alpha(seed: int) -> None:
    ensemble, samples = linear_pair(seed)
    best = max(exact(ensemble, samples, a) for a in choosing.simplex_grid(2, 21))
    lp = choosing.cutting_planes(ensemble, samples)
    assert exact(ensemble, samples, lp.alpha) >= best - 1e-6
    osp = choosing.osp(ensemble, samples, rounds=6)
    assert exact(ensemble, samples, osp.alpha) >= max(best - 0.06, exact(ensemble, samples, [0.5, 0.5]))
    grid = choosing.grid_search(ensemble, samples)
    assert grid.believed >= exact(ensemble, samples, grid.alpha) - 1e-9
    assert len(grid.history) == 11


def test_osp_attacks_no_alpha_twice() -> None:
    """Members that err alike leave alpha where it is, and the attack repeats itself."""
    ensemble, samples = linear_pair(0)
    twins = RandomizedEnsemble([ensemble.members[0], ensemble.members[0]])
    found = choosing.osp(twins, samples, rounds=5)
    assert len(found.history) >= 5 and len(samples.seen) == 1 and found.alpha == pytest.approx([0.5, 0.5])


def test_program_over_patterns_by_hand() -> None:
    """Half of the samples lose member 1, half lose member 2, never both: the even draw halves the error."""
    fooled = np.array([[True, True, False, False], [False, False, True, True]])
    alpha, value = choosing.best_for_patterns([fooled])
    assert value == pytest.approx(0.5)
    either = np.array([[True] * 4, [False] * 4]), np.array([[False] * 4, [True] * 4])
    alpha, value = choosing.best_for_patterns(list(either))
    assert alpha == pytest.approx([0.5, 0.5]) and value == pytest.approx(0.5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_no_alpha_gains_more_than_the_bound(seed: int) -> None:
    """Against the exact optimum at every alpha of a grid; the member alone is the reference."""
    ensemble, samples = linear_pair(seed)
    for alpha in ([0.5, 0.5], [1.0, 0.0], [0.0, 1.0]):
        samples.witnessed(ensemble.with_alpha(alpha), Tight("quick"))
    for member in (0, 1):
        alone = exact(ensemble, samples, np.eye(2)[member].tolist())
        best = max(exact(ensemble, samples, a) for a in choosing.simplex_grid(2, 21))
        found = choosing.gain_over(member, [0.5, 0.5], samples)
        assert found.alone.value == pytest.approx(alone) and best - alone <= found.most.value + 1e-9
        assert found.most.value <= best - alone + 0.05, "a bound that says something"
        assert found.gain.value == pytest.approx(exact(ensemble, samples, [0.5, 0.5]) - alone)
        assert 0 <= found.most.low <= found.most.value <= found.most.high
        itself = choosing.gain_over(member, np.eye(2)[member].tolist(), samples).gain
        assert (itself.value, itself.low, itself.high) == (0, 0, 0)


def test_the_interval_of_the_bound_covers_the_best_gain_of_all() -> None:
    """Patterns drawn at random: on 30 % of the samples only one of two members can be fooled at a time, e_1 = e_2."""
    g, covered = np.random.default_rng(0), 0
    for _ in range(400):
        kind = g.choice(3, size=200, p=[0.3, 0.3, 0.4])  # 0: either, but not both; 1: both; 2: none
        seen = [np.stack([kind < 2, kind == 1]), np.stack([kind == 1, kind < 2])]
        samples = choosing.AttackedSamples(torch.zeros(200, 1), torch.zeros(200), Ball("linf", 0.1), seen=seen)
        covered += choosing.gain_over(0, [0.5, 0.5], samples).most.high >= 0.15
    assert covered >= 0.94 * 400


def test_sentences() -> None:
    assert "Randomizing does not help" in choosing.TwoMembers(0.5, 1.0, 0.2).sentence
    assert "Use the first member alone: it keeps 50.00 %" in choosing.TwoMembers(0.5, 1.0, 0.2).sentence
    helps = choosing.TwoMembers(0.5, 0.6, 0.4)
    few, many = (choosing.TwoMembers(0.5, 0.6, 0.2, samples) for samples in (20, 2000))
    assert few.sentence.startswith("These 20 samples are too few to tell") and many.sentence.startswith("Randomizing")
    assert choosing.TwoMembers(1.0, 1.0, 0.0, 2000).sentence.startswith("Randomizing does not help")
    assert helps.helps and "it keeps 65.00 %" in helps.sentence
    words = choosing.TwoMembers(0.5, 0.6, 0.4, 100).identity(0.9)
    assert "P(R) between 0 (the floor) and 40.00 % [30.94, 49.80] (as found)" in words
    assert words.endswith("at alpha = (0.9, 0.1) the error is between 47.00 % and 51.00 %.")


def test_simplex() -> None:
    assert choosing.simplex_grid(2, 3) == [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]
    grid = choosing.simplex_grid(3, 5)
    assert len(grid) == 15 and all(sum(a) == pytest.approx(1) for a in grid)
    with pytest.raises(InputError, match="at least 2 points"):
        choosing.simplex_grid(2, 1)


def test_a_grid_that_nobody_would_wait_for_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choosing.grid_size(2, 11) == 11 and choosing.grid_size(8, 11) == 19448
    assert choosing.grid_size(3, 5) == len(choosing.simplex_grid(3, 5))
    _, samples = linear_pair(0)
    monkeypatch.setattr(choosing, "simplex_grid", lambda *_: pytest.fail("the grid was built"))
    eight = RandomizedEnsemble([binary([1.0] * 6, 0.0)] * 8)
    with pytest.raises(InputError, match=r"for 8 members takes 19,448 attacks.*osp or lp, or fewer points"):
        choosing.grid_search(eight, samples)


def test_the_command_leaves_out_a_grid_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    ensemble = save_ensemble(RandomizedEnsemble([build("linear", 10, 1, 8) for _ in range(6)]), tmp_path / "rec")
    words = ["alpha", str(ensemble), "--data", "digits", "--limit", "4", "--eps", "0.02", "--rounds", "1", "--quiet"]
    for name in ("osp", "cutting_planes"):
        choice = choosing.Choice(name, [1 / 6] * 6, 0.5, [])
        monkeypatch.setattr(choosing, name, lambda *_, choice=choice, **__: choice)
    assert program.run([*words, "--json"]) == 0
    printed = capsys.readouterr()
    assert list(json.loads(printed.out)["choices"]) == ["osp", "cutting_planes"]
    said = "grid is left out: 11 points per side for 6 members would take 3,003 attacks"
    assert printed.err.splitlines()[0] == said and "--split test takes images that they have not seen" in printed.err
    monkeypatch.setattr(choosing, "osp", lambda *_, **__: pytest.fail("an attack was started"))
    assert program.run([*words, "--methods", "osp,grid"]) == 2
    assert "3,003 attacks" in capsys.readouterr().err


def test_three_members_are_not_two() -> None:
    _, samples = linear_pair(0)
    with pytest.raises(InputError, match="ensemble of 2, this one has 3"):
        choosing.two_members(RandomizedEnsemble([binary([1.0] * 6, 0.0)] * 3), samples)


def test_members_in_train_mode_are_judged_in_eval_mode_and_left_alone() -> None:
    torch.manual_seed(0)
    members = [nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
    ensemble = RandomizedEnsemble(members)
    x = points(24, 6, dtype=torch.float32)
    samples = choosing.AttackedSamples(x, ensemble.eval().predictions(x)[0], Ball("linf", 0.1), batch_size=10)
    attack, tight = AdaptivePGD(steps=2), Tight("quick", steps=2)
    expected = samples.patterns(ensemble, attack), choosing.two_members(ensemble, samples, tight)
    ensemble.train()
    before = photograph(ensemble)
    found = samples.patterns(ensemble, attack), choosing.two_members(ensemble, samples, tight)
    assert_unchanged(before, photograph(ensemble))
    assert np.array_equal(found[0], expected[0]) and found[1] == expected[1]
