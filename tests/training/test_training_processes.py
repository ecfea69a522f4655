"""Several processes under torchrun do what one process does with the same batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import small
from torch.nn.utils import parameters_to_vector

from recarc import InputError
from recarc.models.store import load_ensemble
from recarc.training import Switches
from recarc.training.distributed import Group, check_batch, joined

HERE = Path(__file__).parent
CODE = """
import sys, torch
sys.path.insert(0, {here!r})
torch.set_num_threads(1)
from small_training import small
from recarc.training import Switches
small("at", epochs=0.5, arch_options={options!r}, out={out!r}, switches=Switches(fold={fold}))
assert not torch.distributed.is_initialized()
small("natural", epochs=0.05)  # a second time in the same process
"""


WHOLE = """
import sys, torch
sys.path.insert(0, {here!r})
torch.set_num_threads(1)
from small_training import small
small("free", **{settings!r})
"""


def torchrun(script: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(script)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fold", [False, True], ids=["whole", "folded"])
def test_two_processes_match_one(tmp_path: Path, fold: bool) -> None:
    options = {"width": 4, "batch_norm": True}
    out, script = tmp_path / "two", tmp_path / "run.py"
    script.write_text(CODE.format(here=str(HERE), options=options, out=str(out), fold=fold))
    torchrun(script)
    one = small("at", epochs=0.5, arch_options=options, switches=Switches(fold=fold))
    two = load_ensemble(out)
    a, b = (parameters_to_vector(e.members[0].parameters()).detach() for e in (one, two))  # type: ignore[union-attr]
    assert float((a - b).abs().max()) < 2e-3
    for name, value in one.members[0].state_dict().items():  # type: ignore[union-attr]
        other = two.members[0].state_dict()[name]  # type: ignore[union-attr]
        assert torch.allclose(value.double(), other.double(), atol=2e-3), name  # running statistics too


STOPPED = """
import sys, torch
sys.path.insert(0, {here!r})
torch.set_num_threads(1)
from small_training import small
from recarc.training import Interrupted
from recarc.training.loop import Loop
between, last = Loop._between, torch.distributed.get_rank
Loop._between = lambda self, step, stopped: between(self, step, step == 7 and last() == 1)
try:
    small("free", **{settings!r})
    raise SystemExit("not stopped")
except Interrupted:
    Loop._between = between
found = small("free", **{settings!r})
"""


def test_free_training_on_two_processes_goes_on_exactly(tmp_path: Path) -> None:
    """One of two processes gets the signal; both stop, and go on with their own perturbations."""
    settings: dict[str, Any] = {"epochs": 0.5, "arch_options": {"width": 4}, "changes": {"validation": 0}}
    one, ways = small("free", **settings), {}
    for name, code in {"stopped": STOPPED, "whole": WHOLE}.items():
        out, script = tmp_path / name, tmp_path / f"{name}.py"
        script.write_text(code.format(here=str(HERE), settings={**settings, "out": str(out)}))
        torchrun(script)
        ways[name] = parameters_to_vector(load_ensemble(out).members[0].parameters()).detach()  # type: ignore[union-attr]
    assert torch.equal(ways["stopped"], ways["whole"])
    alone = parameters_to_vector(one.members[0].parameters()).detach()  # type: ignore[union-attr]
    assert float((ways["whole"] - alone).abs().max()) < 2e-3


def test_a_group_that_was_there_before_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        with joined(torch.device("cpu")) as group:
            assert group.rank == 0
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_current_gpu_is_the_users_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    small("natural", epochs=0.05, device="cuda")
    assert torch.cuda.current_device() == 0


def test_shares_cover_the_batch() -> None:
    parts = [range(12)[Group(rank, 3).share(12)] for rank in range(3)]
    assert [i for part in parts for i in part] == list(range(12))
    with pytest.raises(InputError, match="batch 10 cannot be shared by 3 processes"):
        check_batch(10, Group(0, 3))
