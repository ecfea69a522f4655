"""Deployment: draws that follow alpha, nobody can foresee and a seed repeats; exported members that agree."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from recarc import InputError, RandomizedEnsemble
from recarc.deployment import export
from recarc.ensemble import Draws
from tiny import cnn, labels_of, mlp, mlp_ensemble, points


def test_sampled_accuracy_meets_the_exact_expectation() -> None:
    """20,000 answers; within four standard errors of the exact figure (a false alarm in 16,000)."""
    ensemble = mlp_ensemble(3, [0.6, 0.3, 0.1])
    x = points(200, 6)
    y = labels_of(ensemble, x)
    exact = float(ensemble.expected_accuracy(x, y).mean())
    scores = ensemble.expected_accuracy(x, y)
    for deployed in (ensemble.deploy(), ensemble.deploy(seed=1)):
        right = torch.stack([deployed.predict(x) == y for _ in range(100)]).double()
        error = math.sqrt(float((scores * (1 - scores)).mean()) / right.numel())
        assert abs(float(right.mean()) - exact) <= 4 * error
        per_sample = right.mean(0)
        assert float((per_sample - scores).abs().max()) < 0.3


@pytest.mark.parametrize("seed", [None, 0])
def test_draws_follow_alpha(seed: int | None) -> None:
    alpha = torch.tensor([0.7, 0.0, 0.2, 0.1], dtype=torch.float64)
    counts = torch.bincount(Draws(alpha, seed)(40_000), minlength=4).double() / 40_000
    assert counts[1] == 0
    assert bool(((counts - alpha).abs() <= 4.5 * (alpha * (1 - alpha) / 40_000).sqrt() + 1e-12).all())


def test_every_alpha_is_hit_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run through all whole numbers of a coarse alpha: each member gets its share and not one more."""
    draws = Draws(torch.tensor([0.625, 0.25, 0.125], dtype=torch.float64))
    numbers = iter(range(8))
    monkeypatch.setattr(draws._source, "randrange", lambda total: next(numbers))
    assert draws(8).tolist() == [0] * 5 + [1] * 2 + [2]
    thirds = Draws(torch.full((3,), 1 / 3, dtype=torch.float64))
    assert Fraction(thirds._edges[0], thirds._edges[-1]) == Fraction(1, 3)


def test_the_default_cannot_be_foreseen_and_a_seed_repeats() -> None:
    ensemble = mlp_ensemble(2)
    secret = ensemble.deploy()
    assert isinstance(secret.draws._source, random.SystemRandom)
    runs = []
    for _ in range(2):  # seeding every other generator changes nothing
        torch.manual_seed(0)
        random.seed(0)
        runs.append(secret.draws(200))
    assert not torch.equal(*runs)
    assert torch.equal(ensemble.deploy(seed=3).draws(200), ensemble.deploy(seed=3).draws(200))
    assert not torch.equal(ensemble.deploy(seed=3).draws(200), ensemble.deploy(seed=4).draws(200))


def test_deployed_answers_come_from_the_drawn_member() -> None:
    ensemble = mlp_ensemble(3)
    x = points(50, 6).requires_grad_()
    deployed = ensemble.deploy(seed=0)
    drawn = ensemble.deploy(seed=0).draws(50)
    expected = ensemble.logits(x)[drawn, torch.arange(50)]
    answers = deployed(x)
    assert torch.allclose(answers, expected) and not answers.requires_grad
    assert deployed(x[:0]).shape == (0, 5)
    assert len(list(deployed.parameters())) == len(list(ensemble.parameters()))


def test_bad_input(tmp_path: Path) -> None:
    ensemble = mlp_ensemble(2)
    with pytest.raises(InputError, match="seed is 'x'"):
        ensemble.deploy(seed="x")  # type: ignore[arg-type]
    ensemble.members[1].train()  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"member 1 is in train mode; call ensemble.eval\(\)"):
        ensemble.deploy()
    with pytest.raises(InputError, match="member 1 is in train mode"):
        export(ensemble, tmp_path / "out", points(4, 6))
    ensemble.eval()
    with pytest.raises(InputError, match=r"unknown format 'onx' .*'onnx'"):
        export(ensemble, tmp_path / "out", points(4, 6), format="onx")
    with pytest.raises(InputError, match="batch of at least 2"):
        export(ensemble, tmp_path / "out", points(1, 6))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="not empty"):
        export(ensemble, tmp_path, points(4, 6))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def members() -> list[nn.Module]:
    return [cnn(i, dtype=torch.float32) for i in range(2)]


def test_torch_export(tmp_path: Path) -> None:
    x = torch.rand(4, 2, 4, 4)
    ensemble = RandomizedEnsemble([*members(), lambda u: u.flatten(1)[:, :5]], [0.5, 0.25, 0.25])
    folder = export(ensemble, tmp_path / "out", x)
    manifest = json.loads((folder / "deployment.json").read_text())
    assert manifest["alpha"] == [0.5, 0.25, 0.25] and manifest["format"] == "torch"
    files = [f"member_{i}.pt2" for i in range(3)]
    assert sorted(p.name for p in folder.iterdir()) == ["deployment.json", *files]
    other = torch.rand(9, 2, 4, 4)
    for i, member in enumerate(ensemble.members):
        program = torch.export.load(folder / f"member_{i}.pt2").module()
        assert torch.allclose(program(other), member(other), atol=1e-6)
    loaded = [torch.export.load(folder / f"member_{i}.pt2").module() for i in range(3)]
    deployed = RandomizedEnsemble(loaded, manifest["alpha"])
    assert torch.allclose(deployed.expected_logits(other), ensemble.expected_logits(other), atol=1e-6)


def test_onnx_export(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: `make peers`")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: `make peers`")
    ensemble = RandomizedEnsemble(members()[:1])
    folder = export(ensemble, tmp_path / "out", torch.rand(4, 2, 4, 4), format="onnx")
    session = runtime.InferenceSession(str(folder / "member_0.onnx"), providers=["CPUExecutionProvider"])
    x = torch.rand(7, 2, 4, 4)
    (found,) = session.run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(found), ensemble.members[0](x), atol=1e-5)


def test_adapted_members_export(tmp_path: Path) -> None:
    from recarc.adapters.members import AdaptedMember

    member = AdaptedMember(members()[0], 0.5, 0.25).eval()
    export(RandomizedEnsemble([member]), tmp_path / "out", torch.rand(3, 2, 4, 4))


def test_an_unfinished_training_run_of_the_same_name_stays(tmp_path: Path) -> None:
    checkpoint = tmp_path / "out.part" / "checkpoint.pt"
    checkpoint.parent.mkdir()
    checkpoint.write_text("of `recarc train --out out`")
    export(RandomizedEnsemble([mlp(0)]), tmp_path / "out", points(4, 6))
    assert checkpoint.exists() and sorted(p.name for p in tmp_path.iterdir()) == ["out", "out.part"]


def test_a_member_that_cannot_be_exported_leaves_nothing(tmp_path: Path) -> None:
    class Moody(nn.Module):
        def forward(self, u: Tensor) -> Tensor:
            return u if float(u.sum()) > 0 else -u

    with pytest.raises(RuntimeError):
        export(RandomizedEnsemble([mlp(0), Moody().eval()]), tmp_path / "out", points(4, 6))
    assert not list(tmp_path.iterdir())
