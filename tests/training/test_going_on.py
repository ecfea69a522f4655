"""Killed or interrupted, the same command goes on and ends where an undisturbed run ends; nothing is overwritten."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import small
from torch.nn.utils import parameters_to_vector

from recarc import InputError, RandomizedEnsemble
from recarc.models.store import load_ensemble
from recarc.training import Interrupted, Switches, TrainingError
from recarc.training.checkpoint import STATE, RunFolder

HERE = Path(__file__).parent
SETTINGS: dict[str, Any] = {
    "epochs": 1.5,
    "arch_options": {"width": 4, "batch_norm": True},
    "changes": {"validate_every": 1},
    "checkpoint_minutes": 0.0,  # after every step
}


def start_process(out: Path, method: str) -> subprocess.Popen[bytes]:
    code = (
        f"import sys, torch; sys.path.insert(0, {str(HERE)!r}); torch.set_num_threads(1)\n"
        f"from small_training import small\nsmall({method!r}, out={str(out)!r}, **{SETTINGS!r})\n"
    )
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})


def wait_for_steps(part: Path, stages: int, steps: int, process: subprocess.Popen[bytes]) -> None:
    """Until the checkpoint on the disk is that far."""
    for _ in range(3000):
        if (part / STATE).exists():
            state = torch.load(part / STATE, weights_only=True)
            if (len(state["curve"]), state["step"]) >= (stages, steps):
                return
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.02)
    raise AssertionError("no checkpoint in time")


def test_kill_9_and_the_same_command_ends_with_the_same_weights(tmp_path: Path) -> None:
    out, part = tmp_path / "bat", tmp_path / "bat.part"
    process = start_process(out, "bat")
    wait_for_steps(part, 1, 5, process)  # in the second of two stages
    with pytest.raises(InputError, match=r"another process is training in .*bat\.part; wait for it, or choose another"):
        small("bat", out=out, **SETTINGS)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not out.exists()
    (part / ".checkpoint.pt.1234.new").write_bytes(b"half a checkpoint")
    lines: list[str] = []
    small("bat", out=out, say=lines.append, **SETTINGS)
    assert any("going on from stage 2" in line for line in lines)
    assert not part.exists()
    undisturbed = tmp_path / "undisturbed"
    small("bat", out=undisturbed, **SETTINGS)
    for i in range(2):
        name = f"member_{i}.safetensors"
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes()
    made = [json.loads((folder / "ensemble.json").read_text())["made_by"] for folder in (out, undisturbed)]
    assert made[0]["curve"] == made[1]["curve"]
    assert made[0]["commit"] is None or len(made[0]["commit"]) == 40
    assert made[0]["recipe"]["epochs"] == 1.5 and made[0]["seed"] == 0 and len(made[0]["fingerprint"]) == 64
    assert load_ensemble(out).alpha.tolist() == pytest.approx([0.9, 0.1])


def test_a_run_whose_patience_is_over_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from recarc.training.run import Run

    lines: list[str] = []
    changes = {"patience": 1, "validate_every": 1, "lr": 1e-9, "ema": 0.0, "weight_decay": 0.0}
    settings = {**SETTINGS, "epochs": 30, "changes": changes}
    collect = Run._collect
    monkeypatch.setattr(Run, "_collect", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(RuntimeError, match="killed"):
        small("natural", out=tmp_path / "run", **settings)
    monkeypatch.setattr(Run, "_collect", collect)
    small("natural", out=tmp_path / "run", say=lines.append, **settings)
    assert any("going on from stage 1" in line for line in lines)
    assert not any(": epoch " in line for line in lines)


def test_a_run_that_goes_on_knows_its_checkpoint(tmp_path: Path) -> None:
    begun = RunFolder(tmp_path / "run", {"seed": 0}, 60.0, writer=True)
    assert begun.open() is None and "no checkpoint" in begun.kept()
    begun.save({"lanes": {}, "step": 7}, 7)
    begun.release()
    again = RunFolder(tmp_path / "run", {"seed": 0}, 60.0, writer=True)
    again.open()
    assert "the checkpoint of step 7" in again.kept()


@pytest.mark.parametrize("method", ["free", "iat"])
def test_stopped_at_any_step_a_run_goes_on_exactly(tmp_path: Path, method: str, monkeypatch: Any) -> None:
    from recarc.training.loop import Loop

    settings = {**SETTINGS, "epochs": 1}
    undisturbed = small(method, **settings)
    ends, between = iter((7, 9, 30)), Loop._between
    stop_at = [next(ends)]

    def interrupted(self: Loop, step: int, stopped: bool) -> bool:
        done = [stop_at[0] == 0]
        stop_at[0] -= 1
        return between(self, step, stopped or done[0])

    monkeypatch.setattr(Loop, "_between", interrupted)
    out = tmp_path / method
    for _ in range(2):
        with pytest.raises(Interrupted, match="the same command goes on"):
            small(method, out=out, **settings)
        stop_at[0] = next(ends)
    stop_at[0] = -1
    again = small(method, out=out, **settings)
    for one, other in zip(undisturbed.members, again.members):
        for a, b in zip(one.parameters(), other.parameters()):  # type: ignore[union-attr]
            assert torch.equal(a, b)


def stopped_run(out: Path, method: str, saves: int, **settings: Any) -> None:
    """A run that dies after so many checkpoints."""
    left, save = [saves], RunFolder.save

    def dying(self: RunFolder, state: dict[str, Any], step: int) -> None:
        save(self, state, step)
        left[0] -= 1
        if not left[0]:
            raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(RunFolder, "save", dying)
        small(method, out=out, **settings)


@pytest.mark.parametrize("saves", [4, 10])  # 7 steps a stage: in the first stage, and later
@pytest.mark.parametrize("first", [True, False], ids=["together, then one by one", "one by one, then together"])
def test_side_by_side_or_not_a_run_goes_on_to_the_same_end(tmp_path: Path, first: bool, saves: int) -> None:
    settings = {**SETTINGS, "epochs": 0.5, "arch": "linear", "arch_options": {}}
    stopped_run(tmp_path / "run", "dverge", saves, switches=Switches(side_by_side=first), **settings)
    gone_on = small("dverge", out=tmp_path / "run", switches=Switches(side_by_side=not first), **settings)
    assert torch.equal(parameters(gone_on), parameters(small("dverge", **settings)))


def test_a_run_goes_on_on_another_kind_of_device(tmp_path: Path) -> None:
    stopped_run(tmp_path / "run", "at", 3, **SETTINGS)
    path, lines = tmp_path / "run.part" / STATE, []
    state = torch.load(path, weights_only=True)
    for lane in state["lanes"].values():  # as a GPU's generator leaves it
        lane |= {"device": "cuda", "generator": torch.zeros(16, dtype=torch.uint8)}
    torch.save(state, path)
    small("at", out=tmp_path / "run", **{**SETTINGS, "say": lines.append})
    assert "begun on cuda: other random numbers from here on than there" in lines


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("there", ["cuda", "cpu"])
def test_from_a_gpu_to_a_cpu_and_back(tmp_path: Path, there: str) -> None:
    back = "cpu" if there == "cuda" else "cuda"
    stopped_run(tmp_path / "run", "dverge", 3, **{**SETTINGS, "device": there})
    assert len(small("dverge", out=tmp_path / "run", **{**SETTINGS, "device": back})) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("method", ["at", "free"])
def test_on_a_gpu_a_run_goes_on_to_nearly_the_same_end(tmp_path: Path, method: str, monkeypatch: Any) -> None:
    """The differences are those between two runs of the same command: the order of sums."""
    from recarc.training.loop import Loop

    settings = {**SETTINGS, "epochs": 1, "device": "cuda"}
    undisturbed, again = (parameters(small(method, **settings)) for _ in range(2))
    between = Loop._between
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Loop, "_between", lambda self, step, stopped: between(self, step, step == 7))
        small(method, out=tmp_path / "run", **settings)
    gone_on = parameters(small(method, out=tmp_path / "run", **settings))
    noise = float((again - undisturbed).norm() / undisturbed.norm())
    assert float((gone_on - undisturbed).norm() / undisturbed.norm()) < max(0.02, 3 * noise)


def parameters(ensemble: RandomizedEnsemble) -> torch.Tensor:
    return parameters_to_vector(ensemble.members[0].parameters()).detach()  # type: ignore[union-attr]


def test_a_finished_folder_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "done"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(InputError, match="already exists and is not empty"):
        small("at", out=out)
    assert (out / "precious").read_text() == "x"


def test_an_unfinished_run_of_another_command_is_not_touched(tmp_path: Path, monkeypatch: Any) -> None:
    from recarc.training.loop import Loop

    out, between = tmp_path / "run", Loop._between
    monkeypatch.setattr(Loop, "_between", lambda self, step, _: between(self, step, True))
    with pytest.raises(Interrupted):
        small("natural", out=out, epochs=1)
    before = (tmp_path / "run.part" / STATE).read_bytes()
    with pytest.raises(InputError, match=r"another unfinished run .*seed 0, not 1"):
        small("natural", out=out, epochs=1, seed=1)
    with pytest.raises(InputError, match=r"recipe lr 0\.1, not 0\.05"):
        small("natural", out=out, epochs=1, changes={"lr": 0.05})
    assert (tmp_path / "run.part" / STATE).read_bytes() == before
    (tmp_path / "run.part" / STATE).write_bytes(before[: len(before) // 2])
    with pytest.raises(InputError, match=r"cannot be read .*delete"):
        small("natural", out=out, epochs=1)


def opened(out: Path, writer: bool = True) -> RunFolder:
    folder = RunFolder(out, {"seed": 0}, 0.0, writer)
    assert folder.open() is None
    return folder


def test_one_writer_at_a_time_holds_a_run_folder(tmp_path: Path) -> None:
    out, part = tmp_path / "run", tmp_path / "run.part"
    first = opened(out)
    opened(out, writer=False)  # another rank of the same run
    with pytest.raises(InputError, match="another process is training"):
        opened(out)
    (part / ".checkpoint.pt.1.new").touch()
    first.release()
    second = opened(out)
    assert sorted(p.name for p in part.iterdir()) == [".lock", "run.json"]
    out.mkdir()
    (out / "ensemble.json").touch()
    second.close()
    assert not part.exists()


def test_processes_that_begin_at_the_same_time_do_not_mix(tmp_path: Path, monkeypatch: Any) -> None:
    out, make = tmp_path / "run", RunFolder._make
    first: list[RunFolder] = []

    def late(self: RunFolder, folder: Path) -> None:
        """Another process makes the folder after this one saw none."""
        monkeypatch.setattr(RunFolder, "_make", make)
        first.append(opened(out))
        make(self, folder)

    monkeypatch.setattr(RunFolder, "_make", late)
    with pytest.raises(InputError, match="another process is training"):
        opened(out)
    first[0].save({"group": 0}, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["run.part"]


def test_a_run_folder_that_vanished_is_not_made_again(tmp_path: Path) -> None:
    out, part = tmp_path / "run", tmp_path / "run.part"
    first = opened(out)
    first.save({"group": 0}, 1)
    shutil.rmtree(part)
    with pytest.raises(TrainingError, match=r"run\.part was deleted or moved during training"):
        first.save({"group": 0}, 2)
    assert not part.exists()
    second = opened(out)
    second.save({"group": 7}, 3)
    with pytest.raises(TrainingError, match="deleted or moved"):
        first.save({"group": 0}, 4)
    first.close()
    assert torch.load(part / STATE, weights_only=True) == {"group": 7}


def test_ctrl_c_ends_after_a_step_with_a_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "natural"
    settings = {**SETTINGS, "epochs": 40, "checkpoint_minutes": 60.0}

    def say(line: str) -> None:
        if "epoch 2/" in line:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="step 41"):
        small("natural", out=out, say=say, **settings)
    assert torch.load(tmp_path / "natural.part" / STATE, weights_only=True)["step"] == 41
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
