"""On a GPU: records that do not depend on the batch size, and memory that runs out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import records_of

from recarc import ARC, AdaptivePGD, Ball, RandomizedEnsemble, evaluate
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
