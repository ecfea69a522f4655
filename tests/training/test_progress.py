"""What people see of a run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from small_training import small

from recarc.training.progress import duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (59.6, "1 min 00 s")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_lines_show_epoch_step_losses_validation_and_time_left() -> None:
    lines: list[str] = []
    small("adp", epochs=2, members=2, say=lines.append, changes={"validate_every": 1, "validation": 40})
    shown = [line for line in lines if "epoch 2/2" in line]
    assert len(shown) == 1
    for part in ("step 42/42", "ce ", "entropy -", "volume ", "validation clean", "0 s left"):
        assert part in shown[0]
    assert "attacked" not in shown[0]  # ADP attacks nothing
    lines.clear()
    small("at", epochs=1, say=lines.append, changes={"validate_every": 1, "validation": 40})
    assert any("validation clean" in line and " attacked " in line for line in lines)


def test_a_part_of_an_epoch_is_not_called_one() -> None:
    lines: list[str] = []
    small("natural", epochs=0.1, say=lines.append, changes={"validate_every": 1, "validation": 40})
    assert any("epoch 0.1/0.1, step 2/2" in line for line in lines) and not any("epoch 1/" in line for line in lines)


def test_tensorboard_gets_every_curve(tmp_path: Path, monkeypatch: Any) -> None:
    written: list[tuple[str, int]] = []
    told: set[str] = set()

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, step))

        def add_text(self, name: str, value: str) -> None:
            told.add(name)

        def flush(self) -> None:
            pass

        def close(self) -> None:
            written.append(("closed", 0))

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    small("natural", epochs=1, tensorboard=tmp_path)
    assert written == [
        ("member 0/loss/ce", 20),
        ("member 0/validation/clean", 20),
        ("alpha/0", 20),
        ("closed", 0),
    ]
    assert {"method", "arch", "lr", "seed"} <= told


def test_the_epoch_that_validates_best_is_kept(monkeypatch: Any) -> None:
    """The robust accuracy decides, then the clean one, then the longer training."""
    scores = iter([(0.3, 0.9), (0.5, 0.7), (0.5, 0.8), (0.5, 0.8), (0.4, 0.9), (0.5, 0.7)])

    def validate(*_: Any) -> dict[str, float]:
        attacked, clean = next(scores)
        return {"clean": clean, "attacked": attacked}

    changes = {"validate_every": 1, "schedule": "constant"}
    fourth = small("natural", epochs=4, changes={**changes, "validate_every": 4})
    monkeypatch.setattr("recarc.training.loop.validate", validate)
    chosen = small("natural", epochs=6, changes=changes)
    for a, b in zip(chosen.members[0].parameters(), fourth.members[0].parameters()):  # type: ignore[union-attr]
        assert torch.equal(a, b)


def test_a_run_with_patience_stops_early() -> None:
    lines: list[str] = []
    changes = {"patience": 2, "validate_every": 1, "lr": 1e-9, "ema": 0.0, "weight_decay": 0.0}
    small("natural", epochs=30, say=lines.append, changes=changes)
    assert not any("epoch 30/30" in line for line in lines)
