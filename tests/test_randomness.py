"""Random numbers belong to a sample, and look random."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from recarc import randomness
from recarc.randomness import sample_keys, uniform
from tiny import points


def test_keys_belong_to_the_sample_not_to_its_place() -> None:
    x = points(50, 3, 4, 4, dtype=torch.float32)
    keys = sample_keys(x, seed=7)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sample_keys(x[order], 7), keys[order])
    assert torch.equal(torch.cat([sample_keys(one[None], 7) for one in x]), keys)
    assert torch.equal(sample_keys(x.to(memory_format=torch.channels_last), 7), keys)
    assert torch.equal(sample_keys(x.double(), 7), keys)


def test_other_seeds_samples_and_places_of_a_pixel_give_other_keys() -> None:
    x = points(200, 6, dtype=torch.float32)
    large = (2**62, 2**63, 2**63 + 1, -(2**63))  # -(2**63) is 2**63 in 64 bits
    many = torch.cat([sample_keys(x, seed) for seed in (*range(-2, 50), *large[:3])])
    assert torch.equal(sample_keys(x, large[1]), sample_keys(x, large[3]))
    assert len(many.unique()) == len(many)
    a, b = torch.tensor([[0.25, 0.5, 0.5]]), torch.tensor([[0.5, 0.25, 0.5]])
    assert sample_keys(a, 0) != sample_keys(b, 0)
    assert sample_keys(torch.tensor([[0.0, 1.0]]), 0) == sample_keys(torch.tensor([[-0.0, 1.0]]), 0)


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_uniform_numbers_are_uniform(stream: int) -> None:
    keys = sample_keys(points(500, 4), seed=0)
    u = uniform(keys, 40, stream)
    assert u.shape == (500, 40) and u.dtype == torch.float64
    assert float(u.min()) > 0 and float(u.max()) < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 1e-3
    for row_or_column in (u[0], u[:, 0], u[:, -1]):
        assert stats.kstest(row_or_column.numpy(), "uniform").pvalue > 1e-3
    lagged = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    assert abs(float(lagged)) < 0.03


def test_streams_and_seeds_are_independent() -> None:
    x = points(3000, 4)
    base = uniform(sample_keys(x, 0), 1)[:, 0]
    for other in (uniform(sample_keys(x, 1), 1)[:, 0], uniform(sample_keys(x, 0), 1, stream=1)[:, 0]):
        assert abs(float(torch.corrcoef(torch.stack([base, other]))[0, 1])) < 0.07


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    keys = sample_keys(points(3, 4), 0)
    assert torch.equal(uniform(keys, 10)[:, :4], uniform(keys, 4))


@pytest.mark.parametrize("bits", [0, -1])
def test_uniform_is_strictly_inside_even_at_the_extreme_bits(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "_mix", lambda z: torch.full_like(z, bits))
    u = uniform(torch.zeros(1, dtype=torch.int64), 3)
    assert bool(((u > 0) & (u < 1)).all())
