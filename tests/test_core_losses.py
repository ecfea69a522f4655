"""Losses on logits against their definitions."""

from __future__ import annotations

import pytest
import torch

from recarc import InputError
from recarc.losses import LOSSES, cross_entropy, loss_named, margin


def test_cross_entropy_is_minus_log_softmax() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    y = torch.tensor([1, 0])
    expected = -logits.softmax(1).log()[torch.arange(2), y]
    torch.testing.assert_close(cross_entropy(logits, y), expected)
    assert cross_entropy(logits.half(), y).dtype == torch.float32


def test_margin_is_negative_iff_fooled() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5], [1.0, 1.0, 0.0]])
    assert margin(logits, torch.tensor([0, 2, 0])).tolist() == [0.5, -0.5, 0.0]
    assert LOSSES["margin"](logits, torch.tensor([0, 2, 0])).tolist() == [-0.5, 0.5, 0.0]


def test_unknown_loss() -> None:
    with pytest.raises(InputError, match=r"unknown loss 'margn' \(did you mean 'margin'\?\); known: ce, dlr, margin"):
        loss_named("margn")
