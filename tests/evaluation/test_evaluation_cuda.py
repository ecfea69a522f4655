"""On a GPU: records that do not depend on the batch size, and memory that runs out."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import records_of

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble, evaluate
from recarc.evaluation.engine import _Process
from recarc.models import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("arch", ["cnn", "resnet20", "resnet18"])
@pytest.mark.parametrize("attack", [ARC(steps=2, planes=2), AdaptivePGD(steps=5)], ids=lambda a: type(a).__name__)
def test_records_do_not_depend_on_the_batch_size(arch: str, attack: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ensemble = RandomizedEnsemble([build(arch, 10).cuda().eval() for _ in range(2)])
    x, y = torch.rand(700, 3, 32, 32), torch.randint(10, (700,))
    found = []
    for batch in ("auto", 333, 64):
        run = tmp_path / str(batch)
        evaluate(ensemble, attack, (x, y), Ball("linf", 8 / 255), out=run, batch_size=batch, save_inputs=True)
        found.append((records_of(run), [f.read_bytes() for f in sorted(run.glob("*.safetensors"))]))
    assert found[0] == found[1] == found[2]


def test_memory_that_runs_out_halves_the_batch() -> None:
    ensemble = RandomizedEnsemble([build("resnet18", 10).cuda().eval()])
    x, y = torch.rand(1000, 3, 32, 32), torch.randint(10, (1000,))
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4e9 / total))
    try:
        result = evaluate(ensemble, AdaptivePGD(steps=1), (x, y), Ball("linf", 8 / 255), tile=64)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(result) == 1000


def test_memory_that_runs_out_in_a_capture_costs_neither_graphs_nor_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    ensemble = RandomizedEnsemble([build("resnet20", 10).cuda().eval() for _ in range(3)])
    data, ball = (torch.rand(6000, 3, 32, 32), torch.randint(10, (6000,))), Ball("linf", 8 / 255)
    failed: list[int] = []
    make_room = _Process._make_room
    monkeypatch.setattr(_Process, "_make_room", lambda run, count: failed.append(count) or make_room(run, count))
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    evaluate(ensemble, AdaptivePGD(steps=3), data, ball, out=tmp_path / "whole")
    assert not failed
    limit, (_, total) = 0.6 * torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(limit / total)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="running without")
            evaluate(ensemble, AdaptivePGD(steps=3), data, ball, out=tmp_path / "halved")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert failed and records_of(tmp_path / "whole") == records_of(tmp_path / "halved")
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
