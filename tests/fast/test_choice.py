"""The way in which a member's convolutions run is measured once and kept on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from recarc.fast import FastMember, FastSettings, choice
from recarc.fast.choice import FIXED, WAYS, Way, fastest_way
from tiny import points

X = torch.rand(4, 2, 4, 4)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)).eval()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Way]:
    """The ways that were timed; the third is the fastest."""
    timed: list[Way] = []

    def milliseconds(run: object, way: Way) -> float:
        timed.append(way)
        return float("inf") if way == WAYS[1] else 1.0 if way == WAYS[2] else 2.0

    monkeypatch.setattr(choice, "_milliseconds", milliseconds)
    monkeypatch.setenv("RECARC_CACHE", str(tmp_path))
    return timed


def test_the_fastest_way_is_measured_once(measured: list[Way], tmp_path: Path) -> None:
    assert fastest_way(net(), X, "float32", lambda way: None) == WAYS[2]
    assert measured == list(WAYS)
    assert fastest_way(net(), X, "float32", lambda way: None) == WAYS[2]
    assert len(measured) == len(WAYS)  # read from disk
    assert fastest_way(net(), X[:2], "float32", lambda way: None) == WAYS[2]
    assert fastest_way(net(), X, "tf32", lambda way: None) == WAYS[2]
    assert len(measured) == 3 * len(WAYS) and len(list((tmp_path / "fast").iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"fastest": {}}', b'{"fastest": 3}', b"\xff"])
def test_a_damaged_file_is_measured_again(damage: bytes, measured: list[Way], tmp_path: Path) -> None:
    fastest_way(net(), X, "float32", lambda way: None)
    (file,) = (tmp_path / "fast").iterdir()
    file.write_bytes(damage)
    assert fastest_way(net(), X, "float32", lambda way: None) == WAYS[2]
    assert len(measured) == 2 * len(WAYS)
    fastest_way(net(), X, "float32", lambda way: None)
    assert len(measured) == 2 * len(WAYS)  # mended


def test_a_disk_that_cannot_be_written_does_no_harm(measured: list[Way], tmp_path: Path) -> None:
    (tmp_path / "fast").write_text("in the way")
    assert fastest_way(net(), X, "float32", lambda way: None) == WAYS[2]


def test_every_way_computes_the_same(measured: list[Way]) -> None:
    x, member = points(6, 2, 4, 4, dtype=torch.float32), net()
    u = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(member(u)[:, 1].sum(), u)
    fast = FastMember(member, FastSettings())
    assert not fast.unchosen  # nothing to choose on a CPU, and never with one_size
    fast.unchosen = True
    v = x.clone().requires_grad_()
    logits = fast(v)
    assert fast._search.way == WAYS[2] != FIXED
    assert fast._search.laid_out(x).is_contiguous()
    torch.testing.assert_close(logits, member(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(logits[:, 1].sum(), v)[0], expected, rtol=1e-4, atol=1e-5)
