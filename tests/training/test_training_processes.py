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

from recarc import InputError, RandomizedEnsemble
from recarc.models.store import load_ensemble
from recarc.training import SpeedOptions
from recarc.training.distributed import Group, check_batch, training_group

HERE = Path(__file__).parent
pytestmark = pytest.mark.xdist_group("two ranks")  # one worker, so that their processes start once
AT: dict[str, Any] = {"epochs": 0.5, "arch_options": {"width": 4, "batch_norm": True}}
FREE: dict[str, Any] = {"epochs": 0.5, "arch_options": {"width": 4}, "changes": {"validation": 0}}
SCRIPT = f"""
import sys, torch
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
torch.set_num_threads(1)
from small_training import small
from recarc.training import Interrupted, SpeedOptions
from recarc.training.loop import Loop

out, at, free = Path(sys.argv[1]), {AT!r}, {FREE!r}
small("trs", members=2, out=out / "trs", speed=SpeedOptions(fold=False), **at)
for fold in (False, True):  # several runs in the same processes
    small("at", out=out / f"at fold={{fold}}", speed=SpeedOptions(fold=fold), **at)
    assert not torch.distributed.is_initialized()
small("free", out=out / "free", **free)

between, rank = Loop._between_steps, torch.distributed.get_rank
def stopped(self, step, stop):
    if step == 7 and rank() == 1:
        stop.set()
    return between(self, step, stop)
Loop._between_steps = stopped
try:
    small("free", out=out / "free resumed", **free)
    raise SystemExit("not stopped")
except Interrupted:
    Loop._between_steps = between
small("free", out=out / "free resumed", **free)
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ensembles that two processes trained together."""
    out = tmp_path_factory.mktemp("two")
    script = out / "run.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), str(out)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return out


def first_parameters(ensemble: RandomizedEnsemble) -> torch.Tensor:
    return parameters_to_vector(ensemble.members[0].parameters()).detach()  # type: ignore[union-attr]


@pytest.mark.parametrize("fold", [False, True], ids=["whole", "folded"])
def test_two_processes_match_one(two_processes: Path, fold: bool) -> None:
    one, two = small("at", speed=SpeedOptions(fold=fold), **AT), load_ensemble(two_processes / f"at fold={fold}")
    assert float((first_parameters(one) - first_parameters(two)).abs().max()) < 2e-3
    for name, value in one.members[0].state_dict().items():  # type: ignore[union-attr]
        other = two.members[0].state_dict()[name]  # type: ignore[union-attr]
        assert torch.allclose(value.double(), other.double(), atol=2e-3), name  # running statistics too


def test_two_processes_perturb_the_same_images_and_count_the_others(two_processes: Path) -> None:
    one, two = small("trs", members=2, speed=SpeedOptions(fold=False), **AT), load_ensemble(two_processes / "trs")
    for mine, other in zip(one.members, two.members, strict=True):
        states = mine.state_dict(), other.state_dict()  # type: ignore[union-attr]
        for name, value in states[0].items():
            assert torch.allclose(value.double(), states[1][name].double(), atol=2e-3), name


def test_free_training_on_two_processes_resumes_exactly(two_processes: Path) -> None:
    """One of two processes gets the signal; both stop, and resume with their own perturbations."""
    whole, resumed = (first_parameters(load_ensemble(two_processes / name)) for name in ("free", "free resumed"))
    assert torch.equal(whole, resumed)
    assert float((whole - first_parameters(small("free", **FREE))).abs().max()) < 2e-3


def test_a_process_group_of_the_caller_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        with training_group(torch.device("cpu")) as group:
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
